"""A prefill of six minutes, which is longer than clients wait as they come: all at once, and only when asked for."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from clients_client import Client
from clients_run import end_all_at_home
from clients_table import HEADLESS
from clients_traffic import Traffic

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(1200),
    pytest.mark.skipif("LCPD_SLOW_CLIENTS" not in os.environ, reason="takes minutes: LCPD_SLOW_CLIENTS=1"),
]
PREFILL = float(os.environ.get("LCPD_SLOW_CLIENTS_PREFILL", 360))
"""Seconds."""


@pytest.fixture
def clients(tmp_path: Path):
    found = [Client(name, tmp_path / name) for name in HEADLESS]
    yield found
    for client in found:
        end_all_at_home(client.home)


async def test_every_client_waits_six_minutes_with_the_patience_it_comes_with(start_scripted, monkeypatch, clients):
    side = [(client.facts.side, 0.0) for client in clients if client.facts.side]
    slow = [*side, *((client.offer, PREFILL) for client in clients)]
    daemon = await start_scripted({"slow": slow, "reply": "At last."}, model__slots=12, model__ctx=1_000_000)
    for client in clients:
        await client.connect(str(daemon.make_url("")))
        client.forget_patience()
    traffic = Traffic(daemon, monkeypatch)

    async def ask(client: Client) -> str:
        begun = time.monotonic()
        try:
            said = await client.ask(f"Are you there, says {client.name}?", within=PREFILL + 600)
        except (AssertionError, TimeoutError) as error:
            said = f"{type(error).__name__}: {error}"
        print(f"{client.name}: {time.monotonic() - begun:.0f} s")
        asked = [one for one in client.conversation(traffic) if f"says {client.name}?" in one.text]
        # One that hangs up and asks once more would find what was computed, and answer too.
        return "waits" if "At last." in said and len(asked) == 1 else f"{len(asked)} requests; {said}"

    results = await asyncio.gather(*map(ask, clients))
    assert dict(zip(HEADLESS, results, strict=True)) == dict.fromkeys(HEADLESS, "waits")
