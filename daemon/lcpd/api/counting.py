"""How the answers to HTTP requests are counted."""

from __future__ import annotations

from aiohttp import web

from lcpd.api.clients import program_of
from lcpd.api.context import CONTEXT, ERROR, KEY, Context

_OF_THE_MODEL = (
    "/chat/completions",
    "/completions",
    "/messages",
    "/responses",
    "/infill",
    "/embeddings",
    "/embedding",
    "/rerank",
    "/reranking",
)
"""Endpoints that need the engine, whose figures are there before the first request."""


def begin(context: Context) -> None:
    """Have the series that alerts look at begin at 0; those of keys whenever there are new ones."""
    context.metrics.requests.begin(_OF_THE_MODEL)
    context.metrics.at_scrape(lambda: context.metrics.clients.begin(context.keys.keys))


def count(request: web.Request, status: int) -> None:
    """A request is over."""
    metrics, key = request.app[CONTEXT].metrics, request.get(KEY)
    resource = request.match_info.route.resource
    endpoint = resource.canonical.removeprefix("/v1") if resource else "unknown"
    program = program_of(request.headers.get("User-Agent", ""))
    metrics.requests.answered.labels(endpoint, str(status)).inc()
    metrics.clients.answered.labels(program, key.name if key else "", str(status)).inc()
    if status >= 400:
        metrics.requests.errors.labels(endpoint, request.get(ERROR, "other")).inc()
