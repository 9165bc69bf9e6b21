"""What the daemon itself takes for a warm turn of a long conversation: from the request to the engine's Start.

    python -m benchmarks.warm_turn [--model demo:hybrid] [--tokens 50000] [--turns 15]

A whole daemon in this process (its engine and its chat process are processes of their own, as always), asked over HTTP
from a thread.  The first turn is computed; each later one goes on with the reply and a new message, and counts.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from benchmarks.chat_overhead import Json, conversation, tools
from lcpd.api import requests
from lcpd.api.app import create_app
from lcpd.api.context import Context
from lcpd.assembly.parts import start_parts
from lcpd.assembly.plan import make_plan
from lcpd.chat.client import ChatClient
from lcpd.config import load
from lcpd.engine import protocol as p
from lcpd.engine.supervisor import Supervisor

GOAL = 0.05
"""Seconds, by the median."""
_HOST = "127.0.0.1"
_PER_TURN = 1400
"""Tokens of a turn of `conversation`, roughly."""
_ROOM = 30_000
"""Tokens of the context beyond those of the first turn."""


class Clock:
    """Notes when a request passed the places that `watch` puts it at.  Monotonic seconds."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}

    def note(self, place: str) -> None:
        """Now; what was noted for the place before is forgotten."""
        self.at[place] = time.perf_counter()

    def watch(self) -> None:
        """Look at all daemons of this process."""
        api: Any = requests
        chat: Any = ChatClient
        engine: Any = Supervisor
        read_body, render, send = api.read_body, chat.render, engine.send

        async def timed_read(*arguments: Any, **named: Any) -> Any:
            try:
                return await read_body(*arguments, **named)
            finally:
                self.note("read")

        async def timed_render(*arguments: Any, **named: Any) -> Any:
            self.note("validated")
            try:
                return await render(*arguments, **named)
            finally:
                self.note("rendered")

        def timed_send(supervisor: Supervisor, message: p.ToWorker) -> None:
            send(supervisor, message)
            if isinstance(message, p.Start):
                self.note("started")

        api.read_body, chat.render, engine.send = timed_read, timed_render, timed_send


@dataclass(frozen=True)
class Turn:
    """Seconds of one warm turn's parts."""

    receiving: float
    """From the client's first byte to the parsed and checked body."""
    preparing: float
    rendering: float
    """By the template, and tokens."""
    placing: float
    """Matching, placing, reserving, and the message to the engine."""
    first_text: float
    """From the client's first byte to the first text, all computing included."""
    prompt: int
    """Tokens."""
    computed: int

    @property
    def whole(self) -> float:
        """From the client's first byte until the engine was told to start."""
        return self.receiving + self.preparing + self.rendering + self.placing


def ask(port: int, body: Json, clock: Clock) -> tuple[Turn, str]:
    """Send a chat request; the turn's times, and the reply's text."""
    connection = http.client.HTTPConnection(_HOST, port, timeout=3600)
    payload = json.dumps(body).encode()
    sent = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", payload, {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {response.read(2000).decode(errors='replace')}")
    at: dict[str, float] = {}
    timings: Json = {}
    first, text = 0.0, ""
    while line := response.readline():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[len(b"data: ") :])
        delta = event["choices"][0]["delta"] if event["choices"] else {}
        if delta.get("content") or delta.get("reasoning_content"):
            if not text:
                first, at = time.perf_counter(), dict(clock.at)
            text += delta.get("content") or ""
        timings = event.get("timings") or timings
    connection.close()
    turn = Turn(
        receiving=at["read"] - sent,
        preparing=at["validated"] - at["read"],
        rendering=at["rendered"] - at["validated"],
        placing=at["started"] - at["rendered"],
        first_text=first - sent,
        prompt=timings["cache_n"] + timings["prompt_n"],
        computed=timings["prompt_n"],
    )
    return turn, text


async def measure(model: str, tokens: int, count: int) -> list[Turn]:
    """`count` warm turns, the first of which has about `tokens` tokens."""
    clock = Clock()
    clock.watch()
    settings = load(
        None,
        {"model.ref": model, "model.ctx": str(tokens + _ROOM), "model.slots": "2", "cache.disk": "0"},
        {},
    ).settings
    async with AsyncExitStack() as stack:
        context = await start_parts(make_plan(settings), stack)
        await context.dispatcher.model_info()
        port = await _serve(context, stack)
        messages = conversation(tokens // _PER_TURN)
        turns: list[Turn] = []
        for number in range(count + 1):
            body = {
                "messages": messages,
                "tools": tools(20),
                "max_tokens": 8,
                "temperature": 0,
                "stream": True,
                "ignore_eos": True,
            }
            turn, reply = await asyncio.to_thread(ask, port, body, clock)
            print(f"  turn {number}: {turn.prompt} tokens, {turn.computed} computed", file=sys.stderr)
            turns.append(turn)
            messages = [
                *messages,
                {"role": "assistant", "content": reply},
                {"role": "user", "content": f"Message {number}: the next step, please. " * 20},
            ]
        return turns[1:]


async def _serve(context: Context, stack: AsyncExitStack) -> int:
    runner = web.AppRunner(create_app(context), access_log=None)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, _HOST, 0)
    await site.start()
    port: int = runner.addresses[0][1]
    return port


def report(turns: Sequence[Turn]) -> list[str]:
    """The lines to print: milliseconds, medians with the range."""
    parts = {
        "receive, parse, check": [turn.receiving for turn in turns],
        "prepare for the template": [turn.preparing for turn in turns],
        "render and tokenise": [turn.rendering for turn in turns],
        "match, place, tell the engine": [turn.placing for turn in turns],
        "all of that": [turn.whole for turn in turns],
        "to the first text, computing included": [turn.first_text for turn in turns],
    }
    lines = [f"{len(turns)} warm turns of {turns[0].prompt} to {turns[-1].prompt} tokens"]
    for name, seconds in parts.items():
        low, middle, high = min(seconds) * 1e3, statistics.median(seconds) * 1e3, max(seconds) * 1e3
        lines.append(f"  {name:38} {middle:8.2f} ms ({low:.2f} to {high:.2f})")
    reached = statistics.median(turn.whole for turn in turns) < GOAL
    lines.append(f"goal, a median below {GOAL * 1e3:g} ms: {'reached' if reached else 'missed'}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status is 1 when the goal is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.warm_turn", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo:hybrid", metavar="REF")
    parser.add_argument("--tokens", type=int, default=50_000, help="of the first turn's prompt, roughly")
    parser.add_argument("--turns", type=int, default=15, help="warm ones")
    options = parser.parse_args(arguments)
    turns = asyncio.run(measure(options.model, options.tokens, options.turns))
    print("\n".join(report(turns)))
    return 0 if statistics.median(turn.whole for turn in turns) < GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
