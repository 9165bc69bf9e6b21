"""The dispatcher's one hand: carries decisions out by changing the state and sending commands."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import assert_never

import numpy as np

from lcpd.cache.isolation import plain
from lcpd.engine import protocol as p
from lcpd.engine.supervisor import NotReadyError
from lcpd.metrics import Metrics
from lcpd.scheduler import decide as d
from lcpd.scheduler.generation import Done, QueueTimedOut
from lcpd.scheduler.placement import Demand, Placement
from lcpd.scheduler.policy import EDIT_WORTH_SAVING
from lcpd.scheduler.queue import Following
from lcpd.scheduler.report import Facts, report
from lcpd.scheduler.request import Request, Stay
from lcpd.scheduler.retries import Retries
from lcpd.scheduler.slots import Resume
from lcpd.scheduler.state import State
from lcpd.scheduler.tally import Tally

log = logging.getLogger(__name__)
_CLIENTS_REMEMBERED = 1024


class Actions:
    """Everything that is sent to the engine goes through here."""

    def __init__(
        self,
        model: str,
        state: State,
        send: Callable[[p.ToWorker], None],
        metrics: Metrics,
        tally: Tally,
        retries: Retries,
    ) -> None:
        """`send` raises NotReadyError while there is no engine."""
        self._model = model
        self._state = state
        self._send = send
        self._metrics = metrics
        self._tally = tally
        self._retries = retries

    def perform(self, action: d.Action, now: float) -> None:
        """Carry out one decision."""
        requests = self._state.requests
        match action:
            case d.Launch(request, placement):
                self._launch(requests[request], placement, now)
            case d.Follow():
                self._follow(requests[action.request], action, now)
            case d.Evict(seq):
                self._evict(seq)
            case d.Park(request, lack):
                self._park(requests[request], lack)
            case d.Expire(request):
                self._expire(requests.pop(request), now)
            case d.Drop(request):
                self._drop(requests.pop(request))
            case d.Stop(request):
                self._stop(requests[request])
            case _:
                assert_never(action)

    def cancel(self, request: Request) -> None:
        """Stop a request that the engine runs or keeps parked."""
        self._try_send(p.Cancel(self._model, request.id))

    def _launch(self, request: Request, placement: Placement, now: float) -> None:
        prompt, resume, seq = request.prompt, placement.resume, placement.seq
        state = self._state
        demand = Demand(request.tokens, request.admission(state.table.capacity), samples=not request.anticipates)
        if request.cached is None:
            request.report = report(self._facts(request), placement, prompt.name, prompt.normalised)
        segments, piece = state.keeper.read(
            request.id, request.tokens, resume, hit=not request.anticipates, store=prompt.store
        )
        self._save_what_is_lost(seq, resume)
        state.keeper.set_private(seq, not prompt.store)
        room = state.keeper.plan(request.id, prompt.spans, resume.begin)
        self._plan_meetings(request, resume.begin, room)
        state.table.start(request.id, placement, demand)
        request.waited += now - request.since
        request.course.enter("restore", now)
        request.stay = Stay(seq, request.tokens, resume, now, done=resume.begin, saved_at=now)
        request.stay.exported = state.keeper.covered(request.tokens)
        request.following = None
        request.attempts += not request.parked
        request.parked = False
        if not request.anticipates:
            self._served(prompt.client, now)
        self._try_send(
            p.Start(
                model=self._model,
                request=request.id,
                seq=seq,
                tokens=p.pack(plain(prompt.tokens)),
                begin=resume.begin,
                source=resume.source,
                shared=resume.shared,
                segments=segments,
                restore=piece,
                checkpoints=room,
                fields=prompt.sampling,
                max_tokens=prompt.max_tokens,
                min_tokens=prompt.min_tokens,
                priority=self._priority(request),
                reply=p.pack(np.array(request.generated, np.int32)),
            )
        )

    def _facts(self, request: Request) -> Facts:
        state = self._state
        return Facts(
            tokens=request.tokens,
            spans=request.prompt.spans,
            slots=list(state.table),
            known=state.keeper.known(request.tokens),
            past=state.keeper.past(request.tokens),
            rolls_back=state.keeper.rolls_back,
            fetched=request.fetched,
        )

    def _priority(self, request: Request) -> int:
        if request.anticipates:
            return 2
        return int(request.background and request.waited < self._state.policy.ageing)

    def _plan_meetings(self, request: Request, begin: int, room: dict[int, p.Extent]) -> None:
        """Add to `room` checkpoints where waiting requests part from this one: they are going to follow it.

        A Mark, once it is known that they do, could come after the prefill has passed that place.
        """
        state = self._state
        if not state.keeper.takes_checkpoints:
            return
        for other in state.waiting:
            position = d.meeting_point(request.tokens, other.tokens, state.keeper.alignment)
            if other is request or position in room or position - begin < state.policy.follow_min:
                continue
            if (extent := state.keeper.mark(request.id, position)) is not None:
                room[position] = extent

    def _served(self, client: str, now: float) -> None:
        served = self._state.served
        served.pop(client, None)
        served[client] = now
        if len(served) > _CLIENTS_REMEMBERED:
            del served[next(iter(served))]

    def _save_what_is_lost(self, seq: int, resume: Resume) -> None:
        """Export what a Start is about to overwrite, unless it is not worth it."""
        slot = self._state.table[seq]
        kept = resume.shared if resume.source == seq else 0
        lost = len(slot.tokens) - kept
        if lost >= (EDIT_WORTH_SAVING if kept > lost else 1):
            self._save(seq)

    def _save(self, seq: int) -> None:
        if self._state.table.alone(seq):  # otherwise another slot holds all of it
            self.save(seq)

    def save(self, seq: int, early: bool = False) -> None:
        """Export what an idle slot holds and RAM does not; `early`: its place is not needed yet."""
        if save := self._state.keeper.save(self._model, seq, self._state.table[seq].tokens, early):
            self._try_send(save)

    def save_front(self, request: Request, stay: Stay, end: int) -> None:
        """Export the first `end` tokens of a running request, as far as RAM lacks them."""
        if save := self._state.keeper.save_front(self._model, stay.seq, request.all_tokens[:end]):
            self._try_send(save)

    def order_checkpoint(self, request: Request, position: int) -> None:
        """Let a running reply leave a checkpoint; an order before that came too late is forgotten."""
        keeper = self._state.keeper
        keeper.passed(request.id, request.length)
        if keeper.pending(request.id) or not keeper.affordable(0, checkpoint=True):
            return
        if (extent := keeper.mark(request.id, position)) is not None:
            self._try_send(p.Mark(self._model, request.id, position, extent))

    def forget(self) -> None:
        """Empty all idle slots without saving them, and keep nothing of what is being saved."""
        self._state.keeper.forget_exports()
        for slot in list(self._state.table):
            if not slot.busy and len(slot.tokens):
                self._state.table.empty(slot.seq)
                self._try_send(p.Clear(self._model, slot.seq))

    def _evict(self, seq: int) -> None:
        table = self._state.table
        self._save(seq)
        self._state.starved = max(0, self._state.starved - table.alone(seq))
        table.empty(seq)
        self._metrics.engine.slot_evictions.inc()
        self._try_send(p.Clear(self._model, seq))

    def _park(self, request: Request, lack: str) -> None:
        assert request.stay is not None, "only a running request is parked"
        request.stay.parking = True
        self._metrics.requests.preemptions.labels(lack).inc()
        self._try_send(p.Park(self._model, request.id))

    def _follow(self, request: Request, action: d.Follow, now: float) -> None:
        request.following, request.follow_until = Following(action.leader, action.position), action.until
        self._metrics.requests.follows.inc()
        if not action.mark:
            return
        extent = self._state.keeper.mark(action.leader, action.position)
        if extent is None:
            # Without a checkpoint there will be nothing to join at.
            request.following, request.follow_until = None, now
        else:
            self._try_send(p.Mark(self._model, action.leader, action.position, extent))

    def _drop(self, request: Request) -> None:
        if request.parked:
            self.cancel(request)
        request.generation.emit(
            Done("cancelled", "", "", cached=0, generated=0, prefill_seconds=0.0, decode_seconds=0.0)
        )

    def _stop(self, request: Request) -> None:
        assert request.stay is not None, "only a running request is stopped"
        request.stay.stopping = True
        self.cancel(request)

    def _expire(self, request: Request, now: float) -> None:
        self._tally.over(request, "timed-out", now)
        self._retries.left(request, now)
        waited = now - request.since + request.waited
        request.generation.emit(
            QueueTimedOut(
                f"no slot was free for this request for {waited:.0f} s (scheduler.queue_timeout)",
                self._state.retry_after(),
            )
        )

    def _try_send(self, message: p.ToWorker) -> None:
        try:
            self._send(message)
        except NotReadyError:
            # The supervisor is about to report the death, which settles everything that ran.
            log.debug("not sent, the engine is down: %s", type(message).__name__)
