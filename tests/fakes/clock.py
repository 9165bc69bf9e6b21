"""Time that passes when a test says so: a :class:`lcpd.scheduler.clock.Clock`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False)
class FakeTimer:
    """A call that is still to come, unless it was cancelled."""

    at: float
    callback: Callable[[], None] | None

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """Begins at 1000 seconds."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._timers: list[FakeTimer] = []

    def now(self) -> float:
        return self._now

    def call_later(self, seconds: float, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(self._now + seconds, callback)
        self._timers.append(timer)
        return timer

    @property
    def timers(self) -> int:
        """Calls still to come."""
        return sum(timer.callback is not None for timer in self._timers)

    def advance(self, seconds: float) -> None:
        """Let time pass; timers are called when they are due."""
        end = self._now + seconds
        while due := [timer for timer in self._timers if timer.callback and timer.at <= end]:
            timer = min(due, key=lambda timer: timer.at)
            self._timers.remove(timer)
            self._now = max(self._now, timer.at)
            callback, timer.callback = timer.callback, None
            if callback:
                callback()
        self._timers = [timer for timer in self._timers if timer.callback]
        self._now = end
