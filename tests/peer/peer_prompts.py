"""The prompts on which both servers are compared, and the two ways of sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

LONG_TEXT = " ".join(
    f"Entry {number}: the {colour} train to {town} leaves platform {number % 7} at {number % 12}:{number * 7 % 60:02}."
    for number, (colour, town) in enumerate(
        zip(["red", "green", "white"] * 6, ["Lyon", "Graz", "Oslo", "Bari", "Cork", "Brno"] * 3, strict=True), start=1
    )
)
"""More tokens than a batch of the servers has (tests/peer/conftest.py), so also more than a ubatch."""

WEATHER_TOOL: Json = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


@dataclass(frozen=True)
class Case:
    """One prompt."""

    name: str
    path: str
    body: Json


def _chat(name: str, *contents: str, system: str | None = None, max_tokens: int = 24, **fields: Any) -> Case:
    """`contents` alternate between user and assistant."""
    messages = [{"role": "system", "content": system}] if system else []
    messages += [
        {"role": "user" if index % 2 == 0 else "assistant", "content": content}
        for index, content in enumerate(contents)
    ]
    return Case(name, "/v1/chat/completions", {"messages": messages, "max_tokens": max_tokens, **fields})


def _text(name: str, prompt: str, max_tokens: int = 24, **fields: Any) -> Case:
    return Case(name, "/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, **fields})


CASES = [
    _chat("chat-plain", "Name three rivers of Europe."),
    _chat("chat-system", "What is the sea like?", system="You are a pirate and answer in one short sentence."),
    _chat("chat-turns", "My name is Ada.", "Hello Ada, how can I help?", "Spell my name backwards, please."),
    _chat("chat-unicode", "Translate into English: Größe, naïve, 你好, 🚂. Keep the emoji.", frequency_penalty=0.4),
    _chat("chat-stop", "Count from one to ten in words.", stop=["three", "\n\n"], max_tokens=40),
    _chat(
        "chat-tool",
        "What is the weather in Paris for the next two days?",
        tools=[WEATHER_TOOL],
        tool_choice="required",
        max_tokens=64,
    ),
    _text("text-plain", "The capital of France is"),
    _text("text-long", LONG_TEXT + "\nThe last entry says that"),
    _text("text-code", "def fibonacci(n):\n    "),
    _text("text-stop", "Apples, pears, plums,", stop=["."], top_k=20, min_p=0.02),
    _text("text-one-token", "A"),
    # Every length from one to a few whole characters, so that some replies end inside one.
    *(_text(f"text-emoji-{length}", "Trains: 🚂🚂🚂🚂🚂🚂🚂🚂", max_tokens=length) for length in (1, 2, 3, 4)),
]

GREEDY: Json = {"temperature": 0}
SEEDED: Json = {"temperature": 0.9, "seed": 42}
