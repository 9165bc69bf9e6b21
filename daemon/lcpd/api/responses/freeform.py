"""The free text of a custom tool's call, taken out of its JSON arguments while they are being written."""

from __future__ import annotations

import json
import re

from lcpd.api.responses.tools import INPUT

_HEAD = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
# Characters and whole escapes; a high surrogate only together with its low one.
_BODY = re.compile(
    rf'(?:[^"\\]|\\["\\/bfnrt]|{_HIGH}{_LOW}|(?!{_HIGH})\\u[0-9a-fA-F]{{4}})*',
)


class Freeform:
    """Arguments in, text out."""

    def __init__(self) -> None:
        self._raw = ""
        self._at = -1
        """Where in `_raw` what is not decoded yet begins; -1: the text has not begun."""
        self._sent = ""

    def push(self, arguments: str) -> str:
        """Add arguments; returns the text that they add."""
        self._raw += arguments
        if self._at < 0:
            head = _HEAD.match(self._raw)
            if head is None:
                return ""
            self._at = head.end()
        body = _BODY.match(self._raw, self._at)
        assert body is not None, "it matches nothing, too"
        self._at = body.end()
        text = _valid(json.loads(f'"{body[0]}"', strict=False))
        self._sent += text
        return text

    def finish(self) -> tuple[str, str]:
        """(the text that is still missing, the whole text); arguments of another shape are their own text."""
        whole = _text_of(self._raw, self._raw if self._at < 0 else self._sent)
        return whole[len(self._sent) :] if whole.startswith(self._sent) else "", whole


def _text_of(arguments: str, begun: str) -> str:
    """`begun`: what is to be taken where the arguments were cut off."""
    try:
        values = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):  # the latter: nested too deep to be read
        return begun
    if isinstance(values, dict):
        text = values.get(INPUT, next(iter(values.values()), None) if len(values) == 1 else None)
        if isinstance(text, str):
            return _valid(text)
    return arguments


def _valid(text: str) -> str:
    """The text without halves of characters, which no JSON of ours could hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
