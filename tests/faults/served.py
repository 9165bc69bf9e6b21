"""A daemon's parts with its HTTP server in this process: clients over real sockets, and every message of the worker."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import httpx
from aiohttp import web

from e2e.e2e_parts import Parts
from fakes.api import until
from faults.recompute import Losses
from lcpd.api.app import create_app
from lcpd.api.patience import Patience
from lcpd.assembly.parts import start_parts
from lcpd.assembly.plan import make_plan
from lcpd.config import Settings
from lcpd.engine.supervisor import State
from support import model_path

WITHIN = 120.0
"""Seconds after which what is waited for will not come."""
_NEVER_GIVE_UP = {"crash_limit": 1000, "restart_backoff": 0.05, "restart_backoff_max": 0.05}


class Served:
    """The daemon; `parts` has its messages, `losses` what crashes cost."""

    def __init__(self, context: Any, url: str, client: httpx.AsyncClient) -> None:
        self.context = context
        self.url = url
        self.client = client
        self.parts = Parts(context)
        self.losses = Losses(self.parts.dispatcher)

    @property
    def worker(self) -> int | None:
        """The worker's pid; None while there is none that has loaded."""
        supervisor = self.context.supervisor
        return supervisor.pid if supervisor.state in (State.READY, State.DEGRADED) else None

    def hurt(self, number: int = signal.SIGKILL) -> int | None:
        """Send a signal to the worker; returns its pid, None where there is none."""
        pid = self.worker
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return pid

    async def until_replaced(self, old: int) -> None:
        """Wait until another worker has loaded."""
        deadline = time.monotonic() + WITHIN
        while self.worker in (None, old):
            supervisor = self.context.supervisor
            assert supervisor.state != State.FAILED, supervisor.reason
            assert time.monotonic() < deadline, f"no new worker within {WITHIN:g} s: {supervisor.state}"
            await asyncio.sleep(0.02)


@asynccontextmanager
async def served(kind: str, **sections: dict[str, Any]) -> AsyncIterator[Served]:
    """A daemon whose model is loaded.  `sections`: settings that differ from these tests' usual ones."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    model = {"ref": str(model_path(kind)), "threads": 1, "flash_attn": "off", "ctx": 8192, **sections.get("model", {})}
    engine = {**_NEVER_GIVE_UP, **sections.get("engine", {})}
    sections = {**sections, "model": model, "engine": engine}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx.AsyncClient(limits=httpx.Limits(max_connections=None)))
        context = await start_parts(make_plan(Settings(**sections)), stack)
        app = create_app(context)
        patience = Patience(app, context.settings.server.client_timeout)
        runner = web.AppRunner(
            app, access_log=None, auto_decompress=False, handler_cancellation=True, shutdown_timeout=5
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        watching = asyncio.create_task(patience.watch(runner))
        stack.callback(watching.cancel)
        await context.dispatcher.model_info()
        port = runner.addresses[0][1]
        if (disk := context.disk) is not None:
            # A prompt that comes before the index is read finds nothing on disk.
            await until(lambda: disk.stats().state not in ("waiting", "opening"))
        yield Served(context, f"http://127.0.0.1:{port}", client)
