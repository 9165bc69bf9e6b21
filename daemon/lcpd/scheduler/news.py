"""The dispatcher's other hand: takes in what the engine says about requests and slots, and tells the consumers."""

from __future__ import annotations

from typing import assert_never

import numpy as np

from lcpd.engine import protocol as p
from lcpd.scheduler.generation import Begun, Done, GenerationFailed, GenerationRefused, Progress, Text
from lcpd.scheduler.recovery import after_progress
from lcpd.scheduler.report import fallen_back
from lcpd.scheduler.request import Request, Stay
from lcpd.scheduler.retries import Retries
from lcpd.scheduler.slots import EMPTY, Tokens
from lcpd.scheduler.state import State
from lcpd.scheduler.tally import Tally


class News:
    """Messages about requests that are over already are passed over: they crossed with what ended these."""

    def __init__(self, state: State, tally: Tally, retries: Retries) -> None:
        self._state = state
        self._tally = tally
        self._retries = retries

    def take(self, message: p.FromWorker, now: float) -> bool:
        """Take one message in; returns whether there may be something to decide."""
        match message:
            case p.Step(outputs=outputs):
                grown = [self._on_output(output, now) for output in outputs]
                return any(grown)
            case p.Saved(seq=seq):
                self._state.keeper.saved(message)
                self._state.table.saved(seq, self._state.keeper.covered(self._state.table[seq].tokens))
                return True
            case p.Starved(cells=cells):
                self._state.starved = cells
                return True
            case p.Checkpointed():
                self._on_checkpointed(message)
                return bool(self._state.waiting)
            case p.Started() | p.Prefilled() | p.Parked() | p.Finished() | p.Failed():
                return self._on_request(message, now)
            case p.LoadProgress() | p.Loaded() | p.LoadFailed() | p.Beat() | p.Embedded():
                return False  # somebody else's business
            case _:
                assert_never(message)

    def _on_request(self, message: p.Started | p.Prefilled | p.Parked | p.Finished | p.Failed, now: float) -> bool:
        request = self._state.requests.get(message.request)
        if request is None or request.stay is None:
            return False
        match message:
            case p.Started():
                self._on_started(request, request.stay, message, now)
            case p.Prefilled():
                self._on_prefilled(request, request.stay, message)
                self._acquit(request)
                return bool(self._state.waiting)
            case p.Parked():
                self._on_parked(request, request.stay, message, now)
            case p.Finished():
                self._on_finished(request, request.stay, message, now)
            case p.Failed():
                self._on_failed(request, request.stay, message, now)
        return True

    def _on_started(self, request: Request, stay: Stay, message: p.Started, now: float) -> None:
        """The engine begins earlier than asked where it could not use what it was told to."""
        request.course.enter("prefill", now)
        stay.started, stay.done = True, message.begin
        self._state.table.began(stay.seq, message.begin)
        self._state.keeper.started(message)
        self._count_reused(request, stay, message.begin)
        if request.cached is None:
            request.cached = min(message.begin, len(request.prompt.tokens))
            self._take_report(request, message)
        if not request.told:
            assert request.report is not None, "made at the start"
            request.told = True
            request.progress = request.cached
            request.generation.emit(Begun(request.cached, request.report))
        for text in request.untold:
            request.generation.emit(text)
        request.untold = ()

    def _take_report(self, request: Request, message: p.Started) -> None:
        """The report is final now that the engine has begun."""
        assert request.report is not None, "made at the start"
        report = request.report = fallen_back(request.report, message.begin, message.problem, message.damaged)
        self._state.keep_report(report)
        self._tally.began(request, report)

    def _count_reused(self, request: Request, stay: Stay, begin: int) -> None:
        """What a prompt need not compute, by source."""
        shared = min(stay.resume.shared, begin)
        from_slot = "vram" if stay.resume.source == stay.seq else "shared"
        from_disk, upto_disk = request.fetched
        for source, upto in (
            (from_slot, shared),
            ("ram", min(begin, from_disk)),
            ("disk", min(begin, upto_disk)),
            ("ram", begin),
        ):
            self._tally.reused(request, source, upto)

    def _on_prefilled(self, request: Request, stay: Stay, message: p.Prefilled) -> None:
        done = message.done
        self._state.keeper.prefilled(done - stay.done, message.seconds)
        self._tally.prefilled(done - stay.done, message.seconds)
        stay.done = done
        self._state.table.holds(stay.seq, stay.tokens[:done])
        self._state.keeper.passed(request.id, done)
        self._tally.computed(request, done)
        told = min(done, len(request.prompt.tokens))
        if told > request.progress:
            request.progress = told
            request.generation.emit(Progress(told))

    def _on_checkpointed(self, message: p.Checkpointed) -> None:
        request = self._state.requests.get(message.request)
        stay = request.stay if request is not None else None
        if request is None or stay is None:
            self._state.keeper.checkpointed(message)
            return
        before = len(stay.tokens) - len(request.prompt.tokens)
        self._state.keeper.checkpointed(message, request.generated[before:])
        if message.piece is not None:
            stay.checkpoint = max(stay.checkpoint, message.position)

    def _acquit(self, request: Request) -> bool:
        """Whether it was a suspect until it got so far."""
        before, request.record = request.record, after_progress(request.record, request.reached)
        return before.suspect and not request.record.suspect

    def _on_output(self, output: p.Output, now: float) -> bool:
        """Returns whether the reply outgrew what was reserved for it, or the request is a suspect no more."""
        request = self._state.requests.get(output.request)
        if request is None or request.stay is None:
            return False
        stay = request.stay
        self._tally.sampled(request, len(output.tokens), now)
        if not stay.sampled:
            request.course.enter("decode", now)
            stay.first_token, stay.done = now, len(stay.tokens)
            self._state.table.holds(stay.seq, stay.tokens)
        stay.sampled += len(output.tokens)
        request.generated.extend(output.tokens)
        text = Text(tuple(output.tokens), output.text, tuple(output.probs))
        if request.recalled:
            request.said.append(text)
        request.generation.emit(text)
        table = self._state.table
        grown = table.reserve(stay.seq, request.need(table.capacity)) > 0 and table.used > table.capacity
        return self._acquit(request) or grown

    def _on_parked(self, request: Request, stay: Stay, message: p.Parked, now: float) -> None:
        self._leave(request, stay, _held(request, message.done, message.held), now)
        request.park(now, p.unpack(message.generated).tolist())
        if request.closed:  # Cancel is under way
            del self._state.requests[request.id]
            self._tally.over(request, "cancelled", now)
            self._retries.left(request, now)

    def _on_finished(self, request: Request, stay: Stay, message: p.Finished, now: float) -> None:
        del self._state.requests[request.id]
        self._leave(request, stay, _held(request, stay.done, message.held), now)
        if request.closed:
            self._retries.left(request, now)
        self._tally.over(request, message.reason, now)
        request.generation.emit(
            Done(
                reason=message.reason,
                text=message.text,
                stop=message.stop,
                cached=request.cached or 0,
                generated=message.generated,
                prefill_seconds=message.prefill_seconds,
                decode_seconds=message.decode_seconds,
            )
        )

    def _on_failed(self, request: Request, stay: Stay, message: p.Failed, now: float) -> None:
        del self._state.requests[request.id]
        if request.closed:
            self._retries.left(request, now)
        self._state.keeper.left(request.id)
        self._state.table.release(stay.seq, EMPTY, saved=0, now=self._state.table[stay.seq].last_used)
        refused = message.code == "invalid"
        self._tally.over(request, "refused" if refused else "failed", now)
        request.generation.emit((GenerationRefused if refused else GenerationFailed)(message.message))

    def _leave(self, request: Request, stay: Stay, held: Tokens, now: float) -> None:
        state = self._state
        state.keeper.left(request.id)
        state.table.release(stay.seq, held, saved=state.keeper.covered(held), now=now)
        if request.anticipates:
            return  # nobody has asked for it yet, nor waited for its slot
        if request.prompt.store:
            state.keeper.remember(held, len(request.prompt.tokens))
        state.service += 0.2 * (now - stay.began - state.service)


def _held(request: Request, done: int, reply: bytes) -> Tokens:
    """What the sequence holds: of the prompt, and behind it of the reply."""
    return np.concatenate([request.prompt.tokens[:done], p.unpack(reply)])
