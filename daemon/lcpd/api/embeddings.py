"""POST /v1/embeddings (https://platform.openai.com/docs/api-reference/embeddings), and llama-server's /embedding.

A body with `content` instead of `input` is answered in llama-server's shape on every one of these routes.
"""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from aiohttp import web
from msgspec import Meta

from lcpd.api import requests as r
from lcpd.api.bodies import Mixed, Positive, TokenId, separate
from lcpd.api.context import CONTEXT, Context
from lcpd.api.errors import ApiError, bad_request, not_supported, too_long
from lcpd.api.stream import send_json
from lcpd.engine.protocol import ModelInfo, unpack
from lcpd.scheduler.slots import Tokens

Json = dict[str, Any]
Vector = npt.NDArray[np.float32]
MAX_TEXTS = 2048
"""In one request, as OpenAI has it."""
AT_ONCE = 4
"""Texts of a request that the chat process is given at a time; it takes one after the other."""
Item = TypeVar("Item")
Input = str | Annotated[list[str | TokenId | list[str | TokenId]], Meta(min_length=1)]


class EmbeddingsBody(msgspec.Struct, kw_only=True):
    """POST /v1/embeddings and /embedding: `input` or `content`"""

    input: Input | None = None
    content: Input | None = None
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Positive | None = None
    embd_normalize: Annotated[int, Meta(ge=-1, le=100)] | None = None


async def openai(request: web.Request) -> web.StreamResponse:
    """Vectors in OpenAI's shape."""
    return await _embeddings(request, in_openais_shape=True)


async def native(request: web.Request) -> web.StreamResponse:
    """Vectors in llama-server's shape."""
    return await _embeddings(request, in_openais_shape=False)


async def _embeddings(request: web.Request, in_openais_shape: bool) -> web.StreamResponse:
    context = request.app[CONTEXT]
    body, plain = await r.read_body(request, EmbeddingsBody)
    r.check_model(context, body.model)
    field = "content" if body.input is None and body.content is not None else "input"
    given = getattr(body, field)
    if given is None:
        raise bad_request("input (or content) must be given: a string, token ids, or a list of either.", "input")
    inputs = separate(given, field)
    if len(inputs) > MAX_TEXTS:
        raise bad_request(f"{field} has {len(inputs)} texts, at most {MAX_TEXTS} are taken.", field)
    priority = r.completion_terms(request, plain).priority
    info = await embedding_model(context)
    if info.pooling == "rank":
        raise not_supported("This model is a reranker, it has no embeddings; ask /v1/rerank.")
    _check_dimensions(body.dimensions, info)
    with r.api_errors(field, plain):
        texts = await tokens_of(context, inputs)
    for number, text in enumerate(texts):
        check_length(text, info, field if isinstance(given, str) else f"{field}[{number}]")

    async def vectors() -> Json | list[Json]:
        with r.api_errors(field, plain):
            made = await context.embeddings.embed(texts, priority)
        normal = [normalised(vector, 2 if body.embd_normalize is None else body.embd_normalize) for vector in made]
        if in_openais_shape and field == "input":
            as_base64 = body.encoding_format == "base64"
            return _openai(context.model_id, normal, sum(map(len, texts)), as_base64)
        return [{"index": number, "embedding": [vector.tolist()]} for number, vector in enumerate(normal)]

    return await send_json(request, vectors(), ApiError.openai, dict)


async def embedding_model(context: Context) -> ModelInfo:
    """Facts about the model, which can embed or rank.  Raises ApiError; waits while it is being loaded."""
    with r.api_errors("model"):
        info = await context.dispatcher.model_info()
    if not info.pooling:
        raise not_supported('Embeddings are switched off here; set model.embeddings = "auto" and start lcpd again.')
    return info


async def tokens_of(context: Context, inputs: Sequence[Mixed]) -> list[Tokens]:
    """The tokens of texts, with what the model wants at their ends.  Raises the errors of the chat process."""
    n_vocab = (await context.dispatcher.model_info()).n_vocab
    for given in inputs:
        for item in given if isinstance(given, list) else ():
            if isinstance(item, int) and item >= n_vocab:
                raise bad_request(f"token {item} is outside the vocabulary of {n_vocab}.", "input")

    async def tokens(given: Mixed) -> Tokens:
        return unpack(await context.chat.tokenize(given, add_special=True, parse_special=True))

    return await few_at_a_time(tokens, inputs)


async def few_at_a_time(tokens: Callable[[Item], Awaitable[Tokens]], items: Iterable[Item]) -> list[Tokens]:
    """The tokens of each item, in order, `AT_ONCE` being waited for at most.  Where one fails, the rest is left."""
    made: list[Tokens] = []
    waiting: deque[asyncio.Future[Tokens]] = deque()
    try:
        for item in items:
            if len(waiting) == AT_ONCE:
                made.append(await waiting[0])
                waiting.popleft()
            waiting.append(asyncio.ensure_future(tokens(item)))
        while waiting:
            made.append(await waiting[0])
            waiting.popleft()
        return made
    finally:
        for future in waiting:
            future.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def check_length(text: Tokens, info: ModelInfo, field: str) -> None:
    """Raises ApiError for a text that is empty or too long."""
    if not len(text):
        raise bad_request(f"{field} is empty.", field)
    if len(text) > info.embedding_ctx:
        error = too_long(len(text), info.embedding_ctx, field)
        error.message += " The limit is model.embeddings_ctx, and the length that the model was trained for."
        raise error


def _check_dimensions(wanted: int | None, info: ModelInfo) -> None:
    if wanted not in (None, info.embedding_width):
        raise bad_request(
            f"dimensions must be {info.embedding_width}, the model's own, not {wanted}: a vector that was cut off would"
            " mean something else.",
            "dimensions",
        )


def normalised(vector: Vector, norm: int) -> Vector:
    """A vector scaled as llama-server does: -1 not at all, 0 by the largest to 32760, p to the p-norm 1."""
    values = vector.astype(np.float64)
    match norm:
        case -1:
            length = 1.0
        case 0:
            length = float(np.abs(values).max()) / 32760.0
        case _:
            largest = float(np.abs(values).max())  # the powers of numbers above 1 could be too large
            length = largest * float((np.abs(values / largest) ** norm).sum()) ** (1.0 / norm) if largest else 0.0
    return (values / length if length else values * 0.0).astype(np.float32)


def _openai(model: str, vectors: Sequence[Vector], tokens: int, as_base64: bool) -> Json:
    data: list[Json] = [
        {"object": "embedding", "index": number, "embedding": _spelled(vector, as_base64)}
        for number, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "model": model, "data": data, "usage": usage}


def _spelled(vector: Vector, as_base64: bool) -> str | list[float]:
    if as_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers
