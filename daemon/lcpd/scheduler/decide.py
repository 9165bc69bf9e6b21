"""What to do next: one pure decision at a time, until there is nothing to do.

    a request is    and                                                            then
    ------------    ---                                                            ----
    waiting         waited `queue_timeout` without a start                         Expire
    anticipation,   others run or wait, the engine is down, or it would cost       Drop
    waiting         others what their slots hold
    anticipation,   others run or wait                                             Stop, and nothing else until the
    running                                                                        engine confirms
    next in line    a suspect of a crash runs and is not past where it stood       it waits, and all behind it
    next in line    another one is computing what it shares                        Follow -> following
    next in line    what it needs is being exported to RAM, or read from disk      it waits for that, others may pass
    next in line    an idle slot and cells are there                               Launch -> running
    next in line    cells are held by idle slots                                   Evict one of them, look again
    next in line    it is interactive, background ones hold what it needs          Park the youngest of them, look again
    next in line    nothing of that                                                it waits, and all behind it
    following       the common part is computed, or the leader has left its slot,  waiting, in its old place
                    or the deadline is over
    running         replies need more cells than there are, idle slots hold some   Evict one of these, look again
    running         the same without idle slots, and it is not the last one:       Park -> parking
                    background before interactive, the youngest first
    parking         the engine confirms                                            waiting, before those of its class
                                                                                   that never ran
    running         Finished or Failed                                             over

The order in which requests are next in line is that of :mod:`lcpd.scheduler.queue`.  Time comes in as `now`.

An anticipation (a prompt of kind "prefill") never waits: it is started when it comes, or dropped.  Nothing is placed
while one is being stopped: the engine could not begin earlier, and the slot that it leaves may be the best one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from lcpd.cache.trie import common_prefix
from lcpd.scheduler import queue as q
from lcpd.scheduler.placement import Costs, Demand, Placement, place, used, victim
from lcpd.scheduler.policy import Policy
from lcpd.scheduler.slots import Known, Slot, Tokens


@dataclass(frozen=True)
class Running:
    """A request on a slot."""

    request: int
    seq: int
    tokens: Tokens
    """All that is to be computed before it samples: its prompt, and what was generated before it was parked."""
    done: int
    """Of these, how many the slot holds."""
    background: bool
    waited: float
    """Seconds that it spent in the queue."""
    started: bool
    """Whether the engine has begun with it; only then it can be parked."""
    parking: bool = False
    anticipates: bool = False
    """Whether it only prefills what may come."""
    stopping: bool = False
    """Whether it has been told to stop."""
    pending: tuple[int, ...] = ()
    """Positions of checkpoints that are still to be taken, ascending."""
    suspect: bool = False
    """Whether it may have crashed the engine, and has not got past where it stood then."""


@dataclass(frozen=True)
class Saving:
    """An export to RAM that is under way: of these tokens."""

    tokens: Tokens


@dataclass(frozen=True)
class View:
    """All that a decision depends on."""

    policy: Policy
    slots: tuple[Slot, ...]
    running: tuple[Running, ...]
    waiting: tuple[q.Waiting, ...]
    capacity: int
    """Cells."""
    rolls_back: bool
    """Whether a sequence can be truncated anywhere (pure attention)."""
    marks: bool
    """Whether checkpoints can be taken where sequences cannot be truncated."""
    known: Callable[[int], Known]
    """What RAM holds of a waiting request's tokens.  Reads only."""
    up: bool = True
    """Whether there is an engine."""
    starved: int = 0
    """Cells that the engine lacks although they should be there by our count."""
    served: Mapping[str, float] = field(default_factory=dict)
    saving: tuple[Saving, ...] = ()
    alignment: int = 1
    """Prefill is cut at multiples of this."""
    costs: Costs = field(default_factory=Costs)


@dataclass(frozen=True)
class Launch:
    """Start a waiting request."""

    request: int
    placement: Placement


@dataclass(frozen=True)
class Follow:
    """Let a waiting request wait until `leader` holds `position` tokens."""

    request: int
    leader: int
    position: int
    mark: bool
    """Whether the leader has to be told to take a checkpoint there."""
    until: float


@dataclass(frozen=True)
class Evict:
    """Save what an idle slot holds, and empty it."""

    seq: int


@dataclass(frozen=True)
class Park:
    """Take a running request off its slot, to be continued later."""

    request: int
    lack: Literal["slot", "cells"]
    """Why."""


@dataclass(frozen=True)
class Expire:
    """Give up a request that has waited too long."""

    request: int


@dataclass(frozen=True)
class Drop:
    """Give up an anticipation that has not begun."""

    request: int


@dataclass(frozen=True)
class Stop:
    """Stop an anticipation that runs."""

    request: int


Action = Launch | Follow | Evict | Park | Expire | Drop | Stop


def decide(view: View, now: float) -> Action | None:
    """The next thing to do; None when only news or time can change anything (see `next_moment`)."""
    if late := q.expired(view.waiting, view.policy.queue_timeout, now):
        return Expire(late.request)
    if action := _anticipate(view):
        return action
    if any(one.stopping for one in view.running):
        return None
    if not view.up:
        return None
    if view.starved or used(view.slots) > view.capacity:
        return _relieve(view)
    return _serve(view, now)


def _anticipate(view: View) -> Action | None:
    """What becomes of anticipations."""
    waiting = next((one for one in view.waiting if one.anticipates), None)
    running = next((one for one in view.running if one.anticipates and not one.stopping), None)
    if waiting is None and running is None:
        return None
    if not all(one.anticipates for one in view.waiting) or not all(one.anticipates for one in view.running):
        if waiting is not None:
            return Drop(waiting.request)
        return Stop(running.request) if running is not None else None
    if waiting is None:
        return None
    placement = None
    if view.up:
        demand, known = Demand(waiting.tokens, waiting.reserve, samples=False), view.known(waiting.request)
        placement = place(view.slots, demand, known, view.rolls_back, view.capacity, view.costs, modest=True)
    return Launch(waiting.request, placement) if placement else Drop(waiting.request)


def next_moment(view: View, now: float) -> float | None:
    """When `decide` may answer otherwise though nothing has happened; None: never."""
    moments = []
    for one in view.waiting:
        if not one.begun:
            moments.append(one.start + view.policy.queue_timeout)
        if one.background:
            moments.append(one.start + view.policy.ageing)
        if one.following and one.follow_until is not None:
            moments.append(one.follow_until)
    return min((moment for moment in moments if moment > now), default=None)


def follows(one: q.Waiting, view: View, now: float) -> bool:
    """Whether it still waits for its leader."""
    if one.following is None or one.follow_until is None or now >= one.follow_until:
        return False
    leader = next((r for r in view.running if r.request == one.following.leader), None)
    if leader is None or leader.parking:
        return False
    position = one.following.position
    return leader.done < position or position in leader.pending


def _relieve(view: View) -> Action | None:
    """Running replies lack cells."""
    if slot := victim(view.slots):
        return Evict(slot.seq)
    if any(one.parking for one in view.running) or len(view.running) < 2:
        return None
    return _park(view, view.running, "cells")


def _park(view: View, among: Sequence[Running], lack: Literal["slot", "cells"]) -> Park | None:
    """The one whose work is the least urgent; nothing while the engine has not begun with it."""
    worst = max(among, key=lambda one: (_is_background(view, one), one.request))
    return Park(worst.request, lack) if worst.started else None


def _is_background(view: View, one: Running) -> bool:
    return one.background and one.waited < view.policy.ageing


def _serve(view: View, now: float) -> Action | None:
    if any(one.suspect for one in view.running):
        return None
    line = q.in_order(view.waiting, view.served, view.policy.ageing, now)
    suspect = q.next_suspect(line)
    for one in [suspect] if suspect else line:
        if one.blocked or follows(one, view, now):
            continue
        demand = Demand(one.tokens, one.reserve)
        known = view.known(one.request)
        placement = place(view.slots, demand, known, view.rolls_back, view.capacity, view.costs)
        if placement is None:
            return _make_way(view, one, demand, known, now)
        if follow := _follow(view, one, placement.resume.begin, now):
            return follow
        if _is_being_saved(view, one.tokens, placement.resume.begin):
            continue
        if placement.evict:
            return Evict(placement.evict[0])
        return Launch(one.request, placement)
    return None


def _make_way(view: View, one: q.Waiting, demand: Demand, known: Known, now: float) -> Action | None:
    """An interactive request that finds no room takes that of background ones, if this is enough."""
    if one.is_background(view.policy.ageing, now):
        return None
    if any(other.parking for other in view.running):
        return None
    background = [other for other in view.running if _is_background(view, other)]
    if not background:
        return None
    idle = {other.seq for other in background}
    slots = [replace(slot, request=None) if slot.seq in idle else slot for slot in view.slots]
    enough = place(slots, demand, known, view.rolls_back, view.capacity, view.costs) is not None
    lack: Literal["slot", "cells"] = "slot" if all(slot.busy for slot in view.slots) else "cells"
    return _park(view, background, lack) if enough else None


def _follow(view: View, one: q.Waiting, begin: int, now: float) -> Follow | None:
    """The request that is computing most of what this one would have to compute from `begin` on."""
    until = now + view.policy.follow_timeout if one.follow_until is None else one.follow_until
    if now >= until or not (view.rolls_back or view.marks):
        return None
    background = one.is_background(view.policy.ageing, now)
    best: Follow | None = None
    for leader in view.running:
        if leader.parking or leader.done >= len(leader.tokens) or _is_background(view, leader) > background:
            continue
        position, mark = _meeting(view, one.tokens, leader)
        if position - begin >= view.policy.follow_min and (best is None or position > best.position):
            best = Follow(one.request, leader.request, position, mark, until)
    return best


def _meeting(view: View, tokens: Tokens, leader: Running) -> tuple[int, bool]:
    """The last position that a request can share with a leader once it is computed; 0: none.

    And whether a checkpoint has to be ordered for that.
    """
    common = meeting_point(tokens, leader.tokens, alignment=1)
    if view.rolls_back:
        return (common if common > leader.done else 0), False
    planned = max((at for at in leader.pending if at <= common), default=0)
    ordered = meeting_point(tokens, leader.tokens, view.alignment)
    if ordered > leader.done and ordered - planned >= view.policy.follow_min:
        return ordered, True
    return planned, False


def meeting_point(one: Tokens, other: Tokens, alignment: int) -> int:
    """How much two prompts share, at least the last token of either left out; rounded down to the alignment."""
    common = min(common_prefix(one, other), len(one) - 1, len(other) - 1)
    return common - common % alignment


def _is_being_saved(view: View, tokens: Tokens, begin: int) -> bool:
    return any(
        min(common_prefix(tokens, saving.tokens), len(tokens) - 1) - begin >= view.policy.follow_min
        for saving in view.saving
    )
