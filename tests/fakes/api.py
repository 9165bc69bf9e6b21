"""Little helpers for tests that talk to the API over the fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web
from aiohttp.test_utils import TestClient

from lcpd.api.context import CONTEXT, Context
from lcpd.keys import Keyring, read_keys

ADMIN_KEY = "the-admins"
"""Of every daemon that the tests of the API start."""


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for a condition that no event announces."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def context_of(client: TestClient) -> Context:
    """The daemon behind a client."""
    app = client.app
    assert isinstance(app, web.Application)
    return app[CONTEXT]


def keyring(api: str = "", admin: str = ADMIN_KEY) -> Keyring:
    """The keys of the texts of two key files."""
    return Keyring(*([line.key for line in read_keys(text, "keys")] for text in (api, admin)))


def use_keys(client: TestClient, api: str = "", admin: str = ADMIN_KEY) -> None:
    """Change the keys of the daemon behind a client."""
    object.__setattr__(context_of(client), "keys", keyring(api, admin))


def chat_body(*turns: str, **fields: object) -> dict:
    """A chat body whose turns are user and assistant by turns."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]
    return {"messages": messages, **fields}
