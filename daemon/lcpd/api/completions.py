"""POST /v1/completions: text in, text out, no template (https://platform.openai.com/docs/api-reference/completions)."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Collection
from typing import Any

import msgspec
from aiohttp import web

from lcpd.api import requests as r
from lcpd.api.bodies import CompletionBody, refuse_unoffered
from lcpd.api.context import CONTEXT
from lcpd.api.errors import ApiError, bad_request
from lcpd.api.stream import COMMENT, send_json, send_stream, sse
from lcpd.api.turn import Usage, gather, timings
from lcpd.scheduler.generation import Done, Generation

Json = dict[str, Any]


async def completions(request: web.Request) -> web.StreamResponse:
    """The route's handler."""
    context = request.app[CONTEXT]
    body, plain = await r.read_body(request, CompletionBody)
    r.check_model(context, body.model)
    refuse_unoffered(body)
    prompt = _prompt(body)
    del plain["prompt"]
    with r.api_errors("prompt", plain):
        rendered = await context.chat.complete(prompt, msgspec.json.encode(plain))
    generation = await r.submit(context, rendered, "prompt")
    try:
        reply = _Reply(context.model_id, generation, plain)
        if body.stream:
            usage = bool(body.stream_options and body.stream_options.include_usage)
            return await send_stream(request, reply.chunks(usage), lambda: COMMENT, lambda e: sse(e.openai()))
        return await send_json(request, reply.whole(), ApiError.openai)
    finally:
        generation.close()


def _prompt(body: CompletionBody) -> str | list[int]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1 and isinstance(prompt[0], str):
        return prompt[0]
    tokens = [item for item in prompt if isinstance(item, int)]
    if len(tokens) < len(prompt):
        raise bad_request("Send a string, a list of one string, or a list of token ids.", "prompt")
    return tokens


class _Reply:
    """One reply in OpenAI's shapes."""

    def __init__(self, model: str, generation: Generation, fields: Collection[str]) -> None:
        self._fields = fields
        self._generation = generation
        self._usage = Usage(len(generation.prompt.tokens))
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    async def whole(self) -> Json:
        """The reply as one object."""
        text = ""
        async for piece, done in self._pieces():
            text += piece
            if done:
                return {
                    **self._head,
                    "choices": [_choice(text, done)],
                    "usage": self._usage.openai(),
                    "timings": timings(self._usage, done),
                }
        raise AssertionError("a generation ends with Done or an error")

    async def chunks(self, include_usage: bool) -> AsyncIterator[bytes]:
        """The reply as server-sent events."""
        async for piece, done in self._pieces():
            chunk = {**self._head, "choices": [_choice(piece, done)]}
            yield sse({**chunk, "timings": timings(self._usage, done)} if done else chunk)
        if include_usage:
            yield sse({**self._head, "choices": [], "usage": self._usage.openai()})
        yield b"data: [DONE]\n\n"

    async def _pieces(self) -> AsyncIterator[tuple[str, Done | None]]:
        with r.api_errors("prompt", self._fields):
            async for batch in self._generation.batches():
                text, done = gather(batch, self._usage)
                if text or done:
                    yield text, done


def _choice(text: str, done: Done | None) -> Json:
    reason = None if done is None else "length" if done.reason == "length" else "stop"
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
