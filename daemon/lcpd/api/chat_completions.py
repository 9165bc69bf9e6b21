"""POST /v1/chat/completions (https://platform.openai.com/docs/api-reference/chat)."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Collection
from typing import Any

import msgspec
from aiohttp import web

from lcpd.api import requests as r
from lcpd.api.bodies import ChatBody, refuse_unoffered
from lcpd.api.context import CONTEXT, Context
from lcpd.api.errors import ApiError
from lcpd.api.normalise import chat_body
from lcpd.api.stream import COMMENT, send_json, send_stream, sse
from lcpd.api.turn import Delta, Finished, Turn, timings

Json = dict[str, Any]


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """The route's handler."""
    context = request.app[CONTEXT]
    body, plain = await r.read_body(request, ChatBody)
    r.check_model(context, body.model)
    refuse_unoffered(body)
    with r.api_errors("messages", plain):
        rendered = await context.chat.render("chat", msgspec.json.encode(chat_body(plain)))
    turn = Turn.begin(context.chat, await r.submit(context, rendered, "messages"), rendered)
    try:
        reply = _Reply(context, turn, plain)
        if body.stream:
            usage = bool(body.stream_options and body.stream_options.include_usage)
            return await send_stream(request, reply.chunks(usage), lambda: COMMENT, lambda e: sse(e.openai()))
        return await send_json(request, reply.whole(), ApiError.openai)
    finally:
        await turn.close()


class _Reply:
    """One reply in OpenAI's shapes."""

    def __init__(self, context: Context, turn: Turn, fields: Collection[str]) -> None:
        self._fields = fields
        self._turn = turn
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": context.model_id}

    async def whole(self) -> Json:
        """The reply as one object."""
        with r.api_errors("messages", self._fields):
            async for event in self._turn.events():
                if isinstance(event, Finished):
                    return {
                        **self._head,
                        "object": "chat.completion",
                        "choices": [
                            {
                                "index": 0,
                                "message": event.message,
                                "logprobs": None,
                                "finish_reason": finish_reason(event),
                            }
                        ],
                        "usage": self._turn.usage.openai(),
                        "timings": timings(self._turn.usage, event.done),
                    }
        raise AssertionError("a turn ends with Finished or an error")

    async def chunks(self, include_usage: bool) -> AsyncIterator[bytes]:
        """The reply as server-sent events."""
        yield self._chunk({"role": "assistant", "content": None})
        with r.api_errors("messages", self._fields):
            async for event in self._turn.events():
                if isinstance(event, Delta):
                    yield self._chunk(event.delta)
                elif isinstance(event, Finished):
                    last = self._object([{"index": 0, "delta": {}, "finish_reason": finish_reason(event)}])
                    last["timings"] = timings(self._turn.usage, event.done)
                    yield sse(last)
        if include_usage:
            yield sse({**self._object([]), "usage": self._turn.usage.openai()})
        yield b"data: [DONE]\n\n"

    def _chunk(self, delta: Json) -> bytes:
        return sse(self._object([{"index": 0, "delta": delta, "finish_reason": None}]))

    def _object(self, choices: list[Json]) -> Json:
        return {**self._head, "object": "chat.completion.chunk", "choices": choices}


def finish_reason(event: Finished) -> str:
    """Why a reply ended, in OpenAI's words."""
    if event.done.reason == "length":
        return "length"
    return "tool_calls" if event.message.get("tool_calls") else "stop"
