"""Clocks that jump: the wall clock by years in either direction, the monotonic one as a stopped daemon sees it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from benchmarks.harm.daemon import Daemon
from benchmarks.harm.load import Ask, ask
from benchmarks.harm.talk import Talk

from faults.corruption import fill, settings
from faults.judging import judge
from faults.served import served
from lcpd.cache.tier import DiskTier
from oracle.process import Oracle

pytestmark = [pytest.mark.native, pytest.mark.faults]
_DAY = 86400.0


def wall_clock(disk: DiskTier, clock: Callable[[], float]) -> None:
    disk._wall = disk._writer._wall = clock


@pytest.mark.parametrize("days", [-4000, -1, 1, 29, 4000])
async def test_a_jump_of_the_wall_clock_is_no_error_and_no_wrong_token(
    oracles: Callable[[str], Oracle], days: int, stranger: Callable[[int], list[int]], tmp_path: Path
) -> None:
    prompts = [stranger(number) for number in range(3)]
    await fill(tmp_path, prompts[:2])
    async with served("hybrid", **settings(tmp_path)) as daemon:
        disk = daemon.context.disk
        wall_clock(disk, lambda: time.time() + days * _DAY)
        await disk._keep_house()
        replies = [await ask(daemon.client, daemon.url, Ask(prompt, 8)) for prompt in prompts]
        await disk.flush()
        wall_clock(disk, time.time)
        await disk._keep_house()
        replies += [await ask(daemon.client, daemon.url, Ask(prompt, 8)) for prompt in prompts]
        stats = disk.stats()
    assert [said.error for said in replies] == [""] * 6
    assert stats.state == "ok"
    assert 0 <= stats.used <= stats.size
    expired = stats.counts.removed.get("expired", 0)
    # What was used 4000 days ago, as the clock said, has expired when it is right again.
    assert (expired > 0) == (abs(days) > 30), f"{expired} files expired after a jump of {days} days (cache.ttl is 30)"
    judge(oracles("hybrid"), replies)


async def test_a_jump_of_the_clock_between_two_daemons_loses_nothing_that_has_not_expired(
    stranger: Callable[[int], list[int]], tmp_path: Path
) -> None:
    """Files whose times lie in the future, as after a battery change."""
    prompt = stranger(0)
    await fill(tmp_path, [prompt])
    future = time.time() + 400 * _DAY
    for file in tmp_path.glob("*/*.blob"):
        os.utime(file, (future, future))
    async with served("hybrid", **settings(tmp_path)) as daemon:
        said = await ask(daemon.client, daemon.url, Ask(prompt, 8))
    assert said.error == ""
    assert said.computed < said.prompt // 2


async def test_a_daemon_that_stood_still_longer_than_the_heartbeat_timeout_shows_no_error(
    oracles: Callable[[str], Oracle], seed: int, tmp_path: Path
) -> None:
    """As a machine that was suspended, or a virtual one that was moved: for the daemon the clock jumps."""
    flags = ("--threads", "1", "--slots", "2", "--ctx", "8192", "--flash-attn", "off")
    daemon = Daemon(tmp_path, flags, {"LCPD_ENGINE__HEARTBEAT_TIMEOUT": "2", "OMP_NUM_THREADS": "1"})
    try:
        await daemon.start()
        async with httpx.AsyncClient() as client:
            asks = [Ask(Talk(f"still {seed} {number}").next().prompt, 400) for number in range(2)]
            running = [asyncio.create_task(ask(client, daemon.url, what)) for what in asks]
            await asyncio.sleep(0.5)
            os.kill(daemon.pid, signal.SIGSTOP)
            await asyncio.sleep(4)
            os.kill(daemon.pid, signal.SIGCONT)
            replies = await asyncio.gather(*running)
        assert await daemon.end() == 0
    finally:
        await daemon.kill()
    assert [said.error for said in replies] == ["", ""]
    judge(oracles("hybrid"), replies)
