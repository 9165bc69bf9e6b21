"""POST /v1/rerank: which documents answer a query best, in the shapes of Jina and of TEI, as llama-server has them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from lcpd.api import requests as r
from lcpd.api.bodies import Positive
from lcpd.api.context import CONTEXT, Context
from lcpd.api.embeddings import MAX_TEXTS, check_length, embedding_model, few_at_a_time
from lcpd.api.errors import ApiError, bad_request, not_supported, too_long
from lcpd.api.stream import send_json
from lcpd.engine.protocol import ModelInfo, unpack
from lcpd.scheduler.slots import Tokens

Json = dict[str, Any]
Documents = Annotated[list[str], Meta(min_length=1, max_length=MAX_TEXTS)]


class RerankBody(msgspec.Struct, kw_only=True):
    """POST /v1/rerank: `documents`, or `texts` to be answered in TEI's shape"""

    query: str
    documents: Documents | None = None
    texts: Documents | None = None
    model: str | None = None
    top_n: Positive | None = None
    return_text: bool | None = None


async def rerank(request: web.Request) -> web.StreamResponse:
    """The documents' scores, the best first."""
    context = request.app[CONTEXT]
    body, plain = await r.read_body(request, RerankBody)
    r.check_model(context, body.model)
    field = "texts" if body.documents is None and body.texts is not None else "documents"
    documents = body.documents or body.texts
    if documents is None:
        raise bad_request("documents must be given: a list of strings, not empty.", "documents")
    priority = r.completion_terms(request, plain).priority
    info = await embedding_model(context)
    if info.pooling != "rank":
        raise not_supported(
            "This model is no reranker (its file does not say rank pooling, or model.embeddings says something else);"
            " start lcpd with a model that is one."
        )
    with r.api_errors("query", plain):
        await _check_query(context, body.query, info)

    async def pair(numbered: tuple[int, str]) -> Tokens:
        number, document = numbered
        tokens = unpack(await context.chat.pair(body.query, document))
        check_length(tokens, info, f"{field}[{number}]")
        return tokens

    with r.api_errors(field, plain):
        pairs = await few_at_a_time(pair, enumerate(documents))

    async def ranked() -> Json | list[Json]:
        with r.api_errors(field, plain):
            vectors = await context.embeddings.embed(pairs, priority)
        scores = [float(vector[0]) for vector in vectors]
        best = sorted(range(len(scores)), key=lambda number: -scores[number])[: body.top_n]
        if body.texts is not None:
            texts = [{"text": documents[number]} if body.return_text else {} for number in best]
            return [{"index": n, "score": scores[n], **text} for n, text in zip(best, texts, strict=True)]
        tokens = sum(map(len, pairs))
        return {
            "object": "list",
            "model": context.model_id,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "results": [{"index": number, "relevance_score": scores[number]} for number in best],
        }

    return await send_json(request, ranked(), ApiError.openai, dict)


async def _check_query(context: Context, query: str, info: ModelInfo) -> None:
    """Raises ApiError for a query that no document fits beside: every pair repeats it, so it is looked at alone first.

    In a pair it can have more tokens, never fewer: special tokens may be read as text there.
    """
    tokens = len(unpack(await context.chat.tokenize(query, add_special=False, parse_special=True)))
    if tokens > info.embedding_ctx:
        raise too_long(tokens, info.embedding_ctx, "query")
