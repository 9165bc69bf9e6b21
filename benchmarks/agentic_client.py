"""One streamed turn as an agent's client sees it: the whole reply, when it began, and what was computed for it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.agentic_text import Json
from benchmarks.client import RequestFailed


@dataclass(frozen=True)
class Answer:
    """A reply.  Counts in tokens."""

    message: Json
    """As a client puts it into its history."""
    finish: str
    ttft: float
    """Seconds from sending to the first piece of the reply."""
    prompt: int
    computed: int
    """Prompt tokens that were not reused."""
    generated: int


def chat_body(messages: list[Json], tools: Sequence[Json], max_tokens: int, **more: Any) -> Json:
    """A greedy, streamed chat request; `more` are further fields of the body."""
    body: Json = {
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }
    return {**body, "tools": list(tools)} if tools else body


async def ask(client: httpx.AsyncClient, url: str, body: Json) -> Answer:
    """Send a request and follow its stream to the end.  Raises RequestFailed or httpx.TransportError."""
    sent = time.monotonic()
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            text = (await response.aread()).decode(errors="replace")
            raise RequestFailed(f"status {response.status_code}: {text[:2000]}")
        # Parsing waits for the end, so that it takes no time from the server.
        lines = [(time.monotonic(), line) async for line in response.aiter_lines()]
    return read_answer(sent, lines)


def read_answer(sent: float, lines: Sequence[tuple[float, str]]) -> Answer:
    """What the lines of a stream, each with its instant, say.  Raises RequestFailed."""
    first: float | None = None
    finish = ""
    usage: Json = {}
    timings: Json = {}
    parts = _Parts()
    for instant, line in lines:
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[len("data: ") :])
        if "error" in event:
            raise RequestFailed(str(event["error"]))
        usage = event.get("usage") or usage
        timings = event.get("timings") or timings
        for choice in event["choices"]:
            finish = choice.get("finish_reason") or finish
            if parts.add(choice["delta"]) and first is None:
                first = instant
    if not usage or not timings:
        raise RequestFailed("the stream ended without usage and timings")
    if first is None:
        raise RequestFailed("the reply was empty")
    return Answer(
        message=parts.message(),
        finish=finish,
        ttft=first - sent,
        prompt=usage["prompt_tokens"],
        computed=timings["prompt_n"],
        generated=usage["completion_tokens"],
    )


class _Parts:
    """A message that comes in pieces."""

    def __init__(self) -> None:
        self._texts = {"content": "", "reasoning_content": ""}
        self._calls: dict[int, dict[str, str]] = {}

    def add(self, delta: Json) -> bool:
        """Whether there was something in it."""
        filled = False
        for key in self._texts:
            if text := delta.get(key):
                self._texts[key] += text
                filled = True
        for piece in delta.get("tool_calls") or []:
            call = self._calls.setdefault(piece["index"], {"name": "", "arguments": ""})
            for key, text in piece.get("function", {}).items():
                call[key] += text or ""
            filled = True
        return filled

    def message(self) -> Json:
        message: dict[str, Any] = {"role": "assistant", "content": self._texts["content"]}
        if reasoning := self._texts["reasoning_content"]:
            message["reasoning_content"] = reasoning
        if self._calls:
            message["tool_calls"] = [_call(number, call) for number, call in sorted(self._calls.items())]
        return message


def _call(number: int, call: dict[str, str]) -> Json:
    """The client's own id, so that both servers are sent the same; arguments that were cut off are left out."""
    try:
        json.loads(call["arguments"])
        arguments = call["arguments"]
    except ValueError:
        arguments = "{}"
    return {"id": f"call_{number}", "type": "function", "function": {"name": call["name"], "arguments": arguments}}
