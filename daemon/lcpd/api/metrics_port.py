"""`GET /metrics` on a port of its own (`metrics.port`): for a scraper that is not to reach the API; without a key."""

from __future__ import annotations

from aiohttp import web

from lcpd.api import guard, info
from lcpd.api.context import CONTEXT, Context


def metrics_app(context: Context) -> web.Application:
    """The application, with nothing else in it."""
    app = web.Application()
    app[CONTEXT] = context
    app.router.add_get("/metrics", _metrics)
    return app


async def _metrics(request: web.Request) -> web.Response:
    settings = request.app[CONTEXT].settings
    host = request.headers.get("Host", "")
    if not guard.host_is_allowed(host, settings.metrics.host, settings.server.allowed_hosts):
        raise web.HTTPForbidden(text=f"The Host {host!r} is not this server (server.allowed_hosts).\n")
    return await info.metrics(request)
