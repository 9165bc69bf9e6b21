"""The end of serving, as clients see it on their connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from lcpd.api.drain import Drain

ASK = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
SOON = 10.0
"""Seconds; far less is needed."""


class Server:
    """An application whose answers wait for leave, on a socket that others hold too."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.leave = asyncio.Event()
        self.held = socket.create_server(("127.0.0.1", 0))
        self.sock = self.held.dup()
        app = web.Application()
        app.router.add_get("/", self._answer)
        self.drain = Drain(app)
        self.runner = web.AppRunner(app)

    async def _answer(self, _: web.Request) -> web.Response:
        self.asked.set()
        await self.leave.wait()
        return web.Response(text="yes")

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.held.getsockname())

    async def finish(self) -> None:
        await self.drain.finish(self.runner, [self.sock], SOON)
        await self.runner.cleanup()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    await server.runner.setup()
    await web.SockSite(server.runner, server.sock).start()
    yield server
    await server.runner.cleanup()
    server.held.close()


async def test_a_request_under_way_is_answered_and_told_that_its_connection_ends(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(ASK)
    await server.asked.wait()
    finishing = asyncio.create_task(server.finish())
    await asyncio.sleep(0)
    server.leave.set()
    answer = await reader.read()
    await finishing
    assert b"200 OK" in answer
    assert b"\r\nConnection: close\r\n" in answer
    writer.close()


async def test_a_request_on_a_connection_that_was_kept_alive_is_still_answered(server: Server) -> None:
    reader, writer = await server.connect()
    server.leave.set()
    writer.write(ASK)
    assert b"Connection: close" not in await reader.readuntil(b"yes")
    finishing = asyncio.create_task(server.finish())
    await asyncio.sleep(0.1)
    writer.write(ASK)
    assert b"\r\nConnection: close\r\n" in await reader.read()
    await finishing
    writer.close()


async def test_who_connected_at_that_moment_is_answered(server: Server) -> None:
    server.leave.set()
    # Connected, and not accepted by the loop yet.
    with socket.create_connection(server.held.getsockname()) as client:
        client.setblocking(False)
        client.send(ASK)
        await asyncio.sleep(0)
        finishing = asyncio.create_task(server.finish())
        await finishing
        # What was accepted is answered; what was not waits in the socket for the next server.
        try:
            assert b"200 OK" in client.recv(1000)
        except BlockingIOError:
            server.held.setblocking(False)
            server.held.accept()[0].close()


async def test_who_connects_later_waits_for_the_next_server(server: Server) -> None:
    await server.finish()
    with socket.create_connection(server.held.getsockname()) as client:
        server.held.settimeout(SOON)
        connection, address = server.held.accept()
        assert address == client.getsockname()
        connection.close()


async def test_an_idle_connection_does_not_hold_it_up_for_long(server: Server) -> None:
    reader, writer = await server.connect()
    async with asyncio.timeout(SOON):
        await server.finish()
    assert await reader.read() == b""
    writer.close()
