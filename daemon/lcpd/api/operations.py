"""What every route is for, in a table: the OpenAPI document and the page of routes are made from it.

A route of :mod:`lcpd.api.app` that is missing here, and one here that there is not, fail a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from lcpd.api.bodies import ChatBody, CompletionBody, MessagesBody, PinBody
from lcpd.api.embeddings import EmbeddingsBody
from lcpd.api.extras import DetokenizeBody, TokenizeBody
from lcpd.api.infill import InfillBody
from lcpd.api.rerank import RerankBody
from lcpd.api.responses.body import ResponsesBody

Kind = Literal["json", "list", "text", "html", "metrics"]


@dataclass(frozen=True)
class Operation:
    """One method of one route."""

    group: str
    summary: str
    body: type[msgspec.Struct] | None = None
    """What a request's JSON must be like."""
    answer: tuple[str, ...] = ()
    """The fields that the JSON of a good answer always has."""
    kind: Kind = "json"
    generates: bool = False
    """Runs the engine: can be streamed, has a priority, can be refused for want of room or of an engine."""
    refusals: tuple[int, ...] = ()
    """Further statuses of errors."""
    refused: bool = False
    """Never answered well."""


CHAT, VECTORS, EXTRAS, ABOUT = "Generating", "Vectors", "Tokens and templates", "About"
STATE, CACHE = "State", "Prompt cache"
_ADMIN = (403,)

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        CHAT,
        "OpenAI chat: tools, reasoning, structured output",
        ChatBody,
        ("id", "object", "created", "model", "choices", "usage"),
        generates=True,
    ),
    ("POST", "/v1/completions"): Operation(
        CHAT,
        "OpenAI text completion: a string or token ids",
        CompletionBody,
        ("id", "object", "created", "model", "choices", "usage"),
        generates=True,
    ),
    ("POST", "/v1/messages"): Operation(
        CHAT,
        "Anthropic messages: text, thinking, tools",
        MessagesBody,
        ("id", "type", "role", "model", "content", "stop_reason", "usage"),
        generates=True,
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        CHAT, "How long a prompt would be; never runs the engine", MessagesBody, ("input_tokens",), refusals=(404, 503)
    ),
    ("POST", "/v1/responses"): Operation(
        CHAT,
        "OpenAI responses: items, tools, reasoning, continued by previous_response_id",
        ResponsesBody,
        ("id", "object", "created_at", "status", "model", "output", "usage"),
        generates=True,
    ),
    ("POST", "/v1/responses/input_tokens"): Operation(
        CHAT,
        "How long a prompt would be; never runs the engine",
        ResponsesBody,
        ("object", "input_tokens"),
        refusals=(404, 503),
    ),
    ("GET", "/v1/responses/{id}"): Operation(
        CHAT,
        "A stored response",
        answer=("id", "object", "created_at", "status", "model", "output", "usage"),
        refusals=(404,),
    ),
    ("DELETE", "/v1/responses/{id}"): Operation(
        CHAT, "Forget a stored response", answer=("id", "object", "deleted"), refusals=(404,)
    ),
    ("GET", "/v1/models"): Operation(ABOUT, "The model, and its true context", answer=("object", "data")),
    ("GET", "/v1/models/{name}"): Operation(
        ABOUT, "The same for one model", answer=("id", "object", "created", "owned_by"), refusals=(404,)
    ),
    ("POST", "/v1/embeddings"): Operation(
        VECTORS,
        "OpenAI embeddings: texts or token ids",
        EmbeddingsBody,
        kind="list",
        refusals=(404, 501, 503),
    ),
    ("POST", "/embedding"): Operation(
        VECTORS, "The same in llama-server's shape", EmbeddingsBody, kind="list", refusals=(404, 501, 503)
    ),
    ("POST", "/v1/rerank"): Operation(
        VECTORS,
        "Which documents answer a query best; needs a reranker",
        RerankBody,
        ("object", "model", "results", "usage"),
        refusals=(404, 501, 503),
    ),
    ("POST", "/v1/reranking"): Operation(
        VECTORS,
        "The same as /v1/rerank",
        RerankBody,
        ("object", "model", "results", "usage"),
        refusals=(404, 501, 503),
    ),
    ("POST", "/infill"): Operation(
        CHAT,
        "Code between two pieces of code, in llama-server's shape; needs a model that was trained for it",
        InfillBody,
        ("content", "stop"),
        generates=True,
        refusals=(501,),
    ),
    ("POST", "/tokenize"): Operation(
        EXTRAS, "The tokens of a text, and their texts", TokenizeBody, ("tokens",), refusals=(503,)
    ),
    ("POST", "/detokenize"): Operation(EXTRAS, "The text of tokens", DetokenizeBody, ("content",), refusals=(503,)),
    ("POST", "/apply-template"): Operation(
        EXTRAS, "The prompt that a chat would begin with, as text", ChatBody, ("prompt",), refusals=(404, 503)
    ),
    ("GET", "/props"): Operation(
        ABOUT,
        "llama-server's properties: context, template, defaults",
        answer=("default_generation_settings", "total_slots", "model_alias", "chat_template", "build_info"),
        refusals=(503,),
    ),
    ("POST", "/props"): Operation(ABOUT, "Refused: a running daemon keeps its settings", refused=True),
    ("GET", "/health"): Operation(
        STATE, "Whether a token can be generated, and if not, why", answer=("status",), refusals=(503,)
    ),
    ("GET", "/slots"): Operation(STATE, "What each slot holds and does, and who waits", answer=("slots", "waiting")),
    ("GET", "/metrics"): Operation(STATE, "Prometheus", kind="metrics"),
    ("POST", "/sleep"): Operation(
        STATE, "Free the engine's memory until a request comes; for admins", answer=("asleep",), refusals=(403, 409)
    ),
    ("POST", "/wake"): Operation(STATE, "Start the engine again; for admins", answer=("asleep",), refusals=_ADMIN),
    ("GET", "/cache"): Operation(
        CACHE, "What the prompt cache holds, and where", answer=("ram", "branches", "omitted", "pins"), refusals=(503,)
    ),
    ("GET", "/cache/requests/{id}"): Operation(
        CACHE,
        "Where a request's prompt came from, and why the rest was computed",
        answer=("id", "prompt", "hit", "why"),
        refusals=(404, 503),
    ),
    ("POST", "/cache/pin"): Operation(
        CACHE, "Never give up a conversation; for admins", PinBody, ("pin", "tokens", "ram"), refusals=(403, 503)
    ),
    ("POST", "/cache/unpin"): Operation(
        CACHE, "Undo a pin; for admins", PinBody, ("unpinned",), refusals=(403, 404, 503)
    ),
    ("POST", "/cache/purge"): Operation(
        CACHE, "Forget all prompts; for admins", answer=("purged",), refusals=(403, 503)
    ),
    ("GET", "/version"): Operation(ABOUT, "lcpd's and llama.cpp's version", answer=("version", "llama_cpp")),
    ("GET", "/openapi.json"): Operation(ABOUT, "This interface as an OpenAPI document", answer=("openapi",)),
    ("GET", "/docs"): Operation(ABOUT, "The same to read", kind="html"),
    ("GET", "/"): Operation(ABOUT, "Somebody is there", kind="text"),
}
"""By method and path, the latter with /v1 where the route answers with it as well as without."""
