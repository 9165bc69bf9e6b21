"""What can be made of tool calls that a model wrote wrongly or did not finish.  Pure functions.

A call is mended only where nothing has to be guessed, and only by adding to what has been shown of it already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence

# A string that nothing ends is taken as a whole too: else each escaped quote in it would be tried as the start of one.
_TRAILING_COMMA = re.compile(r'("(?:[^"\\]|\\.)*"?)|,(?=\s*[}\]])', re.DOTALL)
_OPENING_TAG = re.compile(r"\s*<([\w:.-]+)>")
_CLOSING_TAGS = re.compile(r"(?:\s*</[\w:.-]+>)*\s*")


def ending(arguments: str) -> str | None:
    """What makes a JSON object of the beginning of one by closing what is open; "" where it is one; None: nothing."""
    open_: list[str] = []
    in_string = escaped = False
    for letter in arguments:
        if in_string:
            in_string = escaped or letter != '"'
            escaped = letter == "\\" and not escaped
        elif letter == '"':
            in_string = True
        elif letter in "{[":
            open_.append("}" if letter == "{" else "]")
        elif letter in "}]" and open_:
            open_.pop()
    added = '"' * in_string + "".join(reversed(open_))
    return added if is_object(arguments + added) else None


def continuation(shown: str, raw: str) -> str | None:
    """How arguments that have been `shown` go on in the raw text of their call, where they stand as they are.

    Commas before closing brackets are left out.  None where that gives no object.
    """
    if not shown or raw.count(shown) != 1:
        return None
    at = raw.index(shown)
    text = _TRAILING_COMMA.sub(lambda match: match[1] or "", raw[at:])
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    whole = text[:end]
    return whole.removeprefix(shown) if whole.startswith(shown) and is_object(whole) else None


def is_object(text: str) -> bool:
    """Whether this is the JSON of an object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def unread(raw: str, openings: Collection[str], calls: int) -> str:
    """What of a reply's raw text, its reasoning left out, lies behind the calls that were read of it.

    `openings`: texts that begin a call, each call with any of them once at most; `calls`: how many were read.
    """
    begun = _begun(raw, openings)
    if calls < len(begun):
        return raw[begun[calls] :]
    closing = [f"</{tag[1]}>" for opening in openings if (tag := _OPENING_TAG.match(opening))]
    behind = max((raw.rfind(tag) for tag in closing), default=-1)
    if not calls or behind < 0 or behind < begun[-1]:
        return ""
    return raw[_end_of_tags(raw, behind) :]


def of_call(raw: str, openings: Collection[str], number: int) -> str:
    """The raw text from where a call begins, the first one being 1; all of it where that cannot be told."""
    begun = _begun(raw, openings)
    return raw[begun[number - 1] :] if number <= len(begun) else raw


def _begun(raw: str, openings: Collection[str]) -> Sequence[int]:
    """Where calls begin."""
    found = [places for opening in openings if (places := _places(opening, raw))]
    return min(found, key=len, default=[])


def _places(text: str, raw: str) -> Sequence[int]:
    return [match.start() for match in re.finditer(re.escape(text), raw)]


def _end_of_tags(raw: str, at: int) -> int:
    tags = _CLOSING_TAGS.match(raw, at)
    return tags.end() if tags else at
