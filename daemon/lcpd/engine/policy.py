"""When a worker counts as hung, and when and whether to start it again: pure decisions, time comes in as an argument.

Times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from lcpd.engine.protocol import Beat

KILLS_FOR_A_CRASH = 5
"""SIGKILL comes from outside, and says little about the worker: so many deaths by it count as one crash."""


@dataclass(frozen=True)
class Death:
    """The end of one life of the worker."""

    at: float
    computed: bool = False
    """Whether it had computed something for a request: a batch of a prompt, or a token."""
    killed: bool = False
    """Whether it was killed by somebody else."""


@dataclass(frozen=True)
class RestartPolicy:
    """Exponential back-off, and a limit on how often.

    a death                                  counts
    -------                                  ------
    after something was computed             nothing, nor do those before it: the engine works, and a request that
                                             kills it is found (:mod:`lcpd.scheduler.recovery`)
    longer ago than `crash_window`           nothing
    by SIGKILL from outside                  a fifth of a crash
    any other                                one crash
    """

    backoff: float = 0.5
    """Before the first restart; doubles with every crash that counts."""
    backoff_max: float = 30.0
    crash_limit: int = 5
    """Crashes that make a crash loop."""
    crash_window: float = 120.0

    def delay(self, deaths: Sequence[Death], now: float) -> float | None:
        """How long to wait before starting again after these deaths; None: it is a crash loop, give up."""
        fruitless = list(takewhile(lambda death: not death.computed, reversed(deaths)))
        recent = [death for death in fruitless if now - death.at <= self.crash_window]
        kills = sum(death.killed for death in recent)
        crashes = len(recent) - kills + kills // KILLS_FOR_A_CRASH
        if crashes >= self.crash_limit:
            return None
        return min(self.backoff * 2.0 ** max(0, crashes - 1), self.backoff_max)


@dataclass
class Watchdog:
    """Follows a loaded worker's beats.

    A beat is sent by the decode loop between two batches, so silence means that a batch does not end.  Beats whose
    counters stand still although requests run mean a loop that turns without getting anywhere.
    """

    timeout: float
    heard: float
    """When the last beat came."""
    moved: float = field(init=False)
    """When the counters last grew, or nothing was running."""
    _batches: int = -1

    def __post_init__(self) -> None:
        self.moved = self.heard

    def hear(self, beat: Beat, now: float) -> None:
        """A beat has arrived."""
        self.heard = now
        if beat.batches != self._batches or beat.running == 0:
            self.moved = now
            self._batches = beat.batches

    def late(self, now: float) -> bool:
        """Whether the worker is slow enough to be called degraded: a quarter of the timeout without progress."""
        return now - min(self.heard, self.moved) > self.timeout / 4

    def verdict(self, now: float) -> str | None:
        """Why the worker is to be killed, or None while it is well."""
        if now - self.heard > self.timeout:
            return f"no sign of life from the decode loop for {now - self.heard:.0f} s (engine.heartbeat_timeout)"
        if now - self.moved > self.timeout:
            return f"requests run but no batch was decoded for {now - self.moved:.0f} s (engine.heartbeat_timeout)"
        return None
