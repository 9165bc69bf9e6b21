"""OpenAI chat deltas put together again."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def add_delta(message: Json, delta: Json) -> None:
    """Extend `message` (which is changed) by one streaming delta, as a client of the API does.

    https://platform.openai.com/docs/api-reference/chat-streaming describes the shape of deltas.
    """
    for key in ("content", "reasoning_content"):
        if (text := delta.get(key)) is not None:
            message[key] = (message.get(key) or "") + text
    for part in delta.get("tool_calls") or []:
        calls = message.setdefault("tool_calls", [])
        while len(calls) <= part["index"]:
            calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call = calls[part["index"]]
        call["id"] = part.get("id") or call["id"]
        function = part.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""
