"""Connections on which a client never comes to the end of its first request's headers are closed in the end.

aiohttp waits for these for ever.  Between two requests its own keep-alive time-out counts, and a body is waited for in
:func:`lcpd.api.requests.read_body`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

_LOOKS = 4
"""How often all connections are looked at while the time runs out for one of them."""


class Patience:
    """Knows on which of one application's connections a request has arrived."""

    def __init__(self, app: web.Application, timeout: float) -> None:
        """To be called before the application is set up.  `timeout`: seconds (server.client_timeout)."""
        self._timeout = timeout
        self._heard: set[Any] = set()

        @web.middleware
        async def hear(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._heard.add(request.protocol)
            return await handler(request)

        app.middlewares.insert(0, hear)

    async def watch(self, runner: web.AppRunner) -> None:
        """Look at the connections of a runner that is set up, for ever."""
        since: dict[Any, float] = {}
        while runner.server is not None:
            await asyncio.sleep(self._timeout / _LOOKS)
            now = time.monotonic()
            connections = runner.server.connections if runner.server is not None else []
            self._heard.intersection_update(connections)
            since = {each: since.get(each, now) for each in connections if each not in self._heard}
            for connection, seen in since.items():
                if now - seen >= self._timeout:
                    connection.force_close()
