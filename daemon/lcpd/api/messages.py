"""POST /v1/messages and /v1/messages/count_tokens (https://docs.anthropic.com/en/api/messages)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from aiohttp import web

from lcpd.anticipation.driver import Asked
from lcpd.api import requests as r
from lcpd.api.anthropic import Json, MessageStream, content_blocks, whole_stop_reason
from lcpd.api.bodies import MessagesBody
from lcpd.api.context import CONTEXT, Context
from lcpd.api.errors import ApiError
from lcpd.api.normalise import messages_body
from lcpd.api.stream import send_json, send_stream, sse
from lcpd.api.turn import Delta, Finished, Turn, headers, timings
from lcpd.chat.protocol import Rendered


async def messages(request: web.Request) -> web.StreamResponse:
    """A reply in Anthropic's shapes, whole or as a stream."""
    context = request.app[CONTEXT]
    body, plain = await r.read_body(request, MessagesBody)
    r.check_model(context, body.model)
    plain, rules = r.normalised(request, plain)
    terms = r.named(r.chat_terms(request, plain, rules), "msg_")
    asked = _asked(plain, terms.scope)
    rendered = await _render(context, asked, plain, terms.store, r.known_context(context))
    (generation,) = await r.submit(context, rendered, "messages", terms)
    turn = Turn.begin(context.chat, generation, rendered, context.settings.cache.replay)
    try:
        if body.stream:
            thinks = (body.thinking or {}).get("type") in ("enabled", "adaptive")
            stream = MessageStream(terms.name, context.model_id, turn.usage, thinks)
            return await send_stream(
                request,
                _events(turn, stream),
                lambda: _wire(stream.heartbeat()),
                lambda e: sse(e.anthropic(), "error"),
                headers(terms.name, turn.usage),
            )
        whole = _whole(turn, terms.name, context.model_id)
        return await send_json(request, whole, ApiError.anthropic, lambda: headers(terms.name, turn.usage))
    finally:
        await r.conclude(request, asked, [turn])


async def count_tokens(request: web.Request) -> web.Response:
    """How long the prompt would be; rendered and tokenised, never run."""
    context = request.app[CONTEXT]
    body, plain = await r.read_body(request, MessagesBody)
    r.check_model(context, body.model)
    plain, _ = r.normalised(request, plain)
    rendered = await _render(context, _asked(plain, r.scope_of(request)), plain, r.stores(request.headers))
    return web.json_response({"input_tokens": len(rendered.tokens) // 4})


def _asked(plain: Json, scope: int) -> Asked:
    changed, overrides = messages_body(plain)
    told = msgspec.json.encode(overrides) if overrides else None
    return Asked("anthropic", msgspec.json.encode(changed), told, scope)


async def _render(context: Context, asked: Asked, plain: Json, store: bool, fits: int = 0) -> Rendered:
    """`fits`: tokens, beyond which the prompt is not wanted; 0: it is, however long."""
    with r.api_errors("messages", plain):
        return await context.chat.render(
            asked.dialect, asked.body, asked.overrides, scope=asked.scope, context=fits, store=store
        )


async def _whole(turn: Turn, message_id: str, model: str) -> Json:
    with r.api_errors("messages"):
        async for event in turn.events():
            if isinstance(event, Finished):
                blocks = content_blocks(event.message)
                return {
                    "id": message_id,
                    "type": "message",
                    "role": "assistant",
                    "model": model,
                    "content": blocks,
                    "stop_reason": whole_stop_reason(event, blocks),
                    "stop_sequence": event.done.stop or None,
                    "usage": turn.usage.anthropic(),
                    "timings": timings(turn.usage, event.done),
                }
    raise AssertionError("a turn ends with Finished or an error")


async def _events(turn: Turn, stream: MessageStream) -> AsyncIterator[bytes]:
    with r.api_errors("messages"):
        async for event in turn.events():
            if isinstance(event, Delta):
                yield _wire(stream.delta(event.delta))
            elif isinstance(event, Finished):
                yield _wire(stream.finish(event))
            else:
                yield _wire(stream.start())


def _wire(events: list[Json]) -> bytes:
    return b"".join(sse(event, event["type"]) for event in events)
