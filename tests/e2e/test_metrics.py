"""GET /metrics of a real daemon with the real hybrid: the figures of a run whose token counts are known."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support import text_of

pytestmark = pytest.mark.native
WITHIN = 60
"""Seconds; nothing of it takes long, but the machine may be busy."""
SOURCES = ("computed", "vram", "shared", "ram", "disk")


class Figures:
    """What a daemon shows now."""

    def __init__(self, url: str) -> None:
        families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=30).text)
        self._samples = [sample for family in families for sample in family.samples]

    def __call__(self, name: str, /, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        return sum(s.value for s in self._samples if s.name == name and labels.items() <= s.labels.items())

    @property
    def sources(self) -> float:
        """Prompt tokens that were computed for a request or reused."""
        return sum(self("lcpd_prompt_tokens_total", source=source) for source in SOURCES)


def wait_for(daemon, true: Callable[[Figures], bool]) -> Figures:
    deadline = time.monotonic() + WITHIN
    while not true(figures := Figures(daemon.url)):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)
    return figures


def idle(figures: Figures) -> bool:
    return not figures("lcpd_num_requests_running") + figures("lcpd_num_requests_waiting")


def body(words: int, **fields: object) -> dict:
    messages = [{"role": "user", "content": text_of(words)}]
    return {"messages": messages, "temperature": 0, "max_tokens": 16, **fields}


def usage(daemon, request: dict, **headers: str) -> tuple[int, int, int]:
    """Tokens of a chat's prompt, those of them that were reused, and those of its reply."""
    answer = httpx.post(f"{daemon.url}/v1/chat/completions", json=request, headers=headers, timeout=120)
    assert answer.status_code == 200, answer.text
    told = answer.json()["usage"]
    return told["prompt_tokens"], told["prompt_tokens_details"]["cached_tokens"], told["completion_tokens"]


def first_text(lines) -> None:
    """Read a stream up to its first token."""
    for line in lines:
        if line.startswith("data: {") and (json.loads(line[6:])["choices"][0]["delta"].get("content") or ""):
            return


def test_a_scripted_run_gives_exactly_these_figures(start_daemon) -> None:
    daemon = start_daemon("--slots", "1", "--ctx", "8192", LCPD_CACHE__ANTICIPATE="false", LCPD_CACHE__PREWARM="0")
    stream = {"max_tokens": 2000, "stream": True, "ignore_eos": True}

    # A conversation, twice the same and once longer.
    asked = [usage(daemon, body(words)) for words in (300, 300, 400)]
    figures = wait_for(daemon, idle)
    prompts, cached, replies = (sum(column) for column in zip(*asked, strict=True))
    assert figures("lcpd_prompt_tokens_submitted_total") == prompts
    assert figures("lcpd_prompt_tokens_total", source="computed") == prompts - cached
    assert figures.sources == prompts
    assert figures("lcpd_generation_tokens_total") == replies
    assert figures("lcpd_prefill_tokens_total") == prompts - cached

    # A background request is parked for an interactive one, goes on, and is left.
    headers = {"x-lcpd-priority": "background"}
    with httpx.stream("POST", f"{daemon.url}/v1/chat/completions", json=body(150, **stream), headers=headers) as reply:
        lines = reply.iter_lines()  # which ends the stream when it goes
        first_text(lines)
        one = usage(daemon, body(50))
        wait_for(daemon, lambda now: now("lcpd_slots", state="decode") == 1)
    figures = wait_for(daemon, idle)
    parked = figures("lcpd_prompt_tokens_submitted_total") - prompts - one[0]
    assert figures("lcpd_num_preemptions_total", reason="slot") == 1
    assert figures.sources == prompts + one[0] + parked, "each token once"
    assert figures("lcpd_request_outcomes_total", outcome="cancelled") == 1

    # The worker is killed in the middle of a reply, which goes on.
    pid = daemon.child("lcpd.engine.worker")
    with httpx.stream(
        "POST", f"{daemon.url}/v1/chat/completions", json=body(250, **{**stream, "max_tokens": 60}), timeout=120
    ) as reply:
        lines = reply.iter_lines()
        first_text(lines)
        os.kill(pid, signal.SIGKILL)
        assert list(lines)[-2:] == ["data: [DONE]", ""]
    figures = wait_for(daemon, idle)
    assert figures("lcpd_worker_restarts_total", cause="killed") == 1

    # The books balance.
    submitted = figures("lcpd_prompt_tokens_submitted_total")
    assert figures.sources + figures("lcpd_prompt_tokens_abandoned_total") == submitted
    assert figures("lcpd_request_outcomes_total") == 6
    assert figures("lcpd_request_generation_tokens_sum") == replies + one[2] + 60
    sampled = figures("lcpd_generation_tokens_total")
    assert sampled == figures("lcpd_client_generation_tokens_total")
    first, further = "lcpd_time_to_first_token_seconds_count", "lcpd_inter_token_latency_seconds_count"
    assert figures(first) + figures(further) == sampled
    assert figures("lcpd_checkpoint_size_bytes_count") > 0
    assert figures("lcpd_cache_pieces", tier="ram", kind="checkpoint") > 0
    assert figures("lcpd_kv_cells") == 8192
    assert figures("lcpd_model_info", kind="hybrid") == 1
    assert daemon.stop() == 0


def test_a_scraper_can_have_a_port_of_its_own(start_daemon) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    daemon = start_daemon(LCPD_METRICS__PORT=str(port))
    own = f"http://127.0.0.1:{port}"
    assert Figures(own)("lcpd_engine_state", state="ready") == 1
    assert httpx.get(f"{own}/health").status_code == 404
    assert daemon.stop() == 0


class Collector(BaseHTTPRequestHandler):
    """Takes in the traces that are sent to it."""

    received: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.received.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_traces_of_all_requests_have_been_sent_when_the_daemon_has_stopped(start_daemon) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        daemon = start_daemon(LCPD_METRICS__TRACES=f"http://127.0.0.1:{server.server_port}/v1/traces")
        usage(daemon, body(50))
        assert daemon.stop() == 0
        server.shutdown()
        serving.join()
    sent = b"".join(Collector.received)
    for part in (b"chat demo:hybrid", b"render", b"queue", b"restore", b"prefill", b"decode", b"gen_ai.response.id"):
        assert sent.count(part) == 1, part
