"""POST /v1/chat/completions (https://platform.openai.com/docs/api-reference/chat)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from lcpd.anticipation.driver import Asked
from lcpd.api import requests as r
from lcpd.api import turn as t
from lcpd.api.bodies import ChatBody
from lcpd.api.context import CONTEXT, Context
from lcpd.api.errors import ApiError, bad_request
from lcpd.api.logprobs import content
from lcpd.api.normalise import chat_body
from lcpd.api.sampling import engine_fields
from lcpd.api.stream import merged, send_json, send_stream, sse
from lcpd.api.turn import Delta, Finished, Turn, timings
from lcpd.scheduler.generation import TokenProbs

Json = dict[str, Any]


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """The route's handler."""
    context = request.app[CONTEXT]
    body, plain = await r.read_body(request, ChatBody)
    r.check_model(context, body.model)
    plain, rules = r.normalised(request, plain)
    terms = r.named(r.with_choices(r.chat_terms(request, plain, rules), plain), "chatcmpl-")
    wanted = wanted_logprobs(plain)
    with r.api_errors("messages", plain):
        fields = chat_body(engine_fields(plain, max(wanted.top, 1) if wanted else 0))
        asked = Asked("chat", msgspec.json.encode(fields), scope=terms.scope)
        rendered = await context.chat.render(
            asked.dialect, asked.body, scope=asked.scope, context=r.known_context(context), store=terms.store
        )
    generations = await r.submit(context, rendered, "messages", terms)
    remembers = context.settings.cache.replay
    turns = [Turn.begin(context.chat, generation, rendered, remembers) for generation in generations]
    try:
        reply = _Reply(context, terms.name, turns, plain, wanted)
        if body.stream:
            usage = bool(body.stream_options and body.stream_options.include_usage)
            chunks = reply.chunks(usage)
            return await send_stream(request, chunks, reply.heartbeat, lambda e: sse(e.openai()), reply.headers())
        return await send_json(request, reply.whole(), ApiError.openai, reply.headers)
    finally:
        await r.conclude(request, asked, turns)


@dataclass(frozen=True)
class Logprobs:
    """Each token's probability is to be told, and those of the `top` best ones."""

    top: int
    post: bool = False
    """They are those after sampling."""

    def of(self, probs: Iterable[TokenProbs]) -> Json:
        """A choice's ``logprobs``."""
        return {"content": content(probs, self.top, self.post)}


def wanted_logprobs(plain: Json) -> Logprobs | None:
    """What a checked chat body asks to be told: OpenAI's logprobs and top_logprobs, or llama-server's n_probs."""
    top, n_probs = plain.get("top_logprobs"), plain.get("n_probs") or 0
    post = bool(plain.get("post_sampling_probs"))
    if plain.get("logprobs"):
        return Logprobs(max(top or 0, n_probs), post)
    if top is not None:
        raise bad_request("top_logprobs needs logprobs: true beside it.", "top_logprobs")
    return Logprobs(n_probs, post) if n_probs else None


class _Reply:
    """The replies to one request in OpenAI's shapes."""

    def __init__(
        self, context: Context, name: str, turns: list[Turn], fields: Collection[str], logprobs: Logprobs | None
    ) -> None:
        self._fields = fields
        self._turns = turns
        self._logprobs = logprobs
        self._head: Json = {"id": name, "created": int(time.time()), "model": context.model_id}

    def headers(self) -> dict[str, str]:
        """What the headers tell of it, as far as it is known."""
        return t.headers(self._head["id"], self._turns[0].usage)

    async def whole(self) -> Json:
        """All replies as one object."""
        probs: list[list[TokenProbs]] = [[] for _ in self._turns]
        ends: dict[int, Finished] = {}
        async for index, event in self._events():
            if isinstance(event, Delta | Finished):
                probs[index] += event.probs
            if isinstance(event, Finished):
                ends[index] = event
        choices = [
            {
                "index": index,
                "message": ends[index].message,
                "logprobs": self._logprobs.of(probs[index]) if self._logprobs else None,
                "finish_reason": finish_reason(ends[index]),
            }
            for index in range(len(self._turns))
        ]
        whole = {**self._head, "object": "chat.completion", "choices": choices, "usage": self._usage()}
        if len(self._turns) == 1:
            whole["timings"] = timings(self._turns[0].usage, ends[0].done)
        return whole

    async def chunks(self, include_usage: bool) -> AsyncIterator[bytes]:
        """The replies as server-sent events."""
        for index in range(len(self._turns)):
            yield sse(self._chunk(index, {"role": "assistant", "content": None}))
        async for index, event in self._events():
            if isinstance(event, Delta):
                yield sse(self._chunk(index, event.delta, event.probs))
            elif isinstance(event, Finished):
                last = self._chunk(index, {}, event.probs, finish_reason(event))
                yield sse({**last, "timings": timings(self._turns[index].usage, event.done)})
        if include_usage:
            yield sse({**self._object([]), "usage": self._usage()})
        yield b"data: [DONE]\n\n"

    def heartbeat(self) -> bytes:
        """A chunk that says nothing: Qwen Code takes comments for silence."""
        return sse(self._chunk(0, {}))

    async def _events(self) -> AsyncIterator[tuple[int, t.TurnEvent]]:
        with r.api_errors("messages", self._fields):
            async for item in merged([turn.events() for turn in self._turns]):
                yield item

    def _usage(self) -> Json:
        return t.total([turn.usage for turn in self._turns]).openai()

    def _chunk(
        self, index: int, delta: Json, probs: Collection[TokenProbs] = (), finish_reason: str | None = None
    ) -> Json:
        choice = {"index": index, "delta": delta, "finish_reason": finish_reason}
        if self._logprobs:
            choice["logprobs"] = self._logprobs.of(probs) if probs else None
        return self._object([choice])

    def _object(self, choices: list[Json]) -> Json:
        return {**self._head, "object": "chat.completion.chunk", "choices": choices}


def finish_reason(event: Finished) -> str:
    """Why a reply ended, in OpenAI's words."""
    if event.done.reason == "length":
        return "length"
    return "tool_calls" if event.message.get("tool_calls") else "stop"
