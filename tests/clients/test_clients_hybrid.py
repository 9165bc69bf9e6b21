"""Each client with the real tiny hybrid, which talks nonsense: that it ends well, and what is computed of its prompts.

Where the variable LCPD_CLIENTS_TABLE names a file, each client appends its row of the table in docs/clients.md to it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer
from clients_client import Client, each
from clients_table import HEADLESS

from lcpd.api.app import create_app
from lcpd.assembly.parts import start_parts
from lcpd.assembly.plan import make_plan
from lcpd.cache.isolation import plain
from lcpd.config import Settings
from lcpd.engine.protocol import Tokens
from lcpd.scheduler.dispatcher import Dispatcher
from lcpd.scheduler.generation import Generation, Prompt

pytestmark = [pytest.mark.clients, pytest.mark.native, pytest.mark.timeout(900)]
WITHIN = 400
"""Seconds for one run."""
ENDING = {"logit_bias": {"4089": 10}}
"""The tiny model knows no such prompts and would often go on until its context is full."""


@dataclass(frozen=True)
class Row:
    """A prompt, with what it goes on from."""

    tokens: int
    reused: int
    before: int = 0
    """Tokens of the earlier prompt with which it shares most, if that is most of it; 0: it begins a conversation."""
    shared: int = 0
    """With that one."""


class Recorded:
    """The prompts of a real daemon, and their reports."""

    def __init__(self, dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
        self._dispatcher = dispatcher
        self._prompts: list[Prompt] = []
        submit = dispatcher.submit

        def record(prompt: Prompt) -> Generation:
            self._prompts.append(prompt)
            fields = {**msgspec.json.decode(prompt.sampling), **ENDING}
            return submit(replace(prompt, sampling=msgspec.json.encode(fields)))

        monkeypatch.setattr(dispatcher, "submit", record)

    def rows(self) -> list[Row]:
        """The prompts that were begun, oldest first."""
        rows: list[Row] = []
        earlier: list[Tokens] = []
        for prompt in self._prompts:
            tokens = plain(prompt.tokens)
            if (report := self._dispatcher.report(prompt.name)) is None:
                continue
            shared, before = max(((shared_tokens(tokens, one), len(one)) for one in earlier), default=(0, 0))
            row = Row(len(tokens), report.begin)
            rows.append(replace(row, before=before, shared=shared) if 2 * shared > before else row)
            earlier.append(tokens)
        return rows


def shared_tokens(one: Tokens, other: Tokens) -> int:
    """The length of the common prefix."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length


@pytest.fixture
async def daemon() -> AsyncIterator[tuple[TestClient, Dispatcher]]:
    async with AsyncExitStack() as stack:
        settings = Settings(model={"ref": "demo:hybrid", "threads": 1, "ctx": 65_536}, cache={"disk": 0})
        context = await start_parts(make_plan(settings), stack)
        await context.dispatcher.model_info()
        client = TestClient(TestServer(create_app(context)))
        await client.start_server()
        stack.push_async_callback(client.close)
        yield client, context.dispatcher


@each(list(HEADLESS))
async def test_a_session_with_the_real_hybrid_ends_well_and_reuses_what_it_shares(daemon, monkeypatch, client: Client):
    server, dispatcher = daemon
    recorded = Recorded(dispatcher, monkeypatch)
    await client.connect(str(server.make_url("")))
    (client.work / "src").mkdir()
    (client.work / "src" / "cache.py").write_text("def get(key):\n    return 1\n")
    await client.ask("Read the file src/cache.py", within=WITHIN)
    if client.facts.again:
        await client.ask_again("Read the file src/cache.py again", within=WITHIN)
    session = len(recorded.rows())
    await client.ask("What does src/cache.py do?", within=WITHIN)
    rows = recorded.rows()
    print(client.name, *rows, sep="\n")
    write(client.name, rows[:session], rows[session:])
    shared = sum(row.shared for row in rows)
    assert shared
    # State is held at some positions only, and where prompts part was not known before; aider has no stable history.
    if client.facts.tool:
        assert sum(min(row.reused, row.shared) for row in rows) > 0.9 * shared


def write(name: str, session: list[Row], second: list[Row]) -> None:
    """Append the row of the table: of the session, then of the first prompt of a second one that is not for a title."""
    on = [row for row in session if row.before]
    parts = [
        name,
        f"{len(session)}",
        f"{sum(row.tokens for row in session):,}",
        f"{sum(row.reused for row in session):,}",
        f"{sum(row.before for row in on):,}",
        f"{sum(row.shared for row in on):,}",
        f"{sum(min(row.reused, row.shared) for row in on):,}",
    ]
    longest = max(row.tokens for row in second)
    head = next(row for row in second if 2 * row.tokens > longest)
    line = f"| {' | '.join(parts)} | {min(head.reused, head.shared):,} of {head.shared:,} |\n"
    if table := os.environ.get("LCPD_CLIENTS_TABLE"):
        with Path(table).open("a") as file:
            file.write(line)
