"""The sockets: who may reach them, and what is served on them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from aiohttp import web

from lcpd.api.context import Context
from lcpd.api.guard import is_loopback
from lcpd.api.metrics_port import metrics_app
from lcpd.assembly.plan import Plan
from lcpd.assembly.stopping import CANCEL_WITHIN
from lcpd.config import ConfigError
from lcpd.config.settings import ServerSettings
from lcpd.fdstore import BadSocket, ServiceManager

_LINGER = 10.0
"""Seconds."""


def passed_sockets(manager: ServiceManager) -> list[socket.socket]:
    """Those that the service manager listens on for us.  Raises ConfigError."""
    try:
        return manager.take_sockets()
    except BadSocket as error:
        raise ConfigError([str(error)]) from error


def refuse_strangers(plan: Plan, passed: Sequence[socket.socket]) -> None:
    """Raises ConfigError where other machines would be answered without a key and nobody has said that they may be."""
    server = plan.settings.server
    if plan.keys.asked_for or server.insecure:
        return
    addresses = [sock.getsockname() for sock in passed] or [(server.host, server.port)]
    # An address that is a text is that of a Unix socket, which has owners and a mode.
    reached = [address[0] for address in addresses if not isinstance(address, str) and not is_loopback(address[0])]
    if reached:
        raise ConfigError(
            [
                f"server.host: other machines may reach {reached[0]}, and no API key is asked for: set"
                " server.api_key_file (`lcpd key new` makes keys), or server.insecure (--insecure) if everybody may use"
                " this server"
            ]
        )


async def serve(
    app: web.Application, server: ServerSettings, passed: Sequence[socket.socket], stack: AsyncExitStack
) -> web.AppRunner:
    """Serve on the sockets that were passed, or else on one of our own; `stack` stops it.  Raises ConfigError."""
    runner = web.AppRunner(
        app,
        access_log=None,
        auto_decompress=False,
        # A request whose client is gone is cancelled, which stops its computing.
        handler_cancellation=True,
        shutdown_timeout=CANCEL_WITHIN,
        # Who goes on sending after the answer is listened to no longer than this.
        lingering_time=min(server.client_timeout, _LINGER),
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    for sock in passed:
        await web.SockSite(runner, sock, backlog=socket.SOMAXCONN).start()
    if not passed:
        await _listen(runner, "server", server.host, server.port)
    return runner


async def serve_metrics(context: Context, stack: AsyncExitStack) -> None:
    """Answer scrapers on `metrics.port`, if there is to be one; `stack` stops it.  Raises ConfigError."""
    host, port = context.settings.metrics.host, context.settings.metrics.port
    if not port:
        return
    runner = web.AppRunner(metrics_app(context), access_log=None)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await _listen(runner, "metrics", host, port)


async def _listen(runner: web.AppRunner, section: str, host: str, port: int) -> None:
    """`section`: of the settings that say where.  Raises ConfigError."""
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        where = f"{section}.host, {section}.port: {host}:{port}"
        raise ConfigError([f"{where} cannot be listened on: {error}"]) from error


def addresses(runner: web.AppRunner) -> str:
    """Where it can be reached, for people."""
    return ", ".join(_address(each) for each in runner.addresses)


def _address(address: Any) -> str:
    """As `socket.getsockname` gives it."""
    if isinstance(address, str):
        return f"unix:{address}"
    host, port = address[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
