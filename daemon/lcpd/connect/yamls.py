"""Changing values of one line at the top level of YAML, which is all that aider's settings need.  Pure functions."""

from __future__ import annotations

import json
import re
from typing import Any

from lcpd.connect.edits import MISSING, EditError, Place

_PLAIN = re.compile(r"[A-Za-z_./][\w./+@-]*(?::[\w./+@-]+)*")
"""Texts that need no quotes."""
_QUOTED = r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\n]|'')*'"
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "null": None, "~": None}


def get(text: str, place: Place) -> Any:
    """The value at a place, or MISSING.  Raises EditError for one that goes over several lines."""
    found = _line(text, place)
    return MISSING if found is None else _value(found["value"], place)


def put(text: str, place: Place, value: Any) -> str:
    """The text with a value set, or with a further line.  Raises EditError."""
    end = "\r\n" if "\r\n" in text else "\n"
    written = _written(value)
    found = _line(text, place)
    if found is None:
        gap = end if text and not text.endswith("\n") else ""
        return f"{text}{gap}{place[0]}: {written}{end}"
    if _value(found["value"], place) == value:
        return text
    return f"{text[: found.start('value')]}{written}{text[found.end('value') :]}"


def drop(text: str, place: Place) -> str:
    """The text without the line of a place; the same where there is none."""
    found = _line(text, place)
    return text if found is None else f"{text[: found.start()]}{text[found.end() :]}"


def is_empty(text: str, place: Place) -> bool:
    """Never: nothing is made around a value here."""
    return False


def _line(text: str, place: Place) -> re.Match[str] | None:
    (key,) = place
    start = rf"^{re.escape(str(key))}[ \t]*:[ \t]*"
    pattern = rf"{start}(?P<value>{_QUOTED}|[^#\r\n]*?)[ \t]*(?:[ \t]#[^\r\n]*)?(?:\r?\n|\Z)"
    found = None
    for found in re.finditer(pattern, text, re.MULTILINE):  # noqa: B007  the last one counts
        pass
    if found and not found["value"] and re.match(r"[ \t]+\S|- ", text[found.end() :]):
        raise EditError(f"{key} goes over several lines: make it one, or remove it")
    return found


def _value(text: str, place: Place) -> Any:
    if text.startswith('"'):
        try:
            return json.loads(text)
        except ValueError as error:
            raise EditError(f"{place[0]} cannot be read: {text}") from error
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    if text.lower() in _WORDS or not text:
        return _WORDS.get(text.lower())
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else text


def _written(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)
