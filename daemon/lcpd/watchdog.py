"""Whether the daemon is stuck, as the service manager's watchdog is to be told: pure decisions, time comes in.

    work        engine                          healthy
    ----        ------                          -------
    absent      whatever it does                always: an idle daemon does nothing
    present     ready, degraded                 while batches are decoded; the supervisor kills a worker that hangs, so
                                                a longer standstill means that the daemon itself has lost the work
    present     starting, loading, restarting   while the supervisor keeps its own time-outs
    present     sleeping                        until it should have been woken
    present     failed, stopped                 always: requests are answered, with the reason

That the event loop answers is not decided here: nobody is told anything while it does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lcpd.config.settings import EngineSettings
from lcpd.engine.supervisor import State

_MARGIN = 30.0
"""Seconds on top of what the supervisor allows itself."""


@dataclass(frozen=True)
class Facts:
    """What the daemon is at.  While there is work and none of it changes, nothing happens."""

    work: bool
    """Whether requests run or wait."""
    state: State
    progress: float
    """Of loading, 0 to 1."""
    batches: int
    """Decoded by the worker."""


@dataclass(frozen=True)
class Sight:
    """The facts, and since when they are what they are, in seconds of a monotonic clock."""

    facts: Facts
    since: float


def look(before: Sight | None, facts: Facts, now: float) -> Sight:
    """The facts as they are seen now, after what was seen before."""
    return before if before is not None and before.facts == facts else Sight(facts, now)


def limits(engine: EngineSettings) -> Mapping[State, float]:
    """Seconds for which nothing may change in a state while there is work; no limit where none is given."""
    decoding = 2 * engine.heartbeat_timeout + engine.stop_timeout + _MARGIN
    return {
        State.STARTING: engine.start_timeout + engine.stop_timeout + _MARGIN,
        State.LOADING: engine.load_timeout + engine.stop_timeout + _MARGIN,
        State.READY: decoding,
        State.DEGRADED: decoding,
        State.RESTARTING: engine.restart_backoff_max + _MARGIN,
        State.SLEEPING: engine.stop_timeout + 2 * _MARGIN,
    }


def stuck(sight: Sight, allowed: Mapping[State, float], now: float) -> str | None:
    """What has come to a standstill; None while the daemon is healthy."""
    facts, quiet = sight.facts, now - sight.since
    limit = allowed.get(facts.state)
    if not facts.work or limit is None or quiet <= limit:
        return None
    return f"requests are there, but nothing has happened for {quiet:.0f} s while the engine is {facts.state}"


class Lookout:
    """Looks at the facts again and again; calling it says what is stuck."""

    def __init__(self, facts: Callable[[], Facts], allowed: Mapping[State, float]) -> None:
        """`allowed`: see `limits`."""
        self._facts = facts
        self._allowed = allowed
        self._sight: Sight | None = None

    def __call__(self) -> str | None:
        """What has come to a standstill; None while the daemon is healthy."""
        now = time.monotonic()
        self._sight = look(self._sight, self._facts(), now)
        return stuck(self._sight, self._allowed, now)
