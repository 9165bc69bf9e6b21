"""POST /v1/responses, and what was stored of them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import msgspec
from aiohttp import web

from lcpd.anticipation.driver import Asked
from lcpd.api import requests as r
from lcpd.api import turn as t
from lcpd.api.context import CONTEXT, KEY, Context
from lcpd.api.errors import ApiError, bad_request
from lcpd.api.normalise import chat_body
from lcpd.api.responses.body import (
    Json,
    ResponsesBody,
    chat_fields,
    own_words,
    refuse_what_is_not_offered,
    response_head,
)
from lcpd.api.responses.inputs import as_items
from lcpd.api.responses.store import STORE, ResponseStore
from lcpd.api.responses.stream import ResponseStream
from lcpd.api.responses.tools import Toolbox, toolbox
from lcpd.api.sampling import engine_fields
from lcpd.api.stream import send_json, send_stream, sse
from lcpd.api.turn import Delta, Finished, Turn
from lcpd.chat.protocol import Rendered

Keep = Callable[[Json], None]


@dataclass(frozen=True)
class _Prepared:
    """A request up to its prompt."""

    asked: Asked
    rendered: Rendered
    fields: Json
    box: Toolbox
    new_items: list[Json]
    normalised: tuple[str, ...]
    """The rules by which the tools were put right."""


async def create(request: web.Request) -> web.StreamResponse:
    """A response, whole or as a stream."""
    context, store = request.app[CONTEXT], request.app[STORE]
    body, plain = await r.read_body(request, ResponsesBody)
    r.check_model(context, body.model)
    terms = r.named(r.with_choices(r.chat_terms(request, plain), plain), "resp_")
    ready = await _prepare(request, body, plain, r.known_context(context))
    terms = replace(terms, normalised=ready.normalised)
    head = response_head(body, plain, ready.box, terms.name, context.model_id, int(time.time()))
    head["store"] = head["store"] and terms.store
    summarises = bool(body.reasoning and body.reasoning.summary)
    with own_words():
        (generation,) = await r.submit(context, ready.rendered, "messages", terms)
    turn = Turn.begin(context.chat, generation, ready.rendered, context.settings.cache.replay)
    stream = ResponseStream(head, turn.usage, ready.box, summarises)

    def keep(response: Json) -> None:
        if head["store"]:
            store.add(_owner(request), response, ready.new_items, body.previous_response_id)

    try:
        if body.stream:
            events = _events(turn, stream, ready.fields, keep)
            headers = t.headers(terms.name, turn.usage)
            return await send_stream(
                request, events, lambda: _wire(stream.heartbeat()), lambda e: _wire(stream.failed(e)), headers
            )
        whole = _whole(turn, stream, ready.fields, keep)
        return await send_json(request, whole, lambda e: _failed(stream, e), lambda: t.headers(terms.name, turn.usage))
    finally:
        await r.conclude(request, ready.asked, [turn])


async def input_tokens(request: web.Request) -> web.Response:
    """How long the prompt would be; rendered and tokenised, never run."""
    body, plain = await r.read_body(request, ResponsesBody)
    r.check_model(request.app[CONTEXT], body.model)
    ready = await _prepare(request, body, plain)
    count = len(ready.rendered.tokens) // 4
    return web.json_response({"object": "response.input_tokens", "input_tokens": count})


async def retrieve(request: web.Request) -> web.Response:
    """A stored response."""
    response_id = request.match_info["id"]
    response = request.app[STORE].response(_owner(request), response_id)
    if response is None:
        raise _unknown(response_id)
    return web.json_response(body=response)


async def delete(request: web.Request) -> web.Response:
    """Forget a stored response."""
    response_id = request.match_info["id"]
    if not request.app[STORE].remove(_owner(request), response_id):
        raise _unknown(response_id)
    return web.json_response({"id": response_id, "object": "response", "deleted": True})


def _owner(request: web.Request) -> str:
    """Whose responses a request may see: those made with its key."""
    key = request.get(KEY)
    return key.digest if key else ""


def _unknown(response_id: str) -> ApiError:
    return ApiError(404, f"Response with id '{response_id}' not found.")


async def _prepare(request: web.Request, body: ResponsesBody, plain: Json, fits: int = 0) -> _Prepared:
    """`fits`: tokens, beyond which the prompt is not wanted; 0: it is, however long.  Raises ApiError."""
    context, store, owner = request.app[CONTEXT], request.app[STORE], _owner(request)
    refuse_what_is_not_offered(body)
    new_items = _looked_up(as_items(body.input), store, owner)
    earlier: list[Json] | None = []
    if body.previous_response_id is not None:
        earlier = store.conversation(owner, body.previous_response_id)
    if earlier is None:
        raise bad_request(
            f"Previous response with id '{body.previous_response_id}' not found.",
            "previous_response_id",
            "previous_response_not_found",
        )
    box = toolbox(body.tools or [])
    with own_words():
        fields = chat_fields(body, plain, [*earlier, *new_items], box)
        fields, rules = r.normalised(request, fields)
        rendered_body = chat_body(engine_fields(fields, 0))
        asked = Asked("chat", msgspec.json.encode(rendered_body), scope=r.scope_of(request))
        rendered = await _render(context, asked, fields, r.stores(request.headers), fits)
    return _Prepared(asked, rendered, fields, box, new_items, rules)


async def _render(context: Context, asked: Asked, fields: Json, store: bool, fits: int) -> Rendered:
    with r.api_errors("messages", fields):
        return await context.chat.render(asked.dialect, asked.body, scope=asked.scope, context=fits, store=store)


def _looked_up(items: list[Json], store: ResponseStore, owner: str) -> list[Json]:
    """The items with those in place that are only referred to.  Raises ApiError."""
    found = []
    for i, item in enumerate(items):
        if item.get("type", "item_reference") == "item_reference" and "role" not in item:
            known = store.item(owner, str(item.get("id")))
            if known is None:
                raise ApiError(404, f"Item with id '{item.get('id')}' not found.", param=f"input[{i}].id")
            item = known
        found.append(item)
    return found


async def _events(turn: Turn, stream: ResponseStream, fields: Json, keep: Keep) -> AsyncIterator[bytes]:
    yield _wire(stream.start())
    with r.api_errors("messages", fields):
        async for event in turn.events():
            if isinstance(event, Delta):
                yield _wire(stream.delta(event.delta))
            elif isinstance(event, Finished):
                last = stream.finish(event)
                # Before the client can know of the response, and continue it.
                keep(stream.response)
                yield _wire(last)


async def _whole(turn: Turn, stream: ResponseStream, fields: Json, keep: Keep) -> Json:
    with own_words(), r.api_errors("messages", fields):
        async for event in turn.events():
            if isinstance(event, Delta):
                stream.delta(event.delta)
            elif isinstance(event, Finished):
                stream.finish(event)
                keep(stream.response)
    return stream.response


def _failed(stream: ResponseStream, error: ApiError) -> Json:
    stream.failed(error)
    return stream.response


def _wire(events: list[Json]) -> bytes:
    return b"".join(sse(event, event["type"]) for event in events)
