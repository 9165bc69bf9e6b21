"""What is worth keeping: expected seconds saved per byte.  Pure.

Dropping the KV of n tokens means computing them again some day; dropping a checkpoint means going on from the one
before it; dropping from RAM what is on disk too means reading it.  How likely that day is comes from how recently and
how often the path was used and how many paths go through it.  The structure that a worth knows nothing of (deepest
segments first) is the caller's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["segment", "checkpoint"]


@dataclass(frozen=True)
class Candidate:
    """A payload that could be dropped."""

    kind: Kind
    bytes: int
    tokens: int
    """Those that would have to be computed again: of a segment its own, of a checkpoint those since the one before."""
    last_used: float
    """Seconds, on the clock of `now`."""
    hits: int
    """Requests that came along here."""
    branches: int
    """Paths that go on from here; 0 at the end of what is known."""
    outrun: bool = False
    """A checkpoint only: there are others further along, so that a request that goes on needs this one only where it
    turns off in between."""
    on_disk: bool = False
    """Whether it can be read from disk instead of being computed."""


@dataclass(frozen=True)
class Economics:
    """What the machine and its users are like."""

    seconds_per_token: float = 1e-3
    """Prefill."""
    soon: float = 60.0
    """Seconds since its last use within which a path is about as likely to be used again at any moment; from then on
    that falls off as one over the time, because returns have a long tail: tools answer in seconds, people in minutes
    or after lunch."""
    read_speed: float = 500e6
    """Bytes a second that come from disk."""
    turn_off: float = 0.125
    """How often, compared with going on to the end, a request turns off behind a checkpoint that others outrun."""


def worth(candidate: Candidate, now: float, economics: Economics) -> float:
    """Seconds that keeping the payload is expected to save, per byte."""
    saved = candidate.tokens * economics.seconds_per_token
    if candidate.on_disk:
        saved = min(saved, candidate.bytes / economics.read_speed)
    age = max(0.0, now - candidate.last_used)
    chance = math.log2(2 + candidate.hits + candidate.branches) * economics.soon / (age + economics.soon)
    if candidate.outrun and candidate.branches < 2:
        chance *= economics.turn_off
    return chance * saved / candidate.bytes
