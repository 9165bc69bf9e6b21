"""POST /infill: code between two pieces of code, in llama-server's shapes (tools/server/README.md of llama.cpp).

Editors ask for this at every pause in typing, so they bound the reply: by its time (`t_max_predict_ms`), by its
indentation (`n_indent`), and by the sampler that ends it early (`infill`).  All three are for this route alone.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import msgspec
from aiohttp import web
from msgspec import Meta

from lcpd.api import requests as r
from lcpd.api.bodies import OpenAiBody, TokenId
from lcpd.api.context import CONTEXT, Context
from lcpd.api.cutting import Cutter, Limits
from lcpd.api.errors import ApiError, bad_request, not_supported
from lcpd.api.logprobs import content
from lcpd.api.sampling import By, Only, Rule, Whole, engine_fields, problem_with_samplers, with_schema
from lcpd.api.stream import COMMENT, send_json, send_stream, sse
from lcpd.api.turn import Usage, gather, headers, timings
from lcpd.chat.infill import Gap, Room
from lcpd.scheduler.generation import Done, Event, Generation, Text, TokenProbs

Json = dict[str, Any]
_MAX_FILES = 1024
_MAX_TOP_K = 100
"""With the sampler infill: a millisecond a token, in which nobody else gets one."""
_DEFAULT_TOP_K = 40
"""llama.cpp's."""
_ONE = "one reply is given"
Code = str | list[str | TokenId]


class File(msgspec.Struct, kw_only=True):
    """Another file of the project."""

    text: str
    filename: str = "tmp"


class InfillBody(OpenAiBody, kw_only=True):
    """POST /infill"""

    rules: ClassVar[Mapping[str, Rule]] = {
        "n_indent": Whole(0, 10_000),
        "t_max_predict_ms": Whole(-1),
        "samplers": By(lambda value: problem_with_samplers(value, infill=True)),
        "n": Only((1,), _ONE),
        "n_cmpl": Only((1,), _ONE),
        "best_of": Only((1,), _ONE),
        "logprobs": Only((False, 0), "ask for n_probs"),
    }
    input_prefix: Code
    input_suffix: Code
    input_extra: Annotated[list[File], Meta(max_length=_MAX_FILES)] | None = None
    prompt: str | None = None
    response_fields: Annotated[list[str], Meta(max_length=256)] | None = None
    return_tokens: bool | None = None


async def infill(request: web.Request) -> web.StreamResponse:
    """The route's handler."""
    context = request.app[CONTEXT]
    body, plain = await r.read_body(request, InfillBody)
    r.check_model(context, body.model)
    _check_top_k(plain)
    await _check_vocabulary(context)
    limits = Limits(plain.get("n_indent") or 0, (plain.get("t_max_predict_ms") or 0) / 1e3)
    probs = Probs(plain.get("n_probs") or 0, bool(plain.get("post_sampling_probs")))
    files = [(file.filename, file.text) for file in body.input_extra or []]
    gap = Gap(body.input_prefix, body.input_suffix, body.prompt or "", files)
    terms = r.named(r.completion_terms(request, plain), "infill-")
    with r.api_errors("input_prefix", plain):
        info = await context.dispatcher.model_info()
        fields = _fields(plain, probs.count)
        room = Room(info.n_ctx, context.settings.model.batch, _reply_room(fields, info.n_ctx))
        rendered = await context.chat.infill(gap, room, msgspec.json.encode(fields))
    (generation,) = await r.submit(context, rendered, "input_prefix", terms)
    reply = Reply(context.model_id, terms.name, generation, limits, probs, body)
    try:
        if body.stream:
            return await send_stream(
                request, reply.chunks(), lambda: COMMENT, lambda e: sse(e.openai()), reply.headers()
            )
        return await send_json(request, reply.whole(), ApiError.openai, reply.headers)
    finally:
        generation.close()


async def _check_vocabulary(context: Context) -> None:
    """Raises ApiError where the model cannot do this."""
    with r.api_errors("model"):
        await context.chat.start()
    if lacking := context.chat.info.get("infill_lacks"):
        missing = " ".join(f"{name} token is missing." for name in lacking)
        raise not_supported(
            f"Infill is not supported by this model: {missing} Models that were trained for it have these tokens."
        )


def _check_top_k(plain: Json) -> None:
    asks = any(name.lower() in ("infill", "i") for name in plain.get("samplers") or ())
    top_k = _DEFAULT_TOP_K if plain.get("top_k") is None else plain["top_k"]
    if asks and not 1 <= top_k <= _MAX_TOP_K:
        reason = "whose time grows with its square"
        raise bad_request(f"top_k must be between 1 and {_MAX_TOP_K} with the sampler infill, {reason}.", "top_k")


def _fields(plain: Json, n_probs: int) -> Json:
    own = {*InfillBody.__struct_fields__, "n_indent", "t_max_predict_ms"}
    fields = with_schema({name: v for name, v in engine_fields(plain, n_probs).items() if name not in own})
    # Editors compute a prompt ahead by asking for nothing; like llama-server, one token is given then.
    return {name: 1 if name in ("n_predict", "max_tokens") and v == 0 else v for name, v in fields.items()}


def _reply_room(fields: Json, context: int) -> int:
    """Tokens that are kept free for the reply where there is too much around the gap."""
    wanted = next((fields[name] for name in ("n_predict", "max_tokens") if fields.get(name, -1) > 0), context // 8)
    return max(1, min(int(wanted), context // 2))


@dataclass(frozen=True)
class Probs:
    """How many alternatives of each token are told, and whether as the samplers left them."""

    count: int
    post: bool

    def told(self, probs: Sequence[TokenProbs]) -> Json:
        """The field that tells them, if they were asked for."""
        return {"completion_probabilities": content(probs, self.count, self.post)} if self.count and probs else {}


@dataclass(frozen=True)
class Part:
    """What is new of a reply."""

    text: str
    tokens: list[int]
    probs: tuple[TokenProbs, ...]
    done: Done | None


@dataclass
class Reply:
    """A reply in llama-server's shapes."""

    model: str
    name: str
    generation: Generation
    limits: Limits
    probs: Probs
    body: InfillBody
    usage: Usage = field(init=False)
    _cutter: Cutter = field(init=False)
    _probs: list[TokenProbs] = field(default_factory=list)
    _tokens: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.usage = Usage(len(self.generation.prompt.tokens))
        self._cutter = Cutter(self.limits)

    def headers(self) -> dict[str, str]:
        """What the headers tell of it, as far as it is known."""
        return headers(self.name, self.usage)

    async def whole(self) -> Json:
        """The reply as one object."""
        async for part in self._parts():
            if part.done:
                return self._final(self._cutter.text, part.done)
        raise AssertionError("a reply ends with its end")

    async def chunks(self) -> AsyncIterator[bytes]:
        """The reply as server-sent events."""
        async for part in self._parts():
            if part.text or not part.done:
                told = {"index": 0, "content": part.text, "tokens": part.tokens, "stop": False, **self._counts()}
                yield sse({**told, **self.probs.told(part.probs)})
            if part.done:
                yield sse(self._final("", part.done))

    async def _parts(self) -> AsyncIterator[Part]:
        begun = first = time.monotonic()
        with r.api_errors("input_prefix"):
            async for batch in self.generation.batches():
                new = gather(batch, self.usage)
                now = time.monotonic()
                if not self._tokens and new.text:
                    first = now
                tokens = _tokens(batch)
                self._tokens += tokens
                self._probs += new.probs
                text = self._cutter.push(new.text, now - first)
                done = new.done
                if self._cutter.over and (done is None or done.reason != "length"):
                    self.generation.close(answered=True)
                    done = Done("length", "", "", self.usage.cached, self.usage.generated, first - begun, now - first)
                elif done:
                    text += self._cutter.finish()
                if text or done:
                    yield Part(text, tokens, new.probs, done)
                if done:
                    return

    def _counts(self) -> Json:
        return {"tokens_predicted": self.usage.generated, "tokens_evaluated": self.usage.prompt}

    def _final(self, text: str, done: Done) -> Json:
        told = {
            "index": 0,
            "content": text,
            "tokens": self._tokens if self.body.return_tokens and not self.body.stream else [],
            "stop": True,
            "model": self.model,
            **self._counts(),
            "has_new_line": "\n" in self._cutter.text,
            "truncated": False,
            "stop_type": {"stop": "eos", "stop-string": "word"}.get(done.reason, "limit"),
            "stopping_word": done.stop,
            "tokens_cached": self.usage.prompt + self.usage.generated,
            "timings": timings(self.usage, done),
            **({} if self.body.stream else self.probs.told(self._probs)),
        }
        return only(told, self.body.response_fields) if self.body.response_fields else told


def _tokens(batch: list[Event]) -> list[int]:
    return [token for event in batch if isinstance(event, Text) for token in event.tokens]


def only(told: Json, paths: list[str]) -> Json:
    """The values at these paths (a/b), with the paths as names, as llama-server has it; unknown ones are left out."""
    found: Json = {}
    for path in paths:
        value: Any = told
        for name in path.split("/"):
            value = value[name] if isinstance(value, dict) and name in value else _NOTHING
        if value is not _NOTHING:
            found[path] = value
    return found


_NOTHING = object()
