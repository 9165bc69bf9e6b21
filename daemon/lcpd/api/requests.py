"""From a request's body to a running generation: the steps that all dialects share."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from aiohttp import web

from lcpd.anticipation.driver import Asked, FinishedTurn, spans_of
from lcpd.api.bodies import Body, parse
from lcpd.api.clients import OTHER, Client, identify, stated_priority
from lcpd.api.context import BEGUN, CONTEXT, KEY, STATUS, Context
from lcpd.api.encoding import decoded
from lcpd.api.errors import (
    ApiError,
    bad_request,
    blamed_field,
    internal,
    not_supported,
    overloaded,
    quarantined,
    timed_out,
    too_long,
    unavailable,
    unknown_model,
)
from lcpd.api.normalise import ATTRIBUTION, without_attribution
from lcpd.api.sampling import choices, for_choice
from lcpd.api.stream import dropped
from lcpd.api.turn import Turn, close
from lcpd.cache.isolation import marked
from lcpd.chat.client import ChatCrashed, ChatRefused, ChatTooLong, ChatUnavailable
from lcpd.chat.protocol import Rendered
from lcpd.engine.protocol import unpack
from lcpd.scheduler.embeddings import EmbeddingFailed
from lcpd.scheduler.generation import (
    EngineFailed,
    Generation,
    GenerationFailed,
    GenerationRefused,
    Priority,
    Prompt,
    Quarantined,
    QueueFull,
    QueueTimedOut,
)

Json = dict[str, Any]


async def read_body(request: web.Request, shape: type[Body]) -> tuple[Body, dict[str, Any]]:
    """The checked body, and the same as plain JSON.

    Raises ApiError, or ConnectionResetError when the client takes too long to send it.
    """
    if request.content_type != "application/json":
        raise ApiError(415, "Content-Type must be application/json.", param="Content-Type")
    server = request.app[CONTEXT].settings.server
    timeout = server.client_timeout
    try:
        async with asyncio.timeout(timeout):
            data = await request.read()
    except TimeoutError as error:
        raise dropped(request, f"the body did not come within {timeout:g} s") from error
    except web.RequestPayloadError as error:
        raise bad_request(f"The body cannot be read: {error}") from error
    data = decoded(data, request.headers.get("Content-Encoding", ""), server.max_body)
    return parse(data, shape, request.app[CONTEXT].settings.chat.max_json_depth)


def check_model(context: Context, name: str | None) -> None:
    """Raises ApiError when a request names another model than the one that runs."""
    if name is not None and name not in context.model_names:
        raise unknown_model(name, context.model_id)


@contextmanager
def api_errors(default_field: str, body: Collection[str] = ()) -> Iterator[None]:
    """Turn the errors of the chat process and the engine into ApiError.

    Where llama.cpp's words name a field that the `body` has, that one is blamed, else `default_field`.
    """
    try:
        yield
    except (ChatRefused, GenerationRefused) as error:
        raise bad_request(str(error), blamed_field(str(error), body, default_field)) from error
    except ChatTooLong as error:
        raise too_long(error.tokens, error.context, default_field) from error
    except ChatCrashed as error:
        raise bad_request(
            f"{error}. Make {default_field} (or the tools and schemas) smaller.", default_field
        ) from error
    except QueueFull as error:
        raise overloaded(f"Too many requests: {error}", error.retry_after) from error
    except QueueTimedOut as error:
        raise timed_out(str(error), error.retry_after) from error
    except (ChatUnavailable, EngineFailed) as error:
        raise unavailable(str(error), retry_after=30) from error
    except Quarantined as error:
        raise quarantined(str(error)) from error
    except (GenerationFailed, EmbeddingFailed) as error:
        raise internal(str(error)) from error


@dataclass(frozen=True)
class Terms:
    """What a request wants besides the reply to its prompt, and for whom."""

    client: str
    priority: Priority
    choices: int = 1
    min_tokens: int = 0
    store: bool = True
    """Whether anything of it may be kept when it has left its slot."""
    streamed: bool = False
    """Whether the reply is shown as it comes."""
    scope: int = 0
    """Number of the key that it shares what is computed with; 0: all keys (:mod:`lcpd.cache.isolation`)."""
    key: str = ""
    """Name of the API key that it came with; "": none."""
    program: str = OTHER
    """The kind of program that sent it."""
    received: float | None = None
    """When it came, in monotonic seconds."""
    name: str = ""
    """The id of the reply, and of its cache report; those of further replies are called name.1, name.2, ..."""
    normalised: tuple[str, ...] = ()
    """The rules by which something in the body was put right, for the cache report."""


def chat_terms(request: web.Request, plain: Json, normalised: tuple[str, ...] = ()) -> Terms:
    """The terms of a chat of any dialect.  Raises ApiError."""
    client = _client(request, plain)
    usual = request.app[CONTEXT].tool_users.priority(client, has_tools=bool(plain.get("tools")))
    terms = _terms(request, plain, client, stated_priority(request.headers, plain) or usual)
    return replace(terms, normalised=normalised)


def completion_terms(request: web.Request, plain: Json) -> Terms:
    """The terms of a text completion, which has no tools in any case.  Raises ApiError."""
    return _terms(request, plain, _client(request, plain), stated_priority(request.headers, plain) or "interactive")


def _terms(request: web.Request, plain: Json, client: Client, priority: Priority) -> Terms:
    key = request.get(KEY)
    if key is not None and key.background:
        priority = "background"
    return Terms(
        client.conversation,
        priority,
        store=stores(request.headers),
        streamed=bool(plain.get("stream")),
        scope=scope_of(request),
        key=key.name if key else "",
        program=client.kind,
        received=request[BEGUN],
    )


def scope_of(request: web.Request) -> int:
    """Number of the key that a request shares what is computed with; 0: all keys."""
    isolation, key = request.app[CONTEXT].isolation, request.get(KEY)
    return isolation.number(key.digest) if isolation and key else 0


def stores(headers: Mapping[str, str]) -> bool:
    """Whether a request lets anything of it be kept.  Raises ApiError for a header that says something else."""
    wish = headers.get("x-lcpd-cache")
    if wish is not None and wish.strip().lower() != "no-store":
        raise bad_request(f"x-lcpd-cache can be no-store, not {wish!r}.", "x-lcpd-cache")
    return wish is None


def named(terms: Terms, kind: str) -> Terms:
    """The terms with a new id for the reply, which begins with `kind`."""
    return replace(terms, name=f"{kind}{uuid.uuid4().hex}")


def with_choices(terms: Terms, plain: Json) -> Terms:
    """The terms with what a checked body of OpenAI's dialect asks for beyond one reply."""
    return replace(terms, choices=choices(plain), min_tokens=plain.get("min_tokens") or 0)


def normalised(request: web.Request, plain: Json) -> tuple[Json, tuple[str, ...]]:
    """A body of any dialect without what would make its head new for no reason, and the rules that changed it."""
    context = request.app[CONTEXT]
    settings = context.settings.cache
    rules: list[str] = []
    if settings.drop_attribution and (rest := without_attribution(plain)) is not plain:
        plain = rest
        rules.append(ATTRIBUTION)
    if settings.stable_tools and (tools := plain.get("tools")):
        known, changed = context.known_tools.as_before(tools, scope_of(request), stores(request.headers))
        plain = {**plain, "tools": known}
        rules += changed
    return plain, tuple(rules)


def _client(request: web.Request, plain: Json) -> Client:
    key = request.get(KEY)
    return identify(request.headers, plain, key.name if key else None, request.remote or "")


def known_context(context: Context) -> int:
    """Tokens of the model's context, where they matter and are known already; else 0."""
    info = context.supervisor.info
    return info.n_ctx if info is not None and info.generates else 0


async def submit(context: Context, rendered: Rendered, field: str, terms: Terms, first: int = 0) -> list[Generation]:
    """Queue a rendered prompt, which fits the context and leaves room for a reply, once for each reply wanted.

    max_tokens is clamped to the room left and to server.max_tokens, never a reason to refuse.  Waits while the model is
    loading.  `field` is the body's field that holds the prompt; `first`: replies to other prompts of the same request.
    Raises ApiError.
    """
    tokens = unpack(rendered.tokens)
    if not len(tokens):
        raise bad_request("The prompt is empty.", field)
    with api_errors(field):
        info = await context.dispatcher.model_info()
        if not info.generates:
            raise not_supported("This model cannot generate, it only embeds: ask /v1/embeddings or /v1/rerank.")
        room = info.n_ctx - len(tokens)
        if room < 1:
            raise too_long(len(tokens), info.n_ctx, field)
        wanted = rendered.max_tokens
        if wanted == 0:
            raise bad_request("At least 1 token must be asked for; -1 is no limit.", "max_tokens")
        longest = min(room, context.settings.server.max_tokens or room)
        prompt = Prompt(
            tokens=marked(tokens, terms.scope),
            spans=spans_of(rendered),
            sampling=rendered.sampling,
            max_tokens=min(wanted, longest) if wanted > 0 else longest,
            min_tokens=min(terms.min_tokens, longest),
            priority=terms.priority,
            client=terms.client,
            store=terms.store,
            streamed=terms.streamed,
            key=terms.key,
            program=terms.program,
            received=terms.received,
            normalised=terms.normalised,
        )
        if context.anticipator is not None and prompt.store:
            context.anticipator.begun(prompt)
        generations: list[Generation] = []
        try:
            for index in range(terms.choices):
                sampling = for_choice(rendered.sampling, index)
                # A report tells tokens, so none is kept of what is not to be kept.
                number = first + index
                name = (f"{terms.name}.{number}" if number else terms.name) if terms.store else ""
                generations.append(context.dispatcher.submit(replace(prompt, sampling=sampling, name=name)))
        except BaseException:
            for generation in generations:
                generation.close()
            raise
        return generations


async def conclude(request: web.Request, asked: Asked, turns: Sequence[Turn]) -> None:
    """Stop what still runs of a request.  To be called in any case.

    A reply that is complete counts as sent: many clients close the connection with the last event, which interrupts
    the handler.
    """
    if all(turn.finished for turn in turns):
        request.setdefault(STATUS, 200)
        _look_ahead(request.app[CONTEXT], asked, turns)
    await close(turns)


def _look_ahead(context: Context, asked: Asked, turns: Sequence[Turn]) -> None:
    """The reply was sent: compute ahead what its conversation goes on with.  Of several replies none is known to be."""
    turn = turns[0]
    finished = turn.finished
    if context.anticipator is None or len(turns) > 1 or finished is None or finished.done.reason == "cancelled":
        return
    if not turn.generation.prompt.store:
        return
    generated = np.array(turn.generated, np.int32)
    context.anticipator.finished(FinishedTurn(asked, turn.generation.prompt, generated, finished.message))
