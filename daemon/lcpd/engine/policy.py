"""When a worker counts as hung, and when and whether to start it again: pure decisions, time comes in as an argument.

Times are seconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lcpd.engine.protocol import Beat


@dataclass(frozen=True)
class RestartPolicy:
    """Exponential back-off, and a limit on how often."""

    backoff: float = 0.5
    """Before the first restart; doubles with every crash in the window."""
    backoff_max: float = 30.0
    crash_limit: int = 5
    """Crashes within the window that make a crash loop."""
    crash_window: float = 120.0

    def delay(self, crashes: list[float], now: float) -> float | None:
        """How long to wait before starting again after these crashes; None: it is a crash loop, give up."""
        recent = sum(1 for crash in crashes if now - crash <= self.crash_window)
        if recent >= self.crash_limit:
            return None
        return min(self.backoff * 2.0 ** max(0, recent - 1), self.backoff_max)


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
