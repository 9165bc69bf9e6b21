"""The body of POST /v1/responses: its shape, and the chat body that it stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from lcpd.api.bodies import OpenAiBody, Positive
from lcpd.api.errors import ApiError, bad_request
from lcpd.api.responses.inputs import chat_messages
from lcpd.api.responses.tools import Toolbox, chosen
from lcpd.api.sampling import Only, Rule, check

Json = dict[str, Any]
_ONE = Only((0, 1), "there is one reply to a response")
_PROBS = Only((0,), "chat completions tell probabilities")
_TEXT_FORMATS = ("text", "json_object", "json_schema")
_NOT_PASSED_ON = frozenset(
    {
        "background",
        "client_metadata",
        "context_management",
        "conversation",
        "include",
        "input",
        "instructions",
        "logprobs",
        "max_output_tokens",
        "max_tool_calls",
        "messages",
        "metadata",
        "previous_response_id",
        "prompt",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "store",
        "stream",
        "stream_options",
        "text",
        "tool_choice",
        "tools",
        "truncation",
    }
)
"""Fields that are worked on here, or that say nothing to the chat path."""
_WORDS = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"}
"""What the chat path calls a field -> what it is called here."""


class Reasoning(msgspec.Struct):
    """How to think."""

    effort: str | None = None
    summary: str | None = None


class Text(msgspec.Struct):
    """What the text of the reply must look like."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponsesBody(OpenAiBody, kw_only=True):
    """POST /v1/responses and /v1/responses/input_tokens"""

    rules: ClassVar[Mapping[str, Rule]] = {
        "n": _ONE,
        "n_cmpl": _ONE,
        "best_of": _ONE,
        "top_logprobs": _PROBS,
        "n_probs": _PROBS,
    }
    input: str | Annotated[list[dict[str, Any]], Meta(max_length=20_000)]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_output_tokens: Positive | None = None
    reasoning: Reasoning | None = None
    text: Text | None = None
    include: list[str] | None = None
    metadata: dict[str, Any] | None = None
    truncation: str | None = None
    background: bool | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None


def refuse_what_is_not_offered(body: ResponsesBody) -> None:
    """Raise ApiError where a body asks for what would change its reply and is not offered."""
    if body.background:
        raise bad_request("background responses are not offered; use stream.", "background")
    if body.conversation is not None:
        raise bad_request("Conversations are not kept here; use previous_response_id.", "conversation")
    if body.prompt is not None:
        raise bad_request("Prompt templates are not kept here; send instructions and input.", "prompt")
    if "message.output_text.logprobs" in (body.include or ()):
        raise bad_request("Probabilities are not offered here; chat completions tell them.", "include")


def chat_fields(body: ResponsesBody, plain: Json, items: list[Json], box: Toolbox) -> Json:
    """The chat body for a conversation of `items`.  Raises ApiError."""
    fields = {name: value for name, value in plain.items() if name not in _NOT_PASSED_ON}
    fields["messages"] = chat_messages(body.instructions, items, box)
    fields |= chosen(plain.get("tool_choice"), box)
    if body.max_output_tokens is not None:
        fields["max_tokens"] = body.max_output_tokens
    if body.reasoning and body.reasoning.effort:
        fields["reasoning_effort"] = body.reasoning.effort
    if shape := _response_format(body.text.format if body.text else None):
        fields["response_format"] = shape
    if not fields["messages"]:
        raise bad_request("There is nothing to answer.", "input")
    check(fields, ResponsesBody.rules)
    return fields


def _response_format(form: Json | None) -> Json | None:
    """A text.format in the words of chat completions."""
    kind = (form or {}).get("type", "text")
    if kind not in _TEXT_FORMATS:
        raise bad_request(f"text.format must have a type of {', '.join(_TEXT_FORMATS)}.", "text.format")
    if kind == "text" or form is None:
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    if not isinstance(form.get("schema"), dict):
        raise bad_request("text.format of type json_schema needs a schema (an object).", "text.format.schema")
    return {"type": "json_schema", "json_schema": {key: form[key] for key in ("name", "schema") if key in form}}


@contextmanager
def own_words() -> Iterator[None]:
    """Errors of the chat path name the fields of this API."""
    try:
        yield
    except ApiError as error:
        if error.param is None or (word := _WORDS.get(error.param)) is None:
            raise
        # The words of a prompt that is too long are looked for by clients: they stay.
        message = error.message if error.param == "messages" else error.message.replace(error.param, word)
        raise replace(error, message=message, param=word) from error


def response_head(body: ResponsesBody, plain: Json, box: Toolbox, response_id: str, model: str, created: int) -> Json:
    """The fields of a response that are known before it begins."""
    reasoning = body.reasoning or Reasoning()
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": plain.get("max_tool_calls"),
        "model": model,
        "output": [],
        "parallel_tool_calls": plain.get("parallel_tool_calls") is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": plain.get("prompt_cache_key"),
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
        "safety_identifier": plain.get("safety_identifier"),
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": plain.get("temperature"),
        "text": {"format": (body.text.format if body.text else None) or {"type": "text"}},
        "tool_choice": plain.get("tool_choice") or "auto",
        "tools": list(box.declared),
        "top_p": plain.get("top_p"),
        "truncation": "disabled",
        "usage": None,
        "user": plain.get("user"),
        "metadata": body.metadata or {},
    }
