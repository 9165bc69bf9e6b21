"""When a request was in which phase: what its latencies and its trace are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Phase = Literal["waiting", "restore", "prefill", "decode"]
"""waiting: it has no slot; restore: it has one, and is brought to where computing begins; prefill: up to the first
token of its time on the slot; decode: from there on.  A request that is parked, or runs again after a crash, goes
through them again."""


@dataclass(frozen=True)
class Passed:
    """A time in one phase.  Monotonic seconds."""

    phase: Phase
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.end - self.begin


@dataclass
class Course:
    """The phases of one request up to now.  Times are monotonic seconds that come in from outside."""

    begin: float
    """When it came into the queue."""
    phase: Phase = "waiting"
    passed: list[Passed] = field(default_factory=list)
    """What lies behind it, in order."""
    first_token: float | None = None
    last_token: float | None = None
    """When the first and the last token came so far."""
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        self._since = self.begin

    def enter(self, phase: Phase, now: float) -> None:
        """It is in this phase from `now` on."""
        if phase != self.phase:
            self.close(now)
            self.phase = phase

    def close(self, now: float) -> None:
        """Its time in this phase is over."""
        self.passed.append(Passed(self.phase, self._since, now))
        self._since = now

    def seconds(self, phase: Phase) -> float:
        """How long it was in a phase, all times together that lie behind it."""
        return sum(one.seconds for one in self.passed if one.phase == phase)
