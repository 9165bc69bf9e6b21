"""What a turn costs before the engine sees it: rendering and tokenising a long agent conversation, cold and warm.

    python -m benchmarks.chat_overhead [--model REF] [--turns N] [--tools N] [--properties N]

Cold: a chat process that has seen nothing.  Warm: the same conversation with one more turn.  Again: the same request a
second time, where tokenising costs nothing, so what is left is rendering.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

import msgspec

from lcpd.build import require_active
from lcpd.chat.client import ChatClient, ChatSettings
from lcpd.models import resolve
from lcpd.paths import dirs

Json = dict[str, Any]
_WORDS = "the cache keeps what was computed once and a slot goes on from the longest prefix that it shares"


def conversation(turns: int) -> list[Json]:
    """A system text and `turns` turns of about 650 tokens each."""
    messages: list[Json] = [{"role": "system", "content": f"You are a coding agent. {_WORDS}. " * 40}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Turn {turn}: {_WORDS}. " * 16})
        messages.append({"role": "assistant", "content": f"Done with {turn}: {_WORDS}. " * 16})
    return [*messages, {"role": "user", "content": "Go on."}]


def tools(count: int, properties: int = 2) -> list[Json]:
    """`count` tools with schemas of so many properties."""
    kinds = ("string", "integer", "boolean")
    schema = {"type": "object", "properties": {f"property_{i}": {"type": kinds[i % 3]} for i in range(properties)}}
    return [
        {"type": "function", "function": {"name": f"tool_{i}", "description": _WORDS * 3, "parameters": schema}}
        for i in range(count)
    ]


async def measure(ref: str, turns: int, repeats: int, known: list[Json]) -> dict[str, list[float]]:
    """Milliseconds of each kind of request with the `known` tools, `repeats` times; the conversation's tokens."""
    settings = ChatSettings(resolve(ref, dirs()), None, require_active().lib_dir, 4 << 30, 60)
    times: dict[str, list[float]] = {"cold": [], "warm": [], "again": [], "tokens": []}
    for _ in range(repeats):
        chat = ChatClient(settings)
        await chat.start()
        try:
            await chat.render("chat", msgspec.json.encode({"messages": [{"role": "user", "content": "x"}]}))
            for kind, length in (("cold", turns), ("warm", turns + 1), ("again", turns + 1)):
                body = msgspec.json.encode({"messages": conversation(length), "tools": known})
                begun = time.perf_counter()
                rendered = await chat.render("chat", body)
                times[kind].append((time.perf_counter() - begun) * 1e3)
            times["tokens"].append(len(rendered.tokens) // 4)
        finally:
            await chat.stop()
    return times


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="default: demo:smollm2 and demo:hybrid")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--tools", type=int, default=20)
    parser.add_argument("--properties", type=int, default=2, help="of each tool")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    known = tools(arguments.tools, arguments.properties)
    for ref in arguments.model or ["demo:smollm2", "demo:hybrid"]:
        times = asyncio.run(measure(ref, arguments.turns, arguments.repeats, known))
        medians = {kind: statistics.median(values) for kind, values in times.items()}
        cold, warm, again = (medians[kind] for kind in ("cold", "warm", "again"))
        print(f"{ref}: {medians['tokens']:.0f} tokens; cold {cold:.1f} ms, one turn more {warm:.1f} ms", end=", ")
        print(f"the same again (rendering alone) {again:.1f} ms")


if __name__ == "__main__":
    main()
