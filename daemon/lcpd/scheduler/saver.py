"""Carries out what :mod:`lcpd.scheduler.saving` decides."""

from __future__ import annotations

from collections.abc import Iterator

from lcpd.scheduler import saving
from lcpd.scheduler.actions import Actions
from lcpd.scheduler.slots import Slot
from lcpd.scheduler.state import State


class Saver:
    """Looks at all sequences whenever something has happened or the time has come."""

    def __init__(self, state: State, actions: Actions) -> None:
        self._state = state
        self._actions = actions

    def look(self, now: float) -> None:
        """Save what is due."""
        state = self._state
        if not state.up or not state.keeper.saves:
            return
        for live in self._live(now):
            if not live.running and (state.keeper.exporting or state.suspects):
                continue  # one after the other; and a death is to be blamed on a suspect alone
            match saving.decide(live, state.policy, state.keeper.rolls_back, now):
                case saving.SaveIdle(seq):
                    state.table.ask(seq)
                    self._actions.save(seq, early=True)
                case saving.SaveFront(seq, end, tail):
                    self._save_front(seq, end, tail, now)
                case saving.OrderCheckpoint(seq, position):
                    self._order(seq, position, now)
                case None:
                    pass

    def next_moment(self, now: float) -> float | None:
        """When to look again."""
        if not self._state.up or not self._state.keeper.saves:
            return None
        moments = (saving.next_moment(live, self._state.policy, now) for live in self._live(now))
        return min((moment for moment in moments if moment is not None), default=None)

    def _save_front(self, seq: int, end: int, tail: bool, now: float) -> None:
        request = self._state.request_on(seq)
        assert request.stay is not None, "it runs"
        request.stay.exported = end
        if tail:
            request.stay.saved_at = now
        self._actions.save_front(request, request.stay, end)

    def _order(self, seq: int, position: int, now: float) -> None:
        request = self._state.request_on(seq)
        assert request.stay is not None, "it runs"
        request.stay.saved_at = now
        self._actions.order_checkpoint(request, position)

    def _live(self, now: float) -> Iterator[saving.Live]:
        for slot in self._state.table:
            if slot.busy:
                yield from self._running(slot, now)
            elif not slot.asked:
                yield saving.Live(slot.seq, False, False, len(slot.tokens), slot.saved, slot.last_used)

    def _running(self, slot: Slot, now: float) -> Iterator[saving.Live]:
        request = self._state.request_on(slot.seq)
        stay = request.stay
        if stay is None or not stay.started or stay.parking or request.closed:
            return
        decoding = not stay.prefilling
        yield saving.Live(
            seq=slot.seq,
            running=True,
            decoding=decoding,
            held=request.length - 1 if decoding else stay.done,
            exported=stay.exported,
            since=stay.saved_at,
            checkpoint=stay.checkpoint,
            tail=len(stay.tokens),
            ahead=max(saving.AHEAD, int(stay.sampled / (now - stay.first_token) / 2) if now > stay.first_token else 0),
        )
