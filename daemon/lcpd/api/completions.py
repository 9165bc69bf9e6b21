"""POST /v1/completions: text in, text out, no template (https://platform.openai.com/docs/api-reference/completions)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Iterable
from typing import Any

import msgspec
from aiohttp import web

from lcpd.api import requests as r
from lcpd.api.bodies import CompletionBody, Mixed, separate
from lcpd.api.context import CONTEXT, Context
from lcpd.api.errors import ApiError, bad_request
from lcpd.api.logprobs import Columns, content
from lcpd.api.sampling import MAX_CHOICES, engine_fields, with_schema
from lcpd.api.stream import COMMENT, merged, send_json, send_stream, sse
from lcpd.api.turn import Gathered, Usage, gather, headers, timings, total
from lcpd.engine.protocol import unpack
from lcpd.scheduler.generation import Done, Generation, TokenProbs

Json = dict[str, Any]


async def completions(request: web.Request) -> web.StreamResponse:
    """The route's handler."""
    context = request.app[CONTEXT]
    body, plain = await r.read_body(request, CompletionBody)
    r.check_model(context, body.model)
    prompts = _prompts(body)
    del plain["prompt"]
    terms = r.named(r.with_choices(r.completion_terms(request, plain), plain), "cmpl-")
    tells = _Logprobs(plain)
    with r.api_errors("prompt", plain):
        fields = msgspec.json.encode(with_schema(engine_fields(plain, tells.n_probs)))
        fits = r.known_context(context)
        rendered = [
            await context.chat.complete(await _known(context, prompt), fields, fits, terms.scope, terms.store)
            for prompt in prompts
        ]
    generations: list[Generation] = []
    try:
        for one in rendered:
            generations += await r.submit(context, one, "prompt", terms, first=len(generations))
        choices = [_Choice(index, generation, tells) for index, generation in enumerate(generations)]
        reply = _Reply(context.model_id, terms.name, choices, plain, len(prompts))
        if body.stream:
            usage = bool(body.stream_options and body.stream_options.include_usage)
            chunks = reply.chunks(usage)
            return await send_stream(request, chunks, lambda: COMMENT, lambda e: sse(e.openai()), reply.headers())
        return await send_json(request, reply.whole(), ApiError.openai, reply.headers)
    finally:
        for generation in generations:
            generation.close()


def _prompts(body: CompletionBody) -> list[Mixed]:
    prompts = separate(body.prompt, "prompt")
    if not 1 <= len(prompts) <= MAX_CHOICES:
        raise bad_request(f"Send 1 to {MAX_CHOICES} prompts.", "prompt")
    return prompts


async def _known(context: Context, prompt: Mixed) -> str | list[int]:
    """A prompt as the chat process takes it: as text or as token ids."""
    if isinstance(prompt, str):
        return prompt
    tokens = [item for item in prompt if isinstance(item, int)]
    if len(tokens) == len(prompt):
        return tokens
    return list(unpack(await context.chat.tokenize(prompt, True, True)).tolist())


class _Logprobs:
    """What a checked body asks to be told: OpenAI's logprobs as columns, llama-server's n_probs as a list, or both."""

    def __init__(self, plain: Json) -> None:
        self.columns: int | None = plain.get("logprobs")
        self.listed: int = plain.get("n_probs") or 0
        self.post = bool(plain.get("post_sampling_probs"))
        asked = self.columns is not None or self.listed
        self.n_probs = max(self.columns or 0, self.listed, 1) if asked else 0


class _Choice:
    """One of the replies."""

    def __init__(self, index: int, generation: Generation, tells: _Logprobs) -> None:
        self.index = index
        self.generation = generation
        self.usage = Usage(len(generation.prompt.tokens))
        self._tells = tells
        self._columns = None if tells.columns is None else Columns(tells.columns)

    async def events(self) -> AsyncIterator[Gathered]:
        """What is new, each time that there is something to tell."""
        async for batch in self.generation.batches():
            new = gather(batch, self.usage)
            if new.text or new.probs or new.done:
                yield new

    def shaped(self, text: str, probs: Iterable[TokenProbs], done: Done | None) -> Json:
        """A part of the reply, or all of it; the parts have to come in order."""
        probs = tuple(probs)
        logprobs = self._columns.add(probs) if self._columns else {}
        if self._tells.listed:
            logprobs["content"] = content(probs, self._tells.listed, self._tells.post)
        reason = None if done is None else "length" if done.reason == "length" else "stop"
        return {"index": self.index, "text": text, "logprobs": logprobs or None, "finish_reason": reason}


class _Reply:
    """The replies to one request in OpenAI's shapes."""

    def __init__(
        self, model: str, name: str, choices: list[_Choice], fields: Collection[str], prompts: int = 1
    ) -> None:
        """`choices`: as many to each of the `prompts`, one prompt's after the other's."""
        self._fields = fields
        self._choices = choices
        self._prompts = prompts
        self._head: Json = {
            "id": name,
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    def headers(self) -> dict[str, str]:
        """What the headers tell of it, as far as it is known."""
        return headers(self._head["id"], self._choices[0].usage)

    async def whole(self) -> Json:
        """All replies as one object."""
        texts = ["" for _ in self._choices]
        probs: list[list[TokenProbs]] = [[] for _ in self._choices]
        ends: dict[int, Done] = {}
        async for index, new in self._events():
            texts[index] += new.text
            probs[index] += new.probs
            if new.done:
                ends[index] = new.done
        shaped = [choice.shaped(texts[i], probs[i], ends[i]) for i, choice in enumerate(self._choices)]
        whole = {**self._head, "choices": shaped, "usage": self._usage()}
        if len(self._choices) == 1:
            whole["timings"] = timings(self._choices[0].usage, ends[0])
        return whole

    async def chunks(self, include_usage: bool) -> AsyncIterator[bytes]:
        """The replies as server-sent events."""
        async for index, new in self._events():
            choice = self._choices[index]
            chunk = {**self._head, "choices": [choice.shaped(new.text, new.probs, new.done)]}
            yield sse({**chunk, "timings": timings(choice.usage, new.done)} if new.done else chunk)
        if include_usage:
            yield sse({**self._head, "choices": [], "usage": self._usage()})
        yield b"data: [DONE]\n\n"

    async def _events(self) -> AsyncIterator[tuple[int, Gathered]]:
        with r.api_errors("prompt", self._fields):
            async for item in merged([choice.events() for choice in self._choices]):
                yield item

    def _usage(self) -> Json:
        each = len(self._choices) // self._prompts
        groups = [self._choices[i : i + each] for i in range(0, len(self._choices), each)]
        usages = [total([choice.usage for choice in group]) for group in groups]
        whole = Usage(
            prompt=sum(usage.prompt for usage in usages),
            cached=sum(usage.cached for usage in usages),
            generated=sum(usage.generated for usage in usages),
        )
        return whole.openai()
