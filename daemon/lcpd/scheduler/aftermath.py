"""What becomes of requests when the worker is gone: all go on, but for what :mod:`lcpd.scheduler.recovery` finds."""

from __future__ import annotations

import logging

from lcpd.engine.supervisor import SLEEP
from lcpd.scheduler.generation import Done, GenerationFailed, Prompt, Quarantined
from lcpd.scheduler.recovery import KILLED, QUARANTINE_SECONDS, Quarantine, after_death, fingerprint, guilty
from lcpd.scheduler.request import Request
from lcpd.scheduler.retries import Retries
from lcpd.scheduler.state import State
from lcpd.scheduler.tally import Tally

log = logging.getLogger(__name__)


class Aftermath:
    """Brings the requests back into the queue, and owns the quarantine."""

    def __init__(self, state: State, tally: Tally, retries: Retries) -> None:
        self._state = state
        self._tally = tally
        self._retries = retries
        self._quarantine = Quarantine()

    def check(self, prompt: Prompt, now: float) -> None:
        """Raises Quarantined for a prompt that is not to be run for now."""
        if left := self._quarantine.seconds_left(prompt, now):
            raise Quarantined(
                "this request crashed the engine twice and is quarantined: it is refused for another"
                f" {left:.0f} s, unless its messages or sampling fields are changed"
            )

    def settle(self, reason: str, cause: str, now: float) -> None:
        """The worker is gone, for this `reason` of one line: every request that it knew waits again, or is over."""
        requests = self._state.requests
        alone = len(self._state.running) == 1
        by_itself = cause not in (KILLED, SLEEP)
        for request in list(requests.values()):
            stay = request.stay
            if stay is None and not request.parked:
                continue
            if request.closed:
                del requests[request.id]
                self._tally.over(request, "cancelled", now)
                self._retries.left(request, now)
            elif stay is None:
                request.run_again(now)
            elif request.anticipates:
                # Nobody waits for it; to be wrong about it costs nothing.
                del requests[request.id]
                if alone and by_itself:
                    self._condemn(request, reason, now)
                request.generation.emit(Done("cancelled", "", "", 0, 0, 0.0, 0.0))
            elif cause == SLEEP:
                request.run_again(now)  # it came when the engine was on its way out
            else:
                request.record = after_death(request.record, request.reached, cause, alone)
                if guilty(request.record, cause, alone):
                    del requests[request.id]
                    self._condemn(request, reason, now)
                    self._tally.over(request, "quarantined", now)
                    request.generation.emit(Quarantined(_verdict(request, reason, cause)))
                else:
                    request.run_again(now)

    def fit(self, capacity: int, now: float) -> None:
        """The worker is back with a context of `capacity` tokens, which may be less than before."""
        for request in list(self._state.requests.values()):
            if request.anticipates:
                continue
            complete = request.length == len(request.prompt.tokens) + request.prompt.max_tokens
            if request.length >= capacity + complete:
                del self._state.requests[request.id]
                self._tally.over(request, "failed", now)
                request.generation.emit(
                    GenerationFailed(
                        f"the engine ran out of memory and runs with a context of {capacity} tokens now, which this"
                        f" request of {request.length} tokens does not fit into"
                    )
                )
            else:
                request.limit_to(capacity)

    def _condemn(self, request: Request, reason: str, now: float) -> None:
        name = fingerprint(request.prompt)
        self._quarantine.add(name, now)
        log.error(
            "the request of %d prompt tokens with hash %s is quarantined for %.0f s, because the engine died while it"
            " ran alone: %s",
            len(request.prompt.tokens),
            name,
            QUARANTINE_SECONDS,
            reason,
        )


def _verdict(request: Request, reason: str, cause: str) -> str:
    what = "crashed the engine twice, the second time while nothing else ran"
    if cause == KILLED:
        what = f"was the only one to run {request.record.alone} times when the engine was killed"
    return (
        f"this request {what} ({reason}), and is quarantined: the same request is refused for"
        f" {QUARANTINE_SECONDS / 60:.0f} minutes"
    )
