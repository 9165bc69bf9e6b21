"""Writing replies: server-sent events, and JSON that may take long; both with signs of life and a bound on waiting.

A client hangs up when it hears nothing for some minutes, and a prefill on a modest box can take as long.  So headers
go out at once and something follows at every interval (docs/api.md has what each client accepts).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from lcpd.api.context import CONTEXT, ERROR, STATUS
from lcpd.api.errors import ApiError, internal

log = logging.getLogger(__name__)
Item = TypeVar("Item")
Result = TypeVar("Result")

SSE_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    # Reverse proxies would otherwise collect the stream before passing it on.
    "X-Accel-Buffering": "no",
}
_SMALL = 16_384
"""Bytes that a write buffer takes without waiting."""
COMMENT = b": still working\n\n"


def sse(data: Any, event: str | None = None) -> bytes:
    """One server-sent event with a JSON payload."""
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"


async def with_heartbeats(
    source: AsyncIterator[Item], interval: float, beat: Callable[[], Item]
) -> AsyncIterator[Item]:
    """The items of `source`, and `beat()` whenever none has come for `interval` seconds."""
    following: asyncio.Future[Item] | None = None
    try:
        while True:
            following = asyncio.ensure_future(_next(source))
            while not (await asyncio.wait([following], timeout=interval))[0]:
                yield beat()
            try:
                yield following.result()
            except StopAsyncIteration:
                return
    finally:
        if following:
            following.cancel()
            # It may have ended while this was being cancelled; nobody else would look at how.
            await asyncio.gather(following, return_exceptions=True)


async def merged(sources: Sequence[AsyncIterator[Item]]) -> AsyncIterator[tuple[int, Item]]:
    """The items of several sources as they come, each with the number of its source."""
    if len(sources) == 1:
        async for item in sources[0]:
            yield 0, item
        return
    following = {asyncio.ensure_future(_next(source)): number for number, source in enumerate(sources)}
    try:
        while following:
            ready, _ = await asyncio.wait(following, return_when=asyncio.FIRST_COMPLETED)
            for future in sorted(ready, key=following.__getitem__):
                number = following.pop(future)
                try:
                    item = future.result()
                except StopAsyncIteration:
                    continue
                following[asyncio.ensure_future(_next(sources[number]))] = number
                yield number, item
    finally:
        for future in following:
            future.cancel()
        await asyncio.gather(*following, return_exceptions=True)


async def _next(source: AsyncIterator[Item]) -> Item:
    return await anext(source)


async def send_stream(
    request: web.Request,
    source: AsyncIterator[bytes],
    beat: Callable[[], bytes],
    failed: Callable[[ApiError], bytes],
    headers: Mapping[str, str],
) -> web.StreamResponse:
    """Send `source` as server-sent events.  An ApiError in it is sent as `failed(error)` and ends the stream."""
    settings = request.app[CONTEXT].settings.server
    response = web.StreamResponse(headers={**SSE_HEADERS, **headers})
    await response.prepare(request)
    write = _patient_writer(request, response, settings.client_timeout)
    try:
        async for data in with_heartbeats(source, settings.heartbeat_interval, beat):
            await write(data)
    except ApiError as error:
        request[STATUS], request[ERROR] = error.status, error.word
        await write(failed(error))
    except (asyncio.CancelledError, ConnectionError):
        raise
    except Exception:
        await write(failed(_defect(request)))
    await response.write_eof()
    return response


async def send_json(
    request: web.Request,
    result: Awaitable[Any],
    failed: Callable[[ApiError], Any],
    headers: Callable[[], Mapping[str, str]],
) -> web.StreamResponse:
    """Send the JSON that `result` gives, with the `headers` as they are known when they have to be sent.

    When that takes longer than a heartbeat interval, the status (200) and white space go out in advance, which JSON
    allows before a value; an error that comes up later can then only be told in the body.
    """
    settings = request.app[CONTEXT].settings.server
    task = asyncio.ensure_future(result)
    try:
        if (await asyncio.wait([task], timeout=settings.heartbeat_interval))[0]:
            body = msgspec.json.encode(await task)
            return web.json_response(body=body, headers=headers())
        early = {"Content-Type": "application/json", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers={**early, **headers()})
        await response.prepare(request)
        write = _patient_writer(request, response, settings.client_timeout)
        await write(b" ")
        while not (await asyncio.wait([task], timeout=settings.heartbeat_interval))[0]:
            await write(b" ")
        try:
            data = msgspec.json.encode(await task)
        except ApiError as error:
            request[STATUS], request[ERROR] = error.status, error.word
            data = msgspec.json.encode(failed(error))
        except ConnectionError:
            raise
        except Exception:
            data = msgspec.json.encode(failed(_defect(request)))
        await write(data)
        await response.write_eof()
        return response
    finally:
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def _defect(request: web.Request) -> ApiError:
    """What a reply is to say that the exception being handled ended; its status is out already.  Logs the exception."""
    log.exception("a reply failed")
    request[STATUS], request[ERROR] = 500, "internal_error"
    return internal("An internal error ended this reply; the server's log has the details.")


def _patient_writer(
    request: web.Request, response: web.StreamResponse, timeout: float
) -> Callable[[bytes], Awaitable[None]]:
    """Writes that give up a client which accepts nothing for `timeout` seconds."""

    async def write(data: bytes) -> None:
        if len(data) < _SMALL and request.transport and not request.transport.get_write_buffer_size():
            await response.write(data)  # the client has taken all before it: nothing to wait for
            return
        try:
            async with asyncio.timeout(timeout):
                await response.write(data)
        except TimeoutError as error:
            raise dropped(request, f"the client read nothing for {timeout:g} s") from error

    return write


def dropped(request: web.Request, why: str) -> ConnectionResetError:
    """Cut off a client that is too slow; returns the error to raise then."""
    if request.transport:
        request.transport.abort()
    return ConnectionResetError(f"{why} (server.client_timeout)")
