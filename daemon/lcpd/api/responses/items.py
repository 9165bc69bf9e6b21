"""Output items of the Responses API while they are being written, and the events that tell of them.

Every item goes through: `opening` once, `push` for each piece of text, `closing` once.  Events come without
`item_id`, `output_index` and `sequence_number`, which are the stream's business.
"""

from __future__ import annotations

import uuid
from typing import Any, Literal, Protocol

from lcpd.api.responses.freeform import Freeform
from lcpd.api.responses.tools import Origin

Json = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]


class Item(Protocol):
    """One item of a response's output."""

    id: str

    def item(self, status: Status) -> Json:
        """The item as it stands."""

    def opening(self) -> list[Json]:
        """What follows on response.output_item.added."""

    def push(self, text: str) -> list[Json]:
        """More text has come."""

    def closing(self, status: Status) -> list[Json]:
        """What comes before response.output_item.done."""


class Reasoning:
    """What the model thinks; as the text itself, or where the client asked for summaries as the one summary."""

    def __init__(self, summarises: bool) -> None:
        self.id = _new("rs")
        self._text = ""
        self._field = "summary" if summarises else "content"
        self._index: Json = {f"{self._field}_index": 0}
        self._part = "response.reasoning_summary_part" if summarises else "response.content_part"
        self._name = "reasoning_summary_text" if summarises else "reasoning_text"
        self._kind = "summary_text" if summarises else "reasoning_text"

    def item(self, status: Status) -> Json:
        """The item as it stands."""
        parts = [self._content()] if self._text else []
        return {"id": self.id, "type": "reasoning", "summary": [], self._field: parts, "status": status}

    def opening(self) -> list[Json]:
        """The part begins."""
        return [{"type": f"{self._part}.added", **self._index, "part": {"type": self._kind, "text": ""}}]

    def push(self, text: str) -> list[Json]:
        """More of it."""
        self._text += text
        return [{"type": f"response.{self._name}.delta", **self._index, "delta": text}]

    def closing(self, status: Status) -> list[Json]:
        """The part ends."""
        done = {"type": f"response.{self._name}.done", **self._index, "text": self._text}
        return [done, {"type": f"{self._part}.done", **self._index, "part": self._content()}]

    def _content(self) -> Json:
        return {"type": self._kind, "text": self._text}


class Message:
    """Text for the user."""

    def __init__(self) -> None:
        self.id = _new("msg")
        self._text = ""

    def item(self, status: Status) -> Json:
        """The item as it stands."""
        content = [] if status == "in_progress" else [_output_text(self._text)]
        return {"id": self.id, "type": "message", "role": "assistant", "status": status, "content": content}

    def opening(self) -> list[Json]:
        """The part begins."""
        return [{"type": "response.content_part.added", "content_index": 0, "part": _output_text("")}]

    def push(self, text: str) -> list[Json]:
        """More of it."""
        self._text += text
        return [{"type": "response.output_text.delta", "content_index": 0, "delta": text, "logprobs": []}]

    def closing(self, status: Status) -> list[Json]:
        """The part ends."""
        done = {"type": "response.output_text.done", "content_index": 0, "text": self._text, "logprobs": []}
        part = {"type": "response.content_part.done", "content_index": 0, "part": _output_text(self._text)}
        return [done, part]


class FunctionCall:
    """A call of a function."""

    def __init__(self, call_id: str, origin: Origin) -> None:
        self.id = _new("fc")
        self._call_id = call_id
        self._origin = origin
        self._arguments = ""

    def item(self, status: Status) -> Json:
        """The item as it stands."""
        return {
            "id": self.id,
            "type": "function_call",
            "status": status,
            "call_id": self._call_id,
            **_named(self._origin),
            "arguments": self._arguments,
        }

    def opening(self) -> list[Json]:
        """Nothing more to tell."""
        return []

    def push(self, text: str) -> list[Json]:
        """More of the arguments."""
        self._arguments += text
        return [{"type": "response.function_call_arguments.delta", "delta": text}]

    def closing(self, status: Status) -> list[Json]:
        """The arguments are complete."""
        if not self._arguments.strip() and status == "completed":
            self._arguments = "{}"
        done = {"type": "response.function_call_arguments.done", "arguments": self._arguments}
        return [{**done, "name": self._origin.name}]


class CustomCall:
    """A call of a custom tool, whose input is free text."""

    def __init__(self, call_id: str, origin: Origin) -> None:
        self.id = _new("ctc")
        self._call_id = call_id
        self._origin = origin
        self._input = ""
        self._freeform = Freeform()

    def item(self, status: Status) -> Json:
        """The item as it stands."""
        return {
            "id": self.id,
            "type": "custom_tool_call",
            "status": status,
            "call_id": self._call_id,
            **_named(self._origin),
            "input": self._input,
        }

    def opening(self) -> list[Json]:
        """Nothing more to tell."""
        return []

    def push(self, text: str) -> list[Json]:
        """More of the arguments, which holds the input."""
        return self._more(self._freeform.push(text))

    def closing(self, status: Status) -> list[Json]:
        """The input is complete."""
        rest, whole = self._freeform.finish()
        events = self._more(rest)
        self._input = whole
        return [*events, {"type": "response.custom_tool_call_input.done", "input": whole}]

    def _more(self, text: str) -> list[Json]:
        if not text:
            return []
        self._input += text
        return [{"type": "response.custom_tool_call_input.delta", "delta": text}]


def new_call(call_id: str | None, origin: Origin) -> Item:
    """An item for a call of a tool of this origin."""
    call_id = call_id or _new("call")
    return CustomCall(call_id, origin) if origin.custom else FunctionCall(call_id, origin)


def _named(origin: Origin) -> Json:
    return {"name": origin.name} | ({"namespace": origin.namespace} if origin.namespace is not None else {})


def _output_text(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _new(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"
