"""What is counted and timed of requests, in one place; the rest of the scheduler only says what happens.

Each prompt token of a request is counted once, where it came from first; what is left when the request is over was
abandoned.  So over all requests that are over: submitted = computed + reused + abandoned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import get_args

from lcpd.metrics import Metrics
from lcpd.metrics.tokens import REUSED
from lcpd.scheduler.generation import Priority
from lcpd.scheduler.report import MISSES, CacheReport
from lcpd.scheduler.request import Request
from lcpd.scheduler.snapshot import slot_state
from lcpd.scheduler.state import State

DONE = ("stop", "stop-string", "length")
"""Outcomes of requests whose reply is complete: only their phases and lengths are worth a distribution."""


class Tally:
    """Writes the figures.  For one event loop; times are monotonic seconds."""

    def __init__(self, state: State, metrics: Metrics, on_over: Callable[[Request, str], None]) -> None:
        """`on_over` is called with each request that is over, and how it ended."""
        self._state = state
        self._requests = metrics.requests
        self._tokens = metrics.tokens
        self._cache = metrics.cache
        self._engine = metrics.engine
        self._clients = metrics.clients
        self._on_over = on_over

    def came(self, request: Request) -> None:
        """It stands in the queue."""
        if request.anticipates:
            return
        self._tokens.submitted.inc(len(request.prompt.tokens))
        self._requests.render_time.observe(request.generation.arrived - request.generation.asked)

    def began(self, request: Request, report: CacheReport) -> None:
        """The engine began with it for the first time."""
        if request.anticipates:
            return
        missed = [part for part in report.reasons if part.reason in MISSES]
        reused = report.prompt - report.computed
        self._cache.lookups.labels("miss" if not reused else "partial" if missed else "hit").inc()
        for part in missed:
            self._cache.miss_tokens.labels(part.reason).inc(part.tokens)
            self._clients.miss_tokens.labels(*_who(request), part.reason).inc(part.tokens)

    def reused(self, request: Request, source: str, upto: int) -> None:
        """Its prompt up to `upto` is there, as far as it was not before, from this source."""
        self._count(request, "" if request.anticipates else source, upto)

    def computed(self, request: Request, upto: int) -> None:
        """Its prompt up to `upto` is there, as far as it was not before, because it was computed."""
        self._count(request, "anticipated" if request.anticipates else "computed", upto)

    def prefilled(self, tokens: int, seconds: float) -> None:
        """A batch of so many tokens was computed, whatever they are."""
        self._tokens.prefill.inc(tokens)
        self._tokens.prefill_seconds.inc(seconds)

    def sampled(self, request: Request, count: int, now: float) -> None:
        """So many tokens of its reply came."""
        course, exemplar = request.course, _exemplar(request)
        further, gap = count, 0.0
        if course.first_token is None:
            course.first_token = now
            further -= 1
            waited = now - request.generation.asked
            self._requests.time_to_first_token.labels(request.prompt.priority).observe(waited, exemplar)
            self._clients.time_to_first_token.labels(request.prompt.program).observe(waited, exemplar)
        elif course.last_token is not None:
            gap = (now - course.last_token) / count
        for _ in range(further):
            self._requests.inter_token_latency.observe(gap, exemplar)
        course.last_token = now
        self._tokens.generation.inc(count)
        self._clients.generation_tokens.labels(*_who(request)).inc(count)

    def left(self, request: Request) -> None:
        """Its client went away before it was over."""
        if not request.anticipates:
            self._requests.cancels.labels(request.course.phase).inc()

    def over(self, request: Request, outcome: str, now: float) -> None:
        """It ended: with the reason of its last token, or with one of `metrics.requests.OUTCOMES` else."""
        if request.anticipates:
            return
        course, figures = request.course, self._requests
        course.close(now)
        figures.outcomes.labels(outcome).inc()
        self._tokens.abandoned.inc(len(request.prompt.tokens) - request.counted)
        exemplar, priority = _exemplar(request), request.prompt.priority
        figures.queue_time.labels(priority).observe(course.seconds("waiting"), exemplar)
        if outcome in DONE:
            figures.restore_time.observe(course.seconds("restore"), exemplar)
            figures.prefill_time.observe(course.seconds("prefill"), exemplar)
            figures.decode_time.observe(course.seconds("decode"), exemplar)
            figures.latency.labels(priority).observe(now - request.generation.asked, exemplar)
            figures.prompt_tokens.observe(len(request.prompt.tokens))
            figures.generation_tokens.observe(len(request.generated))
        self._on_over(request, outcome)

    def show(self) -> None:
        """Set the figures that tell how things stand."""
        state = self._state
        requests = [request for request in state.requests.values() if not request.anticipates]
        running = Counter(request.prompt.priority for request in requests if request.stay is not None)
        waiting = Counter(request.prompt.priority for request in requests if request.stay is None)
        for priority in get_args(Priority):
            self._requests.running.labels(priority).set(running[priority])
            self._requests.waiting.labels(priority).set(waiting[priority])
        stays = {stay.seq: stay for _, stay in state.running}
        self._engine.show_slots([slot_state(stays.get(slot.seq)) for slot in state.table])
        self._engine.cells.set(state.table.capacity)
        self._engine.cells_used.set(state.table.used)
        self._cache.bytes.labels("vram", "segment").set(state.table.used * state.keeper.token_bytes)

    def _count(self, request: Request, source: str, upto: int) -> None:
        tokens = min(upto, len(request.prompt.tokens)) - request.counted
        if tokens <= 0:
            return
        request.counted += tokens
        if source:
            self._tokens.prompt.labels(source).inc(tokens)
        if source in REUSED:
            self._tokens.spared_seconds.inc(tokens * self._state.keeper.seconds_per_token)
        if source and not request.anticipates:
            self._clients.prompt_tokens.labels(*_who(request), source).inc(tokens)


def _who(request: Request) -> tuple[str, str]:
    return request.prompt.program, request.prompt.key


def _exemplar(request: Request) -> dict[str, str] | None:
    return {"request_id": request.prompt.name} if request.prompt.name else None
