"""What is to be set in a client's configuration: plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lcpd.config.loader import CLIENT_KEY

Format = Literal["json", "toml", "yaml"]
"""json: comments and trailing commas are taken and kept; yaml: only values of one line at the top level."""
Check = Literal["same", "at most", "at least", "url", "key", "any"]
"""How a configured value is compared with the one wanted; a key by using it; any: the client may change it."""


class EditError(ValueError):
    """A file cannot be changed as wanted; the text says why, without the file's name."""


@dataclass(frozen=True)
class Member:
    """The element of a list that is an object whose field `key` is `value`."""

    key: str
    value: str

    def __str__(self) -> str:
        return f"[{self.key}={self.value}]"


Step = str | Member
Place = tuple[Step, ...]
"""The way from a file's root to a value."""


def spelled(place: Place) -> str:
    """A place to be read."""
    return ".".join(str(step) for step in place).replace(".[", "[")


class Missing:
    """There is no value."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


@dataclass(frozen=True)
class Edit:
    """One value to set."""

    place: Place
    value: Any
    check: Check = "same"
    bound: float | None = None
    """What `check` compares with where that is not `value`."""


@dataclass(frozen=True)
class FilePlan:
    """What to set in one file."""

    file: Path
    format: Format
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Plan:
    """All that connects a client."""

    files: tuple[FilePlan, ...]
    exports: tuple[tuple[str, str], ...] = ()
    """Variables (name, shell word) that must be in the client's environment besides."""
    instead: tuple[tuple[str, str], ...] = ()
    """Variables (name, value) that do the same as the files."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What the daemon says.  Lengths in tokens."""

    url: str
    """Of the daemon, without /v1 and without a slash at the end."""
    model: str
    context: int
    safe_context: int
    output: int
    key: str | None = field(default=None, repr=False)
    """The API key to send; None where none is asked for."""
    key_word: str = ""
    """A shell word that gives the key."""

    @property
    def v1(self) -> str:
        """The base URL for who wants it with /v1."""
        return f"{self.url}/v1"


KEY_VARIABLE = CLIENT_KEY
NO_KEY = "lcpd"
"""For clients that insist on some key."""
PATIENCE_MS = 1_800_000
"""How long clients are to wait: a prefill on a modest machine takes minutes."""
