"""What the log leaves out."""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web
from aiohttp.test_utils import TestServer

from lcpd.logs import without_bytes

SECRET = b"topsecret"
BROKEN = [
    b"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + SECRET + b"\0\r\n\r\n",
    b"POST / " + SECRET + b"\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + SECRET + b"\r\n",
    b"GET /" + SECRET * 2000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
]


async def test_broken_http_is_told_without_what_was_sent(caplog):
    logger = logging.getLogger("aiohttp.server")
    logger.addFilter(without_bytes)
    try:
        async with TestServer(web.Application()) as server:
            for data in BROKEN:
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(data)
                assert b" 400 " in await reader.readline()
                writer.close()
    finally:
        logger.removeFilter(without_bytes)
    assert [record.levelname for record in caplog.records].count("WARNING") == len(BROKEN)
    assert "it is no HTTP (BadHttpMessage)" in caplog.text
    assert SECRET.decode() not in caplog.text
