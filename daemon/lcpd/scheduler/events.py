"""What a generation tells its consumer."""

from __future__ import annotations

from dataclasses import dataclass

from lcpd.engine.protocol import Reason, TokenProbs
from lcpd.scheduler.report import NOTHING, CacheReport


@dataclass(frozen=True)
class Begun:
    """The prompt runs; the first `cached` of its tokens need not be computed.  Said once."""

    cached: int
    report: CacheReport = NOTHING
    """Where its tokens come from, and why those that are computed are not among them."""


@dataclass(frozen=True)
class Progress:
    """`done` of the prompt's tokens are computed."""

    done: int


@dataclass(frozen=True)
class Text:
    """Sampled tokens, and the text that can be shown now."""

    tokens: tuple[int, ...]
    text: str
    probs: tuple[TokenProbs, ...] = ()
    """One for each token where the request asked for them."""


@dataclass(frozen=True)
class Done:
    """The reply is complete.  Times in seconds."""

    reason: Reason
    text: str
    """The rest of the text."""
    stop: str
    """The stop string that ended it, or ""."""
    cached: int
    generated: int
    prefill_seconds: float
    decode_seconds: float


Event = Begun | Progress | Text | Done
