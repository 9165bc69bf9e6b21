"""Who is served next: pure decisions about the requests that have no slot.

    1. interactive requests before background ones; a background one that waited for `ageing` seconds in all counts as
       interactive from then on;
    2. in a class, those that were started before (parked, or run again after a crash) come first;
    3. clients take turns: the one served longest ago is next; one that was never served came in line when its first
       request did;
    4. the requests of a client, first come, first served.

While there are suspects of a crash (:mod:`lcpd.scheduler.recovery`), they alone are in line, see `next_suspect`.
Nobody is passed over for ever: whoever waits becomes interactive, and each client that is served goes behind all that
wait by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lcpd.scheduler.slots import Tokens


@dataclass(frozen=True)
class Following:
    """A wait for another request to compute what both share, up to `position`."""

    leader: int
    position: int


@dataclass(frozen=True)
class Waiting:
    """A request without a slot.  Times in monotonic seconds."""

    request: int
    tokens: Tokens
    """Prompt, and what was generated before it was parked."""
    reserve: int
    """Cells that it has to find when it is started."""
    arrived: float
    since: float
    """When it came into the queue, this time."""
    waited: float = 0.0
    """Seconds in the queue before that."""
    background: bool = False
    client: str = ""
    begun: bool = False
    """Whether it was started before."""
    following: Following | None = None
    follow_until: float | None = None
    """Deadline of all its following; None before the first."""
    anticipates: bool = False
    """Whether it only prefills what may come; never in line."""
    blocked: bool = False
    """Whether its state is being read from disk, or an earlier try of it is still being stopped: others may pass."""
    suspicion: tuple[int, ...] = ()
    """What speaks for its having crashed the engine; nothing but zeros: nothing does."""

    @property
    def start(self) -> float:
        """When it would have come if all its stays in the queue had been one."""
        return self.since - self.waited

    def is_background(self, ageing: float, now: float) -> bool:
        """Its class now.  Once it counts as interactive it does for good, also while it runs."""
        return self.background and now < self.start + ageing


def in_order(waiting: Iterable[Waiting], served: Mapping[str, float], ageing: float, now: float) -> list[Waiting]:
    """All that wait, the next one first.  `served`: when each client was last served."""
    everyone = list(waiting)
    turn = dict(served)
    for one in everyone:
        if one.client not in served:
            turn[one.client] = min(one.arrived, turn.get(one.client, one.arrived))
    # A client's second request takes the turn after its first: as if the first had been served just now.
    seen: dict[tuple[bool, str], int] = {}
    ranked = []
    for one in sorted(everyone, key=lambda w: w.request):
        background = one.is_background(ageing, now)
        round_ = 0 if one.begun else seen.get((background, one.client), 0)
        if not one.begun:
            seen[background, one.client] = round_ + 1
        ranked.append(((background, not one.begun, round_, 0.0 if one.begun else turn[one.client], one.request), one))
    return [one for _, one in sorted(ranked, key=lambda pair: pair[0])]


def next_suspect(ordered: Iterable[Waiting]) -> Waiting | None:
    """The most suspicious of those in line, the first among equals; None where nobody is suspect."""
    suspects = [one for one in ordered if any(one.suspicion)]
    return max(suspects, key=lambda one: one.suspicion, default=None)


def expired(waiting: Iterable[Waiting], timeout: float, now: float) -> Waiting | None:
    """One that has waited too long for its first start."""
    return next((one for one in waiting if not one.begun and now >= one.start + timeout), None)
