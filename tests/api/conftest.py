"""The whole API over a fake worker and a fake chat process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from aiohttp.test_utils import TestClient

from fakes.daemon import start_daemon

MakeClient = Callable[..., Awaitable[TestClient]]


@pytest.fixture
async def make_client() -> AsyncIterator[MakeClient]:
    """`await make_client(script, section__key=...)`: see `fakes.daemon.start_daemon`."""
    async with AsyncExitStack() as stack:

        async def make(*args: object, **kwargs: object) -> TestClient:
            return await start_daemon(stack, *args, **kwargs)

        yield make
