"""One streamed request as a client sees it, timed from the outside, alike for both servers."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks.servers import HOST

Json = dict[str, Any]
TIMEOUT = 600.0
"""Seconds a server may be silent."""


class RequestFailed(RuntimeError):
    """A server refused a request, or its stream was not what was asked for."""


@dataclass(frozen=True)
class Sample:
    """One request.  Instants in monotonic seconds, rates in tokens per second."""

    sent: float
    first: float
    """When the first piece of text came."""
    last: float
    """When the last piece of text came."""
    computed: int
    """Prompt tokens that were not reused."""
    generated: int
    server_prefill: float
    """Rate that the server reports."""
    server_decode: float


@dataclass(frozen=True)
class Rates:
    """Tokens per second of one round: what the client saw, and the mean of what the server reported."""

    prefill: float
    decode: float
    total: float
    """Generated tokens over the whole round, prefill included: what the clients together get."""
    server_prefill: float
    server_decode: float


def rates(samples: Sequence[Sample]) -> Rates:
    """The rates of requests that were sent together: all their tokens over the time from first to last."""
    begun, all_started = min(s.sent for s in samples), max(s.first for s in samples)
    first, last = min(s.first for s in samples), max(s.last for s in samples)
    return Rates(
        prefill=sum(s.computed for s in samples) / (all_started - begun),
        # The first token comes out of the prefill.
        decode=sum(s.generated - 1 for s in samples) / (last - first),
        total=sum(s.generated for s in samples) / (last - begun),
        server_prefill=sum(s.server_prefill for s in samples) / len(samples),
        server_decode=sum(s.server_decode for s in samples) / len(samples),
    )


def measure(port: int, bodies: Sequence[Json]) -> Rates:
    """Send the chat requests at once and follow their streams to the end.  Raises RequestFailed or OSError."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        return rates(list(pool.map(lambda body: _stream(port, body), bodies)))


def chat_body(prompt: str, gen_tokens: int) -> Json:
    """A greedy reply of exactly `gen_tokens`."""
    return {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": gen_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _stream(port: int, body: Json) -> Sample:
    connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT)
    payload = json.dumps(body).encode()
    sent = time.monotonic()
    try:
        connection.request("POST", "/v1/chat/completions", payload, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RequestFailed(f"status {response.status}: {response.read(2000).decode(errors='replace')}")
        lines: list[tuple[float, bytes]] = []
        while line := response.readline():
            # Parsing waits for the end, so that it takes no time from the servers.
            lines.append((time.monotonic(), line))
    finally:
        connection.close()
    return read_sample(sent, lines, body["max_tokens"])


def read_sample(sent: float, lines: Sequence[tuple[float, bytes]], gen_tokens: int) -> Sample:
    """What the lines of a stream, each with its instant, say.  Raises RequestFailed."""
    texts: list[float] = []
    usage: Json = {}
    timings: Json = {}
    for instant, line in lines:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[len(b"data: ") :])
        if "error" in event:
            raise RequestFailed(str(event["error"]))
        usage = event.get("usage") or usage
        timings = event.get("timings") or timings
        deltas = [choice["delta"] for choice in event["choices"]]
        if any(delta.get("content") or delta.get("reasoning_content") for delta in deltas):
            texts.append(instant)
    if not usage or not timings:
        raise RequestFailed("the stream ended without usage and timings")
    if len(texts) < 2:
        raise RequestFailed(f"the stream had {len(texts)} pieces of text, two or more are needed to time them")
    if usage["completion_tokens"] != gen_tokens:
        raise RequestFailed(f"{usage['completion_tokens']} tokens came instead of {gen_tokens}")
    return Sample(
        sent=sent,
        first=texts[0],
        last=texts[-1],
        computed=timings["prompt_n"],
        generated=gen_tokens,
        server_prefill=timings["prompt_per_second"],
        server_decode=timings["predicted_per_second"],
    )
