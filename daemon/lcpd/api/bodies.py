"""The shapes of request bodies: what is checked before anything is rendered.

Only fields that lcpd itself reads, or whose wrong type would be confusing later, are listed here and, where they say
how to generate, in :mod:`lcpd.api.sampling`; others pass through to llama.cpp's request schema or are ignored.  null
counts as absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Meta

from lcpd.api.errors import bad_request
from lcpd.api.sampling import Flag, Rule, Whole, check

MAX_NAMES = 20_000
"""In one JSON object: llama.cpp looks each of them up among all the others."""
MAX_CONTAINERS = 500_000
"""Arrays and objects in a body: decoding and checking them holds up the event loop, 0.1 s for so many."""
_CONTAINERS = frozenset((dict, list))
_NO_MARK = bytes(set(range(256)) - set(b'[{"'))
_EXPLAINED = 2**20
"""Bytes of the largest invalid body whose error tells line and column, for which it is decoded a second time."""
Positive = Annotated[int, Meta(ge=1)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Mixed = str | list[str | int]
"""One text: a string, or texts and token ids in turn."""


class ChatMessage(msgspec.Struct):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class FunctionTool(msgspec.Struct):
    """A function's declaration."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(msgspec.Struct):
    """A tool's declaration."""

    type: str
    function: FunctionTool | None = None


class StreamOptions(msgspec.Struct):
    """What to add to a stream."""

    include_usage: bool | None = None


class OpenAiBody(msgspec.Struct, kw_only=True):
    """What chat and text completions have in common; lcpd.api.sampling has the fields that say how to generate."""

    rules: ClassVar[Mapping[str, Rule]]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class ChatBody(OpenAiBody, kw_only=True):
    """POST /v1/chat/completions"""

    rules = {"logprobs": Flag()}
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=20_000)]
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None


class CompletionBody(OpenAiBody, kw_only=True):
    """POST /v1/completions"""

    rules = {"logprobs": Whole(0, 20)}
    prompt: str | list[str | TokenId | list[str | TokenId]]


class PinBody(OpenAiBody, kw_only=True):
    """POST /cache/pin and /cache/unpin: a chat or a prompt, or a pin's number."""

    rules: ClassVar[Mapping[str, Rule]] = {}
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=20_000)] | None = None
    prompt: Annotated[str, Meta(min_length=1)] | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    pin: Positive | None = None


class AnthropicMessage(msgspec.Struct):
    """One message; the system role inside of messages is what Claude Code sends."""

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class AnthropicTool(msgspec.Struct):
    """A tool's declaration; server tools have a type and no schema."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class MessagesBody(msgspec.Struct, kw_only=True):
    """POST /v1/messages and /v1/messages/count_tokens"""

    messages: Annotated[list[AnthropicMessage], Meta(min_length=1, max_length=20_000)]
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    max_tokens: Positive | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    stop_sequences: Annotated[list[str], Meta(max_length=256)] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None


Body = TypeVar("Body", bound=msgspec.Struct)


def parse(data: bytes, shape: type[Body], max_depth: int) -> tuple[Body, dict[str, Any]]:
    """The body checked against its shape, and as plain JSON.  Raises ApiError that names the field."""
    if containers(data, MAX_CONTAINERS) > MAX_CONTAINERS:
        raise bad_request(
            f"JSON with more than {MAX_CONTAINERS} arrays and objects is refused: send less in one request."
        )
    try:
        plain = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"The body is not valid JSON: {_where(data, error)}") from error
    except RecursionError as error:
        raise _too_deep(max_depth) from error
    if not isinstance(plain, dict):
        raise bad_request("The body must be a JSON object.")
    _check_structure(plain, max_depth)
    if issubclass(shape, OpenAiBody):
        check(plain, shape.rules)
    try:
        return msgspec.convert(plain, shape), plain
    except msgspec.ValidationError as error:
        message, param = _explained(error)
        raise bad_request(message, param) from error


def separate(given: str | Sequence[str | int | list[str | int]], field: str) -> list[Mixed]:
    """The texts of a field: a list that has token ids in it is one of them, any other list has one in each item."""
    if isinstance(given, str):
        return [given]
    single = [item for item in given if not isinstance(item, list)]
    if any(isinstance(item, int) for item in single):
        if len(single) < len(given):
            raise bad_request("Token ids and lists of them cannot be mixed.", field)
        return [single]
    return [item for item in given if not isinstance(item, int)]


def containers(data: bytes, most: int) -> int:
    """The arrays and objects in JSON, which is not decoded for that; where there are more than `most`, some number
    above it."""
    brackets = data.count(b"[") + data.count(b"{")
    if brackets <= most or not data.count(b'"'):
        return brackets
    # Some may be text.  Of brackets and quotation marks alone every other piece between two marks is a string; two
    # marks side by side change nothing for what is around them.
    marks = data.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _NO_MARK).replace(b'""', b"")
    return sum(map(len, marks.split(b'"', 2 * most + 2)[::2]))


def _where(data: bytes, error: Exception) -> str:
    if len(data) > _EXPLAINED:
        return str(error)
    try:
        json.loads(data)
    except ValueError as detailed:  # its message has the line and column
        return str(detailed)
    except RecursionError:
        pass
    return str(error)


def _explained(error: msgspec.ValidationError) -> tuple[str, str | None]:
    """A validation error's message, and the field it is about."""
    message, _, path = str(error).partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    if "missing required field" in message:
        missing = message.split("`")[1]
        path = f"{path}.{missing}" if path else missing
    return message, path or None


def _check_structure(plain: dict[str, Any], max_depth: int) -> None:
    """Raise ApiError that names the first top-level field that is nested too deep or has too many names."""
    if len(plain) > MAX_NAMES:
        raise _too_many_names(None)
    for name, value in plain.items():
        level = [value] if type(value) in _CONTAINERS else []
        for _ in range(max_depth):
            if any(type(parent) is dict and len(parent) > MAX_NAMES for parent in level):
                raise _too_many_names(name)
            level = [
                child
                for parent in level
                for child in (parent.values() if type(parent) is dict else parent)
                if type(child) in _CONTAINERS  # there may be millions: isinstance takes three times as long
            ]
            if not level:
                break
        else:
            raise _too_deep(max_depth, name)


def _too_many_names(param: str | None) -> Exception:
    return bad_request(f"An object with more than {MAX_NAMES} names is refused.", param)


def _too_deep(limit: int, param: str | None = None) -> Exception:
    return bad_request(f"JSON nested deeper than {limit} levels is refused (chat.max_json_depth).", param)
