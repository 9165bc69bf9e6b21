"""The one error vocabulary of the API, and its two spellings.

The bodies are those that make agentic clients react sensibly (``docs/api.md``): a too long prompt, for instance, must
be told in exactly these words for a client to compact its conversation instead of giving up.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
_LONGEST = 2000
"""Characters of a message."""


@dataclass
class ApiError(Exception):
    """An error with an HTTP status; `param` names the field of the body that is to blame."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    anthropic_message: str | None = None
    """Where Anthropic's clients look for other words."""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def word(self) -> str:
        """The one word for it: its code, or where it has none its type."""
        return self.code or self.type

    def openai(self) -> Json:
        """The body for OpenAI-style routes."""
        param = None if self.param is None else _shortened(self.param)
        return {"error": {"message": _shortened(self.message), "type": self.type, "param": param, "code": self.code}}

    def anthropic(self) -> Json:
        """The body for Anthropic-style routes."""
        kind = _ANTHROPIC_TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
        message = self.anthropic_message or (f"{self.param}: {self.message}" if self.param else self.message)
        return {"type": "error", "error": {"type": kind, "message": _shortened(message)}}


def _shortened(text: str) -> str:
    """A text without its middle where it is long: what a client sent can be part of it."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 2 :]}"


# https://docs.anthropic.com/en/api/errors
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the body is at fault."""
    return ApiError(400, message, param=param, code=code)


def too_long(prompt: int, limit: int, param: str) -> ApiError:
    """400: a prompt of `prompt` tokens where `limit` fit."""
    return ApiError(
        400,
        f"This model's maximum context length is {limit} tokens. However, your {param} resulted in {prompt} tokens. "
        f"Please reduce the length of the {param}.",
        param=param,
        code="context_length_exceeded",
        anthropic_message=f"prompt is too long: {prompt} tokens > {limit} maximum",
    )


def too_large(limit: int) -> ApiError:
    """413: a body of more than `limit` bytes."""
    return ApiError(413, f"The body is larger than {limit} bytes (server.max_body).")


def unknown_model(name: str, known: str) -> ApiError:
    """404: the model is not served here."""
    return ApiError(
        404, f"The model {name!r} does not exist; this server runs {known!r}.", param="model", code="model_not_found"
    )


def unavailable(message: str, retry_after: int = 5) -> ApiError:
    """503: the engine cannot run requests now."""
    return ApiError(
        503, message, type="server_error", code="engine_unavailable", headers={"Retry-After": str(retry_after)}
    )


def not_supported(message: str) -> ApiError:
    """501: this model, or this daemon as it is set up, cannot do that."""
    return ApiError(501, message, type="not_supported_error", code="not_supported")


def overloaded(message: str, retry_after: int) -> ApiError:
    """429: the queue is full."""
    return ApiError(429, message, type="rate_limit_error", code="queue_full", headers={"Retry-After": str(retry_after)})


def limit_exceeded(message: str, retry_after: int) -> ApiError:
    """429: an API key has used up what it may."""
    headers = {"Retry-After": str(retry_after)}
    return ApiError(429, message, type="rate_limit_error", code="rate_limit_exceeded", headers=headers)


def timed_out(message: str, retry_after: int) -> ApiError:
    """503: the request waited too long for its turn."""
    return ApiError(503, message, type="server_error", code="queue_timeout", headers={"Retry-After": str(retry_after)})


def internal(message: str) -> ApiError:
    """500: the request is fine, computing it went wrong."""
    return ApiError(500, message, type="server_error", code="engine_error")


def quarantined(message: str) -> ApiError:
    """500: the request is believed to crash the engine.  No Retry-After: it would only come back."""
    return ApiError(500, message, type="server_error", code="request_quarantined")


_NAMED = re.compile(r"\b[Ff]ield '(\w+)'")
_WORDS = re.compile(r"\w+")


def blamed_field(message: str, body: Collection[str], default: str) -> str:
    """The field of the body that a refusal of llama.cpp talks about, or `default`.

    It is the one llama.cpp names as a field, else the first of its words that is a field of the body, else the one
    that holds a schema where it talks of one.
    """
    if (named := _NAMED.search(message)) and named.group(1) in body:
        return str(named.group(1))
    if words := [word for word in _WORDS.findall(message) if word in body and word != "model"]:
        return str(words[0])
    if "schema" in message.lower():
        for name in ("response_format", "json_schema"):
            if name in body:
                return name
    return "tools" if "tool" in message.lower() and "tools" in body else default
