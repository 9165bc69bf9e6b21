"""OpenAI deltas as Anthropic content blocks and stream events: pure translation, no I/O.

A stream is: message_start; for each block content_block_start, deltas, content_block_stop; message_delta;
message_stop (https://docs.anthropic.com/en/api/messages-streaming).
"""

from __future__ import annotations

from typing import Any

import msgspec

from lcpd.api.turn import Finished, Usage, timings

Json = dict[str, Any]


def stop_reason(event: Finished) -> str:
    """Why a reply ended, in Anthropic's words."""
    if event.done.reason == "length":
        return "max_tokens"
    if event.message.get("tool_calls"):
        return "tool_use"
    return "stop_sequence" if event.done.reason == "stop-string" else "end_turn"


def whole_stop_reason(event: Finished, blocks: list[Json]) -> str:
    """The same for a whole reply: a call that is only shown as text is none that a client could run."""
    reason = stop_reason(event)
    called = any(block["type"] == "tool_use" for block in blocks)
    return "end_turn" if reason == "tool_use" and not called else reason


def content_blocks(message: Json) -> list[Json]:
    """An OpenAI message's contents as blocks."""
    blocks: list[Json] = []
    if thinking := message.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": thinking, "signature": ""})
    if text := message.get("content"):
        blocks.append({"type": "text", "text": text})
    for call in message.get("tool_calls") or []:
        function = call["function"]
        try:
            arguments = msgspec.json.decode(function["arguments"] or "{}")
        except (msgspec.DecodeError, RecursionError):  # the latter: nested too deep to be read
            arguments = None
        if isinstance(arguments, dict):
            blocks.append(
                {"type": "tool_use", "id": tool_id(call.get("id")), "name": function["name"], "input": arguments}
            )
        else:
            # Anthropic's tool_use holds an object; what is none is better shown than lost.
            blocks.append({"type": "text", "text": f"{function['name']}({function['arguments']})"})
    return blocks


def tool_id(given: str | None) -> str:
    """A tool call's id in the form that Anthropic's clients know."""
    return given if given and given.startswith("toolu_") else f"toolu_{given or 'call'}"


class MessageStream:
    """Makes the events of one streamed message; each method returns those to send now."""

    def __init__(self, message_id: str, model: str, usage: Usage, thinks: bool) -> None:
        """`usage` is read whenever it is told; `thinks`: the client asked for thinking."""
        self._id = message_id
        self._model = model
        self._usage = usage
        self._thinks = thinks
        self._started = False
        self._index = -1
        self._open: str | None = None
        """The open block: "thinking", "text" or "tool N"."""

    def start(self) -> list[Json]:
        """message_start, once; as late as possible, because it tells how much of the prompt was cached."""
        if self._started:
            return []
        self._started = True
        message: Json = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage.anthropic(),
        }
        return [{"type": "message_start", "message": message}]

    def heartbeat(self) -> list[Json]:
        """A sign of life: an empty delta of the open block, the only thing that keeps Claude Code from hanging up."""
        if self._open is None:
            block = "thinking" if self._thinks else "text"
            return [*self.start(), *self._switch(block), self._delta(block, "")]
        if self._open.startswith("tool"):
            return [self._block_delta({"type": "input_json_delta", "partial_json": ""})]
        return [self._delta(self._open, "")]

    def delta(self, delta: Json) -> list[Json]:
        """One OpenAI delta."""
        events = self.start()
        if thinking := delta.get("reasoning_content"):
            events += [*self._switch("thinking"), self._delta("thinking", thinking)]
        if text := delta.get("content"):
            events += [*self._switch("text"), self._delta("text", text)]
        for call in delta.get("tool_calls") or []:
            function = call.get("function") or {}
            events += self._switch(f"tool {call['index']}", tool_id(call.get("id")), function.get("name") or "")
            if arguments := function.get("arguments"):
                events.append(self._block_delta({"type": "input_json_delta", "partial_json": arguments}))
        return events

    def finish(self, event: Finished) -> list[Json]:
        """The end of the message."""
        ending = {"stop_reason": stop_reason(event), "stop_sequence": event.done.stop or None}
        return [
            *self.start(),
            *self._stop_block(),
            {
                "type": "message_delta",
                "delta": ending,
                "usage": self._usage.anthropic(),
                "timings": timings(self._usage, event.done),
            },
            {"type": "message_stop"},
        ]

    def _switch(self, block: str, call_id: str = "", name: str = "") -> list[Json]:
        """Make `block` the open one."""
        if self._open == block:
            return []
        events = self._stop_block()
        self._open = block
        self._index += 1
        if block == "thinking":
            content: Json = {"type": "thinking", "thinking": "", "signature": ""}
        elif block == "text":
            content = {"type": "text", "text": ""}
        else:
            content = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        return [*events, {"type": "content_block_start", "index": self._index, "content_block": content}]

    def _stop_block(self) -> list[Json]:
        if self._open is None:
            return []
        events: list[Json] = []
        if self._open == "thinking":
            events.append(self._block_delta({"type": "signature_delta", "signature": ""}))
        self._open = None
        return [*events, {"type": "content_block_stop", "index": self._index}]

    def _delta(self, block: str, text: str) -> Json:
        if block == "thinking":
            return self._block_delta({"type": "thinking_delta", "thinking": text})
        return self._block_delta({"type": "text_delta", "text": text})

    def _block_delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}
