"""OpenTelemetry traces of requests, made when they are over from when what happened to them; off unless asked for.

    chat MODEL                      from the request's arrival to its end
      render                        from its arrival until it stood in the queue
      queue, restore, prefill, decode     its phases (:mod:`lcpd.scheduler.course`), again after a park or a crash

Names are those of the GenAI semantic conventions, where these have one.  No text of a prompt or a reply is in them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from lcpd import __version__
from lcpd.config import ConfigError
from lcpd.scheduler.course import Phase
from lcpd.scheduler.request import Request
from lcpd.scheduler.tally import DONE

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.util.types import AttributeValue

_TIMEOUT = 2.0
"""Seconds for a batch of spans, retries included: for so long a collector that is down holds up the daemon's end."""
_SELDOM = 600.0
"""Seconds after one complaint about the collector in which the log has no other."""
_NAMES: dict[Phase, str] = {"waiting": "queue", "restore": "restore", "prefill": "prefill", "decode": "decode"}


class Tracer:
    """Makes the spans and hands them to a processor."""

    def __init__(self, model: str, processor: SpanProcessor, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: the one of the requests' times."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        self._model = model
        self._clock = clock
        resource = Resource.create({"service.name": "lcpd", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("lcpd", __version__)

    def over(self, request: Request, outcome: str) -> None:
        """A request is over; its course is closed."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        course = request.course
        offset = time.time() - self._clock()

        def nanoseconds(moment: float) -> int:
            return int((moment + offset) * 1e9)

        operation = "chat" if request.prompt.spans else "text_completion"
        whole = self._tracer.start_span(
            f"{operation} {self._model}",
            kind=SpanKind.SERVER,
            attributes=self._attributes(request, operation, outcome),
            start_time=nanoseconds(request.generation.asked),
        )
        context = set_span_in_context(whole)
        phases = [(_NAMES[part.phase], part.begin, part.end) for part in course.passed]
        for name, begin, end in [("render", request.generation.asked, course.begin), *phases]:
            self._tracer.start_span(name, context, start_time=nanoseconds(begin)).end(nanoseconds(end))
        if outcome not in (*DONE, "cancelled"):
            whole.set_status(Status(StatusCode.ERROR, outcome))
        whole.end(nanoseconds(course.passed[-1].end))

    def stop(self) -> None:
        """Send what is not sent yet; blocks for some seconds where nobody takes it."""
        self._provider.shutdown()

    def _attributes(self, request: Request, operation: str, outcome: str) -> dict[str, AttributeValue]:
        prompt, course = request.prompt, request.course
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "lcpd",
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
            "gen_ai.request.max_tokens": prompt.max_tokens,
            "gen_ai.usage.input_tokens": len(prompt.tokens),
            "gen_ai.usage.cache_read.input_tokens": request.cached or 0,
            "gen_ai.usage.output_tokens": len(request.generated),
            "lcpd.class": prompt.priority,
            "lcpd.client": prompt.program,
        }
        if prompt.name:
            attributes["gen_ai.response.id"] = prompt.name
        if course.first_token is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = course.first_token - request.generation.asked
        if outcome in DONE:
            attributes["gen_ai.response.finish_reasons"] = ["length" if outcome == "length" else "stop"]
        else:
            attributes["error.type"] = outcome
        return attributes


class Seldom(logging.Filter):
    """Lets one line pass in a while: a collector that is down would be told of every few seconds for days."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line may pass."""
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + _SELDOM
        return True


def exporting(model: str, endpoint: str) -> Tracer:
    """One that sends traces to `endpoint` (metrics.traces).  Raises ConfigError."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError([f"metrics.traces: {error}; install lcpd with the extra otel: lcpd[otel]"]) from error
    logging.getLogger(OTLPSpanExporter.__module__).addFilter(Seldom())
    return Tracer(model, BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=_TIMEOUT)))
