"""What of a client's configuration does not fit the server: pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from lcpd.connect.edits import MISSING, Edit, FilePlan, spelled
from lcpd.connect.journal import FORMATS

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Found:
    """A configured value that does not fit."""

    place: str
    what: str
    """In words that follow the place."""


def drift(plan: FilePlan, text: str) -> Iterator[Found]:
    """Each value of the file that does not fit.  Raises EditError where the file cannot be read."""
    for edit in plan.edits:
        if problem := _problem(edit, FORMATS[plan.format].get(text, edit.place)):
            yield Found(spelled(edit.place), problem)


def configured(plan: FilePlan, text: str, check: str) -> Any:
    """What the file has for the first edit with this check; MISSING if there is none.  Raises EditError."""
    for edit in plan.edits:
        if edit.check == check:
            return FORMATS[plan.format].get(text, edit.place)
    return MISSING


def _problem(edit: Edit, value: Any) -> str | None:
    if value is MISSING:
        return f"is not set; it should be {edit.value}" if edit.check != "key" else "is not set"
    if edit.check in ("key", "any"):
        return None
    if edit.check == "url":
        fits = isinstance(value, str) and same_server(value, str(edit.value))
        return None if fits else f"is {value}; the server is {edit.value}"
    if edit.check == "same":
        return None if value == edit.value else f"is {value}; it should be {edit.value}"
    bound = float(edit.value if edit.bound is None else edit.bound)
    number = _number(value)
    if number is None:
        return f"is {value}; it should be {edit.value}"
    if edit.check == "at most":
        return None if number <= bound else f"is {value}, and the server has {bound:.15g}; it should be {edit.value}"
    return None if number >= bound else f"is {value}; it should be at least {edit.value}"


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def same_server(one: str, other: str) -> bool:
    """Whether two base URLs lead to the same place; the names of this machine count as one."""
    try:
        return _where(one) == _where(other)
    except ValueError:
        return False


def _where(url: str) -> tuple[str, str, int | None, str]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, "localhost" if host in _LOOPBACK else host, port, parts.path.rstrip("/")
