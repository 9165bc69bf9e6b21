"""How the disk tier does, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from lcpd.cache.retention import Kind

State = Literal["waiting", "opening", "ok", "degraded"]
"""See :mod:`lcpd.cache.tier`."""
DROPPED = ("room", "discarded", "corrupt", "purged")
"""Why pieces go from RAM: for want of room; the engine found them damaged; the daemon did; an admin said so."""
DAMAGES = ("truncated", "damaged", "swapped", "unreadable")
"""Why files are removed that are not what was stored."""
DISK_REASONS = (
    "room",
    "expired",
    "purged",
    "foreign",
    "stale",
    "missing",
    "truncated",
    "damaged",
    "swapped",
    "fingerprint",
    "unreadable",
    "unlinked",
    "orphan",
    "index",
)
"""Why files are removed: see docs/cache.md."""


@dataclass(frozen=True)
class Amount:
    """Pieces of a kind."""

    count: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class RamFigures:
    """What the prompt cache holds in RAM now.  Sizes in bytes."""

    size: int
    used: int
    """Each extent rounded up to the arena's alignment."""
    held: Mapping[Kind, Amount]
    reserved: int
    """Promised to commands in flight."""
    lingering: int
    """No longer offered, but a command in flight still reads them."""
    fragmentation: float
    """The share of the free bytes that lies outside of the largest free run."""
    dropped: Mapping[tuple[Kind, str], int]
    """Pieces that went since the start, by kind and reason."""
    paths: int
    """Token paths that nothing goes on from."""
    path_tokens: int
    """Of all of them, each by itself."""
    tokens: int
    """Of all of them, what they share once."""


class Ages(Protocol):
    """Who wants to know how old what is evicted or used again is.  Seconds."""

    def evicted(self, kind: Kind, lifetime: float, idle: float) -> None:
        """A piece went for want of room that was kept for `lifetime` and not used for `idle`."""

    def used_again(self, gap: float) -> None:
        """A kept path, and not only the few tokens that any two share, was used `gap` after the last time."""


@dataclass(frozen=True)
class Limits:
    """What the settings say.  Sizes in bytes, times in seconds; 0 = no limit, except for `size` and `floor`."""

    size: int
    floor: int = 0
    """Bytes that stay free on the file system."""
    budget: int = 0
    """Written in 24 hours."""
    ttl: float = 0.0
    """Since the last use."""
    interval: int = 8192
    """Tokens between the checkpoints of a long prompt."""
    retry: float = 5.0
    """Until a disk that failed is tried again the first time."""


@dataclass(frozen=True)
class DiskCounts:
    """What happened since the start."""

    written: int = 0
    """Bytes."""
    read: int = 0
    """Bytes."""
    read_seconds: float = 0.0
    removed: Mapping[str, int] = field(default_factory=dict)
    """Files, by reason."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Pieces that were not written, by reason."""


@dataclass(frozen=True)
class DiskStats:
    """How it does now."""

    state: State
    reason: str
    """Why it is degraded; "": it is not."""
    size: int
    """Bytes that it may take up."""
    used: int
    """Bytes that it takes up, index and all."""
    files: int
    held: Mapping[Kind, Amount]
    """Of the files, what is in them and what they take up."""
    queue: int
    """Paths that wait to be written."""
    lag: float
    """Seconds for which the first of them has been waiting."""
    written_today: int
    """Bytes, in the last 24 hours."""
    budget: int
    """Bytes that may be written in 24 hours; 0: no limit."""
    counts: DiskCounts


@dataclass(frozen=True)
class Purged:
    """What was removed."""

    files: int
    bytes: int
