"""How serving ends without a client noticing: requests that are there are answered, and their connections closed after.

A connection that is kept alive may carry a request at the very moment at which the server decides to close it; the
client then sees an error, although nothing is wrong.  So while the server stops, every answer says that it is the last
one on its connection, and connections without a request are given a moment in which one may still arrive.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterable

from aiohttp import web
from aiohttp.typedefs import Handler

_LINGER = 0.5
"""Seconds in which a request that is on its way arrives."""
_POLL = 0.02


class Drain:
    """Knows of the requests of one application."""

    def __init__(self, app: web.Application) -> None:
        """To be called before the application is set up."""
        self._active = 0
        self._stopping = False

        @web.middleware
        async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._active += 1
            try:
                return await handler(request)
            finally:
                self._active -= 1

        async def say(request: web.Request, response: web.StreamResponse) -> None:
            if self._stopping:
                response.force_close()
                # aiohttp has written its headers by now.
                response.headers["Connection"] = "close"

        app.middlewares.insert(0, count)
        app.on_response_prepare.append(say)

    async def finish(self, runner: web.AppRunner, listening: Iterable[socket.socket], within: float) -> None:
        """Let no more connections in; return when those that are open have had their answers, or after `within` s.

        `listening` are the sockets that others go on to listen on; none of who connects to them is lost.
        """
        self._stopping = True
        for sock in listening:
            asyncio.get_running_loop().remove_reader(sock)
        # Who was accepted just now has no transport yet, and asyncio would drop him if the server closed first.
        await asyncio.sleep(0)
        for site in list(runner.sites):
            await site.stop()
        now = last = time.monotonic()
        deadline = now + within
        while now < min(deadline, last + _LINGER):
            await asyncio.sleep(_POLL)
            now = time.monotonic()
            if self._active:
                last = now
            if runner.server is None or not runner.server.connections:
                return
