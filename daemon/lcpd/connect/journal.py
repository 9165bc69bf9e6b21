"""Changing a client's file and changing it back: pure functions over the file's bytes.

    the file now                      undo gives
    ------------                      ----------
    as it was left                    the very bytes from before, or no file where there was none
    changed by somebody since         what is there now, with every value that is still ours as it was before;
                                      a value that somebody has changed stays, and is told
    gone                              no file

Applying again begins with undoing, so there is always one step to undo.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import msgspec

from lcpd.connect import jsonc, tomls, yamls
from lcpd.connect.edits import MISSING, EditError, FilePlan, Format, Place, spelled

FORMATS: dict[Format, ModuleType] = {"json": jsonc, "toml": tomls, "yaml": yamls}


class Change(msgspec.Struct, frozen=True):
    """One value that was set."""

    place: Place
    new: Any
    had: bool
    """Whether there was a value before."""
    old: Any = None
    there: int = 0
    """How many steps of the place there were before."""
    loose: bool = False
    """The client itself may change the value."""


class Kept(msgspec.Struct, frozen=True):
    """All that is needed to change one file back."""

    file: str
    format: Format
    before: bytes | None
    """None: there was no file."""
    after: bytes
    changes: tuple[Change, ...]


class Undone(msgspec.Struct, frozen=True):
    """A file changed back."""

    content: bytes | None
    """None: there is to be no file."""
    left: tuple[str, ...] = ()
    """Places whose values somebody else has changed."""


def applied(current: bytes | None, kept: Kept | None, plan: FilePlan) -> Kept:
    """The file with all that is planned set; `kept`: how it was changed before, if it was.  Raises EditError."""
    before = current if kept is None else undone(current, kept).content
    form = FORMATS[plan.format]
    text = _decoded(before)
    changes = []
    for edit in plan.edits:
        old = form.get(text, edit.place)
        there = sum(form.get(text, edit.place[:size]) is not MISSING for size in range(1, len(edit.place) + 1))
        text = form.put(text, edit.place, edit.value)
        had = old is not MISSING
        loose = edit.check == "any"
        changes.append(Change(edit.place, edit.value, had, old if had else None, there, loose))
    return Kept(str(plan.file), plan.format, before, text.encode("utf-8", "surrogatepass"), tuple(changes))


def undone(current: bytes | None, kept: Kept) -> Undone:
    """The file as it was before; see the module's table.  Raises EditError where it cannot be read any more."""
    if current == kept.after:
        return Undone(kept.before)
    if current is None:
        return Undone(None)
    form = FORMATS[kept.format]
    text = _decoded(current)
    left = []
    for change in reversed(kept.changes):
        now = form.get(text, change.place)
        if now is MISSING:
            continue
        if now != change.new and not change.loose:
            left.append(spelled(change.place))
        elif change.had:
            text = form.put(text, change.place, change.old)
        else:
            text = form.drop(text, change.place)
            for size in range(len(change.place) - 1, change.there, -1):
                if form.is_empty(text, change.place[:size]):
                    text = form.drop(text, change.place[:size])
    if kept.before is None and not left and _says_nothing(text):
        return Undone(None)
    return Undone(text.encode("utf-8", "surrogatepass"), tuple(reversed(left)))


def encode(kept: list[Kept]) -> bytes:
    """The records as a file's contents."""
    return msgspec.json.format(msgspec.json.encode(kept))


def decode(data: bytes) -> list[Kept]:
    """What `encode` wrote.  Raises msgspec.DecodeError."""
    return msgspec.json.decode(data, type=list[Kept])


def _says_nothing(text: str) -> bool:
    return "".join(text.split()) in ("", "{}")


def _decoded(data: bytes | None) -> str:
    try:
        return "" if data is None else data.decode()
    except UnicodeDecodeError as error:
        raise EditError(f"it is no UTF-8 text: {error}") from error
