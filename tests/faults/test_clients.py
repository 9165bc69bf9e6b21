"""Clients that are slow, read nothing, vanish or never finish a request: nobody else waits, nothing stays behind."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from benchmarks.harm import rude
from benchmarks.harm.load import Ask, Load, ask
from benchmarks.harm.talk import Talk

from fakes.api import until
from faults.judging import judge
from faults.served import Served, served
from oracle.process import Oracle

pytestmark = [pytest.mark.native, pytest.mark.faults]
PATIENCE = 2.0
"""Seconds that the daemon waits for a client (server.client_timeout)."""


@asynccontextmanager
async def impatient(slots: int = 2) -> AsyncIterator[Served]:
    server = {"client_timeout": PATIENCE, "heartbeat_interval": 0.5}
    cache = {"ram": 64 << 20, "checkpoint_interval": 256}
    async with served("hybrid", model={"slots": slots, "batch": 256, "ubatch": 256}, server=server, cache=cache) as it:
        yield it


def port(daemon: Served) -> int:
    found = urlsplit(daemon.url).port
    assert found
    return found


def sockets() -> int:
    """Open sockets of this process, in which the daemon runs."""
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(entry.readlink()))
        except FileNotFoundError:
            continue
    return sum(link.startswith("socket:") for link in links)


async def test_a_client_that_never_reads_is_dropped_and_frees_its_slot(seed: int) -> None:
    async with impatient(slots=1) as daemon:
        prompt = Talk(f"never reads {seed}").next().prompt
        # Probabilities make the reply large enough to fill every buffer on the way.
        body = rude.stream_body(prompt, 6000, n_probs=20)
        deaf = rude.never_reads(port(daemon), body)
        await until(lambda: daemon.parts.dispatcher.running == 1)
        said = await ask(daemon.client, daemon.url, Ask(Talk(f"other {seed}").next().prompt, 20))
        assert said.error == ""
        await daemon.parts.until_idle()
        deaf.close()


async def test_a_slow_client_gets_all_of_its_reply_and_slows_nobody(
    oracles: Callable[[str], Oracle], seed: int
) -> None:
    async with impatient() as daemon:
        slow = Ask(Talk(f"slow {seed}").next().prompt, 300, pause=0.3)
        reading = asyncio.create_task(ask(daemon.client, daemon.url, slow))
        load = Load(daemon.client, daemon.url)
        await load.run([Talk(f"quick {seed}")], lambda: len(load.over) < 5)
        assert not reading.done()
        said = await reading
    assert said.error == ""
    assert load.errors == []
    judge(oracles("hybrid"), [said, *load.over])


HEADERS, BODY = (0.005, 0.02, 0.03), (0.2, 0.5, 0.9, 0.999)


@pytest.mark.parametrize("shares", [HEADERS, BODY], ids=["in the headers", "in the body"])
async def test_half_sent_requests_hold_no_slot_and_are_dropped(shares: tuple[float, ...], seed: int) -> None:
    async with impatient(slots=1) as daemon:
        before = sockets()
        body = rude.stream_body(Talk(f"half {seed}").next().prompt, 50)
        with ExitStack() as stack:
            for share in shares * 3:
                stack.callback(rude.half_open(port(daemon), body, share).close)
            said = await ask(daemon.client, daemon.url, Ask(Talk(f"whole {seed}").next().prompt, 20))
            assert said.error == ""
            assert daemon.parts.dispatcher.running == 0
            # Its own ends and this client's connection are still open; the server's are to go.
            await until(lambda: sockets() <= before + len(shares) * 3 + 2, seconds=4 * PATIENCE)


async def test_connections_that_are_reset_in_the_middle_of_a_reply_stop_their_requests(seed: int) -> None:
    async with impatient() as daemon:
        for number in range(6):
            body = rude.stream_body(Talk(f"reset {seed} {number}").next().prompt, 3000)
            sock = rude.never_reads(port(daemon), body)
            await until(lambda: daemon.parts.dispatcher.running == 1)
            await asyncio.to_thread(sock.recv, 1, socket.MSG_PEEK)
            rude.reset(sock)
            await daemon.parts.until_idle()
        said = await ask(daemon.client, daemon.url, Ask(Talk(f"last {seed}").next().prompt, 20))
        assert said.error == ""


async def test_clients_that_leave_at_any_piece_disturb_no_others(oracles: Callable[[str], Oracle], seed: int) -> None:
    async with impatient() as daemon:
        load = Load(daemon.client, daemon.url)
        leaving = [
            ask(daemon.client, daemon.url, Ask(Talk(f"leaves {seed} {n}").next().prompt, 3000, leave_after=n))
            for n in range(1, 9)
        ]
        together = asyncio.gather(*leaving)
        await load.run([Talk(f"stays {seed}")], lambda: len(load.over) < 4)
        left = await together
        await daemon.parts.until_idle()
    assert all(said.left for said in left)
    assert load.errors == []
    judge(oracles("hybrid"), [*left, *load.over])
