"""The whole API over a fake worker and a fake chat process, on a port of its own."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from aiohttp.test_utils import TestClient, TestServer

from fakes.api import keyring, until
from fakes.chat import chat_command
from fakes.worker import worker_command
from lcpd.api.app import create_app
from lcpd.assembly.parts import start_parts
from lcpd.assembly.plan import Plan
from lcpd.build import Build
from lcpd.config import Settings
from lcpd.config import load as load_settings
from lcpd.engine.supervisor import State
from lcpd.key_sources import KeySources

_BUILD = Build("fake", Path("/nowhere"), "cpu", "fake", 1, "x86-64", ("CPU",), "2026-01-01T00:00:00+00:00")
_USUAL = {
    "model__ref": "alias",
    "model__ctx": 4096,
    "model__slots": 2,
    "model__threads": 1,
    "model__batch": 64,
    "model__ubatch": 64,
    "engine__crash_limit": 2,
    "engine__restart_backoff": 0.05,
    "engine__stop_timeout": 2,
    "cache__ram": 1 << 20,
    "cache__prewarm": 0,
}
"""What the settings of these daemons are where a test says nothing else."""


def settings_with(**changes: object) -> Settings:
    """Settings with ``section__key=value`` changes."""
    return load_settings(None, {}, {f"LCPD_{name.upper()}": str(value) for name, value in changes.items()}).settings


def fake_plan(settings: Settings, script: dict | None = None) -> Plan:
    """The plan of a daemon whose worker follows the script.  No child reads a model: any file is one."""
    return Plan(
        settings=settings,
        build=_BUILD,
        model=Path(__file__),
        model_id=settings.model.alias or "fake",
        template=None,
        key_sources=KeySources(settings, {}),
        keys=keyring(),
        memory=None,
        worker_command=worker_command(**(script or {})),
        chat_command=chat_command(),
    )


async def start_daemon(
    stack: AsyncExitStack, script: dict | None = None, wait: bool = True, **changes: object
) -> TestClient:
    """A client of a daemon whose worker follows the script, with ``section__key=value`` settings.

    It runs on this event loop until `stack` is closed.  With `wait=False` it returns before the worker is ready.
    """
    context = await start_parts(fake_plan(settings_with(**{**_USUAL, **changes}), script), stack)
    if context.anticipator:
        context.anticipator.patience = 0
    if wait:
        await until(lambda: context.supervisor.state in (State.READY, State.FAILED))
    server = TestServer(create_app(context))
    client = TestClient(server)
    await server.start_server(shutdown_timeout=1, auto_decompress=False)
    stack.push_async_callback(client.close)
    return client
