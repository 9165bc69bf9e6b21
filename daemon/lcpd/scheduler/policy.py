"""The scheduler's settings and the constants of its decisions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """How requests are queued and placed.  Times in seconds."""

    queue_size: int = 64
    """Requests that may wait for their first start; further ones are refused."""
    queue_timeout: float = 600.0
    """How long one may wait for its first start."""
    ageing: float = 30.0
    """A background request that waited so long counts as interactive."""
    follow_timeout: float = 120.0
    """How long a request waits for others to compute what it shares with them, all waits together."""
    follow_min: int = 128
    """Tokens that such a wait must save."""
    checkpoints: int = 8
    """Checkpoints that one start takes at most, on models that need them."""
    checkpoint_interval: int = 8192
    """Tokens between two checkpoints of a long prefill."""
    save_after: float = 5.0
    """What a slot holds is saved to RAM when it has been idle for so long; 0: not before its place is needed."""
    save_every: float = 30.0
    """The tail of a running reply is saved so often; 0: never."""
    retry_grace: float = 0.0
    """The reply of a client that went away is remembered for so long, for its retry; 0: not at all."""


def admission_growth(cells: int) -> int:
    """Tokens of reply for which a request must find room before it is started.

    More than `RUNNING_GROWTH`, so that one which is started does not have to be parked right away.
    """
    return min(256, max(RUNNING_GROWTH, cells // 64))


RUNNING_GROWTH = 16
"""Tokens for which a running reply has to have room: what can be sampled before the scheduler hears of it."""
EDIT_WORTH_SAVING = 256
"""A slot's own next turn drops some tokens of the last one; fewer than so many are not worth an export."""
