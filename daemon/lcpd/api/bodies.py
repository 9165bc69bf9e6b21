"""The shapes of request bodies: what is checked before anything is rendered.

Only fields that lcpd itself reads, or whose wrong type would be confusing later, are listed; others pass through to
llama.cpp's request schema or are ignored.  null counts as absent.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from lcpd.api.errors import bad_request

Positive = Annotated[int, Meta(ge=1)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Limit = Annotated[int, Meta(ge=-1, lt=2**31)]
"""Tokens to generate; -1 is no limit, llama.cpp's convention.  0 is refused later, where the value is known."""
Window = Annotated[int, Meta(ge=-1, le=2**20)]
"""Tokens to look back on, allocated for each request; -1 is the whole context."""
Temperature = Annotated[float, Meta(ge=0, le=100)]
Stops = str | Annotated[list[str], Meta(max_length=256)] | None


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


class SamplingFields(msgspec.Struct, kw_only=True):
    """What chat and text completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Limit | None = None
    n_predict: Limit | None = None
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    min_p: Fraction | None = None
    repeat_last_n: Window | None = None
    dry_penalty_last_n: Window | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    seed: int | None = None
    stop: Stops = None
    n: Positive | None = None
    # llama.cpp's schema takes a default for a value of the wrong type, without a word.
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    logit_bias: dict[str, Any] | list[Any] | None = None
    samplers: list[str] | str | None = None
    ignore_eos: bool | None = None


class ChatBody(SamplingFields, kw_only=True):
    """POST /v1/chat/completions"""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=20_000)]
    max_completion_tokens: Limit | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    logprobs: bool | None = None


class CompletionBody(SamplingFields, kw_only=True):
    """POST /v1/completions"""

    prompt: str | list[str | TokenId]
    suffix: str | None = None
    echo: bool | None = None
    best_of: Positive | None = None
    logprobs: int | None = None


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
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    stop_sequences: Annotated[list[str], Meta(max_length=256)] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None


Body = TypeVar("Body", bound=msgspec.Struct)


def parse(data: bytes, shape: type[Body], max_depth: int) -> tuple[Body, dict[str, Any]]:
    """The body checked against its shape, and as plain JSON.  Raises ApiError that names the field."""
    try:
        plain = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"The body is not valid JSON: {_where(data, error)}") from error
    except RecursionError as error:
        raise _too_deep(max_depth) from error
    if not isinstance(plain, dict):
        raise bad_request("The body must be a JSON object.")
    if deep := _too_deep_field(plain, max_depth):
        raise _too_deep(max_depth, deep)
    try:
        return msgspec.convert(plain, shape), plain
    except msgspec.ValidationError as error:
        message, param = _explained(error)
        raise bad_request(message, param) from error


def refuse_unoffered(body: SamplingFields) -> None:
    """Refuse, by name, what other servers offer and this one does not.  Raises ApiError."""
    for name in ("n", "best_of"):
        if (getattr(body, name, None) or 1) > 1:
            raise bad_request(f"{name} above 1 is not offered: send the request several times.", name)
    for name in ("suffix", "echo", "logprobs"):
        if getattr(body, name, None):
            raise bad_request(f"{name} is not offered.", name)
    samplers = body.samplers or ()
    if "infill" in samplers or (isinstance(samplers, str) and "i" in samplers):
        # Its time grows with the square of the vocabulary: tens of seconds a token.
        raise bad_request("the sampler infill is not offered.", "samplers")


def _where(data: bytes, error: Exception) -> str:
    try:
        json.loads(data)
    except ValueError as detailed:  # its message has the line and column
        return str(detailed)
    return str(error)


def _explained(error: msgspec.ValidationError) -> tuple[str, str | None]:
    """A validation error's message, and the field it is about."""
    message, _, path = str(error).partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    if "missing required field" in message:
        missing = message.split("`")[1]
        path = f"{path}.{missing}" if path else missing
    return message, path or None


def _too_deep_field(plain: dict[str, Any], limit: int) -> str | None:
    """The first top-level field that nests deeper than `limit`."""
    for name, value in plain.items():
        level = [value]
        for _ in range(limit):
            level = [
                child
                for parent in level
                for child in (
                    parent.values() if isinstance(parent, dict) else parent if isinstance(parent, list) else ()
                )
                if isinstance(child, dict | list)
            ]
            if not level:
                break
        else:
            return name
    return None


def _too_deep(limit: int, param: str | None = None) -> Exception:
    return bad_request(f"JSON nested deeper than {limit} levels is refused (chat.max_json_depth).", param)
