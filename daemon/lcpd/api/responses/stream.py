"""OpenAI chat deltas as output items and stream events of the Responses API: pure translation, no I/O.

A stream is: response.created, response.in_progress; for each item response.output_item.added, its own events,
response.output_item.done; at last one of response.completed, .incomplete, .failed.  Events are numbered in the order
in which they are made (https://platform.openai.com/docs/api-reference/responses-streaming).
"""

from __future__ import annotations

import time
from typing import Any

from lcpd.api.errors import ApiError
from lcpd.api.responses.items import Item, Message, Reasoning, Status, new_call
from lcpd.api.responses.tools import Toolbox
from lcpd.api.turn import Finished, Usage, timings

Json = dict[str, Any]


class ResponseStream:
    """One response; each method returns the events to send now."""

    def __init__(self, head: Json, usage: Usage, box: Toolbox, summarises: bool) -> None:
        """`head`: the fields that do not change; `usage` is read whenever it is told; `box`: tools of the request."""
        self._head = head
        self._usage = usage
        self._box = box
        self._summarises = summarises
        self._number = 0
        self._output: list[Json] = []
        self._open: Item | None = None
        self._kind = ""
        """Of the open item: "reasoning", "text" or "call N"."""
        self._reasoning_tokens = 0
        self.response: Json = {**head, "status": "in_progress", "output": []}
        """As it was told last."""

    def start(self) -> list[Json]:
        """The first events."""
        return self._numbered(
            [
                {"type": "response.created", "response": self.response},
                {"type": "response.in_progress", "response": self.response},
            ]
        )

    def heartbeat(self) -> list[Json]:
        """A sign of life; nothing else keeps Codex from hanging up.  It need not repeat what can be long."""
        brief = {**self.response, "instructions": None, "tools": []}
        return self._numbered([{"type": "response.in_progress", "response": brief}])

    def delta(self, delta: Json) -> list[Json]:
        """One chat delta."""
        events: list[Json] = []
        if thinking := delta.get("reasoning_content"):
            if self._kind != "reasoning":
                events += self._switch("reasoning", Reasoning(self._summarises))
            events += self._push(thinking)
            self._reasoning_tokens = self._usage.generated
        if text := delta.get("content"):
            if self._kind != "text":
                events += self._switch("text", Message())
            events += self._push(text)
        for call in delta.get("tool_calls") or []:
            function = call.get("function") or {}
            if self._kind != (kind := f"call {call['index']}"):
                origin = self._box.origin(function.get("name") or "")
                events += self._switch(kind, new_call(call.get("id"), origin))
            if arguments := function.get("arguments"):
                events += self._push(arguments)
        return self._numbered(events)

    def finish(self, event: Finished) -> list[Json]:
        """The end of the response."""
        cut = event.done.reason == "length"
        events = self._close("incomplete" if cut else "completed")
        self.response = {
            **self._head,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "completed_at": None if cut else int(time.time()),
            "output": list(self._output),
            "usage": self._told_usage(),
            "timings": timings(self._usage, event.done),
        }
        return self._numbered([*events, {"type": f"response.{self.response['status']}", "response": self.response}])

    def failed(self, error: ApiError) -> list[Json]:
        """The end of a response that went wrong after its stream had begun."""
        told = {"code": failure_code(error), "message": error.message}
        self.response = {**self._head, "status": "failed", "error": told, "output": list(self._output)}
        return self._numbered([{"type": "response.failed", "response": self.response}])

    def _push(self, text: str) -> list[Json]:
        assert self._open is not None, "_switch opens one"
        return [self._placed(event) for event in self._open.push(text)]

    def _switch(self, kind: str, item: Item) -> list[Json]:
        """Make `item` the open one."""
        events = self._close("completed")
        self._open, self._kind = item, kind
        place = {"output_index": len(self._output)}
        added = {"type": "response.output_item.added", **place, "item": item.item("in_progress")}
        return [*events, added, *(self._placed(event) for event in item.opening())]

    def _close(self, status: Status) -> list[Json]:
        if self._open is None:
            return []
        events = [self._placed(event) for event in self._open.closing(status)]
        item = self._open.item(status)
        place = {"output_index": len(self._output)}
        self._output.append(item)
        self._open, self._kind = None, ""
        return [*events, {"type": "response.output_item.done", **place, "item": item}]

    def _placed(self, event: Json) -> Json:
        assert self._open is not None, "only events of the open item are placed"
        return {**event, "item_id": self._open.id, "output_index": len(self._output)}

    def _numbered(self, events: list[Json]) -> list[Json]:
        first = self._number
        self._number += len(events)
        return [{**event, "sequence_number": first + i} for i, event in enumerate(events)]

    def _told_usage(self) -> Json:
        usage = self._usage
        return {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
            "output_tokens": usage.generated,
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
            "total_tokens": usage.prompt + usage.generated,
        }


def failure_code(error: ApiError) -> str:
    """What a failed response's error is called.

    Codex compacts after context_length_exceeded, gives up after invalid_prompt, and tries again after most others.
    """
    if error.code == "context_length_exceeded":
        return error.code
    if error.status == 429:
        return "rate_limit_exceeded"
    if error.status < 500 or error.code == "request_quarantined":
        return "invalid_prompt"
    return "server_error"
