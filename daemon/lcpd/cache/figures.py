"""How the disk tier does, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

State = Literal["waiting", "opening", "ok", "degraded"]
"""See :mod:`lcpd.cache.tier`."""
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
    queue: int
    """Paths that wait to be written."""
    lag: float
    """Seconds for which the first of them has been waiting."""
    written_today: int
    """Bytes, in the last 24 hours."""
    counts: DiskCounts


@dataclass(frozen=True)
class Purged:
    """What was removed."""

    files: int
    bytes: int
