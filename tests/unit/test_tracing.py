"""Traces of requests, as an exporter in memory gets them."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import numpy as np
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from lcpd.config import ConfigError
from lcpd.scheduler.course import Phase
from lcpd.scheduler.generation import Generation, Prompt
from lcpd.scheduler.request import Request
from lcpd.scheduler.slots import Span
from lcpd.tracing import Seldom, Tracer, exporting

NOW = 1000.0
WHOLE: Sequence[tuple[Phase, float]] = (("restore", 1002.0), ("prefill", 1003.0), ("decode", 1007.0))


def request(phases: Sequence[tuple[Phase, float]] = WHOLE, end: float = 1010.0, chat: bool = True) -> Request:
    """One that came over HTTP half a second before it was queued at 1000, and went through these phases."""
    prompt = Prompt(
        np.arange(100, dtype=np.int32),
        (Span("user", 0, 100),) if chat else (),
        b"{}",
        max_tokens=50,
        name="chatcmpl-7",
        program="codex",
        received=NOW - 0.5,
    )
    made = Request(Generation(7, prompt, NOW, lambda _: None), since=NOW)
    for phase, at in phases:
        made.course.enter(phase, at)
        if phase == "decode":
            made.course.first_token, made.generated, made.cached = at, [1, 2, 3], 80
    made.course.close(end)
    return made


def spans(made: Request, outcome: str) -> list[ReadableSpan]:
    """Of its trace, the whole one last."""
    exporter = InMemorySpanExporter()
    tracer = Tracer("a-model", SimpleSpanProcessor(exporter), clock=lambda: 2000.0)
    tracer.over(made, outcome)
    tracer.stop()
    return list(exporter.get_finished_spans())


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def test_a_trace_has_the_phases_of_its_request_below_the_whole() -> None:
    *parts, whole = spans(request(), "stop")
    assert [part.name for part in parts] == ["render", "queue", "restore", "prefill", "decode"]
    assert [seconds(part) for part in parts] == pytest.approx([0.5, 2, 1, 4, 3], abs=1e-5)
    assert seconds(whole) == pytest.approx(10.5, abs=1e-5)
    assert all(part.parent is not None and part.parent.span_id == whole.context.span_id for part in parts)
    assert whole.parent is None
    assert parts[0].start_time == whole.start_time and parts[-1].end_time == whole.end_time


def test_a_trace_is_described_in_the_words_of_the_genai_conventions() -> None:
    whole = spans(request(), "stop-string")[-1]
    assert (whole.name, whole.kind) == ("chat a-model", SpanKind.SERVER)
    attributes = dict(whole.attributes or {})
    assert attributes.pop("gen_ai.response.time_to_first_chunk") == pytest.approx(7.5)
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "lcpd",
        "gen_ai.request.model": "a-model",
        "gen_ai.response.model": "a-model",
        "gen_ai.response.id": "chatcmpl-7",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.request.max_tokens": 50,
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.cache_read.input_tokens": 80,
        "gen_ai.usage.output_tokens": 3,
        "lcpd.class": "interactive",
        "lcpd.client": "codex",
    }
    assert whole.resource.attributes["service.name"] == "lcpd"


def test_a_prompt_without_messages_is_a_text_completion() -> None:
    assert spans(request(chat=False), "length")[-1].name == "text_completion a-model"


def test_a_request_that_was_parked_has_its_phases_twice() -> None:
    again: Sequence[tuple[Phase, float]] = (*WHOLE, ("waiting", 1008.0), ("restore", 1009.0), ("decode", 1009.5))
    names = [span.name for span in spans(request(again), "stop")]
    assert names == ["render", "queue", "restore", "prefill", "decode", "queue", "restore", "decode", "chat a-model"]


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("failed", StatusCode.ERROR), ("timed-out", StatusCode.ERROR), ("cancelled", StatusCode.UNSET)],
)
def test_what_went_wrong_is_told(outcome: str, status: StatusCode) -> None:
    whole = spans(request(phases=()), outcome)[-1]
    assert whole.status.status_code == status
    assert dict(whole.attributes or {})["error.type"] == outcome


def test_the_times_of_a_trace_are_those_of_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lcpd.tracing.time.time", lambda: 5000.0)  # when the monotonic clock says 2000
    assert spans(request(), "stop")[-1].end_time == pytest.approx((1010 + 3000) * 1e9)


class Collector(BaseHTTPRequestHandler):
    """Takes in what is sent to it."""

    received: ClassVar[list[tuple[str, bytes]]] = []

    def do_POST(self) -> None:
        self.received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_traces_are_sent_to_the_place_that_the_setting_names() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        tracer = exporting("a-model", f"http://127.0.0.1:{server.server_port}/v1/traces")
        tracer.over(request(), "stop")
        tracer.stop()
        server.shutdown()
        serving.join()
    ((path, body),) = Collector.received
    assert path == "/v1/traces"
    assert b"chat a-model" in body and b"prefill" in body


def test_without_the_extra_the_setting_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with pytest.raises(ConfigError, match=r"metrics\.traces: .*lcpd\[otel\]"):
        exporting("a-model", "http://127.0.0.1:4318/v1/traces")


def test_a_collector_that_is_down_is_told_of_every_ten_minutes_and_not_for_each_batch() -> None:
    moments = iter((5.0, 6.0, 604.0, 605.0, 700.0))
    seldom = Seldom(lambda: next(moments))
    record = logging.LogRecord("exporter", logging.ERROR, "", 0, "it is down", (), None)
    assert [seldom.filter(record) for _ in range(5)] == [True, False, False, True, False]
