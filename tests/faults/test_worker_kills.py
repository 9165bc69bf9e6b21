"""kill -9 and SIGSTOP of the worker under load: clients notice nothing, and every token is right.

The long form: ``python -m tests.faults --only worker --kills 100 --requests 200``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import Callable

import pytest
from benchmarks.harm.load import Ask, Load, ask
from benchmarks.harm.talk import Shape, Talk

from fakes.api import until
from faults.judging import judge
from faults.kills import COST, INTERVAL, worker_kills
from faults.served import Served, served
from oracle.process import Oracle

pytestmark = [pytest.mark.native, pytest.mark.faults]


async def test_kills_at_random_instants_under_load_are_not_seen_by_any_client(
    oracles: Callable[[str], Oracle], seed: int
) -> None:
    result = await worker_kills(seed, kills=10, requests=20)
    assert result.kills == 10
    assert result.errors == []
    assert len(result.replies) >= 20
    judged = judge(oracles("hybrid"), result.replies)
    assert judged.replies == len(result.replies)
    assert result.losses, "no request was running at any of the kills"
    assert result.excess() == []


async def test_a_kill_during_a_long_prefill_costs_one_interval_at_most(seed: int) -> None:
    prompt = [random.Random(seed).randrange(300, 2000) for _ in range(6000)]
    async with _small(cache={"checkpoint_interval": INTERVAL, "ram": 512 << 20}) as daemon:
        running = asyncio.create_task(ask(daemon.client, daemon.url, Ask(prompt, 8)))
        await _until_computed(daemon, 3500)
        daemon.hurt(signal.SIGKILL)
        said = await running
    assert said.error == ""
    (loss,) = daemon.losses.found
    assert loss.at >= 3500
    assert loss.again <= COST, loss


async def test_with_pinned_cuts_a_reply_over_many_kills_equals_the_undisturbed_one(seed: int) -> None:
    """One token in each ubatch and one slot: the cuts are the same, however often it begins again."""
    talk = Talk(f"pinned {seed}", Shape(head_lines=6, turn_lines=(2, 6), reply=(400, 600), most_lines=30))
    asks = [talk.next() for _ in range(4)]
    async with _small(slots=1, batch=32, ubatch=1) as quiet:
        undisturbed = [await ask(quiet.client, quiet.url, what) for what in asks]
    draw = random.Random(seed)
    async with _small(slots=1, batch=32, ubatch=1) as daemon:
        replies = []
        for what in asks:
            running = asyncio.create_task(ask(daemon.client, daemon.url, what))
            for _ in range(2):
                await asyncio.sleep(draw.uniform(0.05, 0.4))
                if old := daemon.hurt(signal.SIGKILL):
                    await daemon.until_replaced(old)
            replies.append(await running)
    assert [said.error for said in replies] == [""] * 4
    assert daemon.losses.found
    assert [said.tokens for said in replies] == [said.tokens for said in undisturbed]
    assert [said.text for said in replies] == [said.text for said in undisturbed]


async def test_a_hung_worker_is_replaced_and_no_client_sees_an_error(
    oracles: Callable[[str], Oracle], seed: int
) -> None:
    async with _small(engine={"heartbeat_timeout": 2.0}) as daemon:
        load = Load(daemon.client, daemon.url)
        stopping = asyncio.create_task(_stop_once(daemon, load))
        talks = [Talk(f"hang {seed} {number}") for number in range(3)]
        await load.run(talks, lambda: not stopping.done())
        await stopping
    assert daemon.losses.crashes == 1
    assert load.errors == []
    judge(oracles("hybrid"), load.over)


async def test_a_worker_that_stops_for_less_than_the_heartbeat_timeout_is_left_alone(seed: int) -> None:
    async with _small(engine={"heartbeat_timeout": 20.0}) as daemon:
        running = asyncio.create_task(ask(daemon.client, daemon.url, Ask(Talk(f"pause {seed}").next().prompt, 300)))
        await _until_computed(daemon, 1)
        daemon.hurt(signal.SIGSTOP)
        await asyncio.sleep(2)
        daemon.hurt(signal.SIGCONT)
        said = await running
    assert (said.error, daemon.losses.crashes) == ("", 0)


async def test_kills_while_the_next_worker_loads_are_survived(oracles: Callable[[str], Oracle], seed: int) -> None:
    async with _small() as daemon:
        running = asyncio.create_task(ask(daemon.client, daemon.url, Ask(Talk(f"load {seed}").next().prompt, 400)))
        await _until_computed(daemon, 1)
        supervisor = daemon.context.supervisor
        daemon.hurt(signal.SIGKILL)
        killed, draw = 0, random.Random(seed)
        while killed < 3:
            await asyncio.sleep(draw.uniform(0.05, 0.2))
            if daemon.worker is None and (pid := supervisor.pid):
                supervisor._child.signal(signal.SIGKILL)
                killed += 1
                await until(lambda pid=pid: supervisor.pid != pid)
            elif daemon.worker:
                break  # it was faster than the draws
        said = await running
    assert said.error == ""
    judge(oracles("hybrid"), [said])


def _small(
    slots: int = 3, batch: int = 256, ubatch: int = 256, **sections: dict
) -> contextlib.AbstractAsyncContextManager[Served]:
    model = {"slots": slots, "batch": batch, "ubatch": ubatch}
    cache = {"ram": 256 << 20, "checkpoint_interval": INTERVAL}
    return served("hybrid", **{"model": model, "cache": cache, **sections})


async def _until_computed(daemon: Served, least: int) -> None:
    """Wait until the worker holds so many tokens of some request."""
    await daemon.parts.until(
        lambda: any(getattr(message, "done", 0) >= least for message in daemon.parts.messages), f"{least} computed"
    )


async def _stop_once(daemon: Served, load: Load) -> None:
    await until(lambda: any(said.pieces > 5 for said in load.active))
    old = daemon.hurt(signal.SIGSTOP)
    assert old is not None
    await daemon.until_replaced(old)
