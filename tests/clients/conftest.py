"""Daemons and real clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient
from clients_client import Client
from clients_run import end_all_at_home

from fakes.daemon import start_daemon

StartScripted = Callable[..., Awaitable[TestClient]]


@pytest.fixture
async def start_scripted() -> AsyncIterator[StartScripted]:
    """`await start_scripted(script, section__key=...)`: a daemon whose worker follows a script.

    Its context holds any client's prompt, of which every byte is a token.
    """
    async with AsyncExitStack() as stack:

        async def start(script: dict, **changes: object) -> TestClient:
            return await start_daemon(stack, script, **{"model__ctx": 400_000, **changes})

        yield start


@pytest.fixture
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    """The one that `clients_client.each` names."""
    yield Client(request.param, tmp_path)
    end_all_at_home(tmp_path / "home")
