"""Items of the Responses API as chat messages: pure translation.

What belongs to one reply (reasoning, a message, calls) becomes one assistant message, as it was generated.
Instructions and the system and developer messages at the head become one system message, because many templates take
one only, and only at the front.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from lcpd.api.errors import bad_request
from lcpd.api.responses.tools import INPUT, Toolbox, namespace_of

Json = dict[str, Any]
Content = str | list[Json]
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_ELSEWHERE = frozenset(
    {
        "code_interpreter_call",
        "compaction",
        "context_compaction",
        "file_search_call",
        "ghost_snapshot",
        "image_generation_call",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "web_search_call",
    }
)
"""Left out: what only the server that wrote them can read, or what has no outcome to show to a model."""


def as_items(given: str | list[Json]) -> list[Json]:
    """A body's `input` as items."""
    return [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given


def chat_messages(instructions: str | None, items: Sequence[Json], box: Toolbox) -> list[Json]:
    """The messages of a conversation.  Raises ApiError that names the item."""
    conversation = _Conversation(box)
    if instructions:
        conversation.messages.append({"role": "system", "content": instructions})
    for i, item in enumerate(items):
        conversation.add(item, f"input[{i}]")
    return _with_one_head(conversation.messages)


class _Conversation:
    """Messages being put together."""

    def __init__(self, box: Toolbox) -> None:
        self.messages: list[Json] = []
        self._box = box

    def add(self, item: Json, where: str) -> None:
        """Add one item."""
        kind = item.get("type") or ("message" if "role" in item else None)
        match kind:
            case "message":
                self._message(item, where)
            case "reasoning":
                self._reasoning(item)
            case "function_call":
                arguments = _string(item, "arguments", where)
                name = self._box.function_name(_string(item, "name", where), namespace_of(item))
                self._call(name, arguments, item, where)
            case "custom_tool_call":
                arguments = _encoded({INPUT: _string(item, "input", where)})
                name = self._box.function_name(_string(item, "name", where), namespace_of(item))
                self._call(name, arguments, item, where)
            case str() if kind in _ELSEWHERE:
                pass
            case str() if kind.endswith("_call") and "call_id" in item:
                self._call(kind.removesuffix("_call"), _encoded(_own_fields(item)), item, where)
            case str() if kind.endswith("_output") and "call_id" in item:
                self._outcome(item, where)
            case _:
                raise bad_request(f"Items of type {kind!r} are not known here.", f"{where}.type")

    def _message(self, item: Json, where: str) -> None:
        role = item.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            raise bad_request("role must be user, assistant, system or developer.", f"{where}.role")
        content = _content(item.get("content"), f"{where}.content")
        if role != "assistant":
            self.messages.append({"role": role, "content": content})
            return
        reply = self._reply()
        reply["content"] = _and(reply["content"], content)

    def _reasoning(self, item: Json) -> None:
        """What it thought, as far as it can be read; encrypted_content cannot."""
        text = _texts(item.get("content")) or _texts(item.get("summary"))
        if not text:
            return
        reply = self._reply()
        if reply["content"] or "tool_calls" in reply:
            # Thinking comes first in a reply: this is another one.
            reply = self._new_reply()
        reply["reasoning_content"] = reply.get("reasoning_content", "") + text

    def _call(self, name: str, arguments: str, item: Json, where: str) -> None:
        call_id = _string(item, "call_id", where)
        function = {"name": name, "arguments": arguments}
        calls = self._reply().setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": function})

    def _outcome(self, item: Json, where: str) -> None:
        output = item.get("output")
        if isinstance(output, str | list):
            content = _content(output, f"{where}.output", images=False)
        else:
            content = _encoded(_own_fields(item))
        self.messages.append({"role": "tool", "tool_call_id": _string(item, "call_id", where), "content": content})

    def _reply(self) -> Json:
        """The assistant message that is being put together."""
        if self.messages and self.messages[-1]["role"] == "assistant":
            return self.messages[-1]
        return self._new_reply()

    def _new_reply(self) -> Json:
        self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]


def _with_one_head(messages: list[Json]) -> list[Json]:
    """The messages with those of the system and of the developer at the front as one."""
    end = next((i for i, m in enumerate(messages) if m["role"] not in ("system", "developer")), len(messages))
    if end < 2:
        return messages
    texts = [text for message in messages[:end] if (text := _texts(message["content"]))]
    return [{"role": "system", "content": "\n\n".join(texts)}, *messages[end:]]


def _content(given: Any, where: str, images: bool = True) -> Content:
    """A content's text, or its texts.

    Images and files are an ApiError.  Where they are a tool's result (`images` is False) the model is told instead,
    because refusing the request would end the conversation for good.
    """
    if given is None or isinstance(given, str):
        return given or ""
    if not isinstance(given, list):
        raise bad_request("Content must be a string or a list of parts.", where)
    parts = [_part(part, f"{where}[{i}]", images) for i, part in enumerate(given)]
    if len(parts) <= 1:
        return "".join(parts)
    return [{"type": "text", "text": text} for text in parts]


def _part(part: Any, where: str, images: bool) -> str:
    match part:
        case {"type": kind, "text": str(text)} if kind in _TEXTS:
            return text
        case {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": "input_image" | "input_file" as kind}:
            what = kind.removeprefix("input_")
            if images:
                raise bad_request(
                    f"This model cannot read an {what}; send text."
                    if what == "image"
                    else "Files are not offered; send their text.",
                    f"{where}.type",
                )
            return f"[the {what} was left out: this model cannot read it]"
        case {"type": str(kind)}:
            raise bad_request(f"Parts of type {kind!r} are not known here.", f"{where}.type")
    raise bad_request("A part of a content needs a type and its text.", where)


def _texts(content: Any) -> str:
    """All texts of a content in one, whatever their kind."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def _and(first: Content, second: Content) -> Content:
    """Two contents in one."""
    if not first or not second:
        return first or second
    return [*_as_parts(first), *_as_parts(second)]


def _as_parts(content: Content) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _own_fields(item: Json) -> Json:
    """What is a call's or an outcome's own."""
    return {name: value for name, value in item.items() if name not in ("type", "id", "call_id", "status")}


def _string(item: Json, name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise bad_request(f"An item of type {item.get('type')} needs {name}, a string.", f"{where}.{name}")
    return value


def _encoded(value: Json) -> str:
    return msgspec.json.encode(value).decode()
