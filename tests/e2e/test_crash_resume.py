"""The worker dies while it computes: requests go on where they were, with the text of a run that nothing disturbed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from typing import Any

import pytest
from e2e_parts import Parts, Reply, follow, gather, generated, prefilled, running_parts

from lcpd.engine import protocol as p
from lcpd.engine.supervisor import State
from lcpd.scheduler.generation import Event, Quarantined

pytestmark = pytest.mark.native
KINDS = ["hybrid", "attention"]
INTERVAL = 512
LENGTH = 40
"""Tokens of each reply."""
SETTINGS: dict[str, Any] = {
    "cache": {"checkpoint_interval": INTERVAL, "ram": "256MiB", "anticipate": False, "save_every": 0.5},
    "engine": {"restart_backoff": 0.05, "emit_interval": 0.0, "heartbeat_timeout": 3.0},
    # Small batches: there is something to interrupt.
    "model": {"batch": 128, "ubatch": 64},
}


def prompt(length: int, seed: int = 1) -> list[int]:
    return random.Random(seed).choices(range(300, 1300), k=length)


def kill(parts: Parts, number: int = signal.SIGKILL) -> None:
    pid = parts.supervisor.pid
    assert pid is not None
    os.kill(pid, number)


async def undisturbed(kind: str, prompts: list[list[int]]) -> list[Reply]:
    async with running_parts(kind, **SETTINGS) as parts:
        return [await parts.run(tokens, LENGTH) for tokens in prompts]


async def disturbed(
    parts: Parts, tokens: list[int], until: Callable[[Event], bool], number: int = signal.SIGKILL
) -> Reply:
    """A reply during which the worker is sent a signal, once `until` is true of an event."""
    generation = parts.submit(tokens, LENGTH)
    done = False

    def hit(event: Event) -> bool:
        nonlocal done
        if not done and until(event):
            done = True
            kill(parts, number)
        return False

    reply = await follow(generation, hit)
    assert done, "the reply was over before"
    return reply


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_death_in_the_prefill_costs_one_interval_at_most_and_changes_nothing(
    kind: str, number: signal.Signals
) -> None:
    tokens = prompt(2500)
    (right,) = await undisturbed(kind, [tokens])
    async with running_parts(kind, **SETTINGS) as parts:
        reply = await disturbed(parts, tokens, prefilled(1900), number)
        _, again = parts.of(p.Started)
        assert again.problem == ""
        assert 1900 - again.begin <= INTERVAL + INTERVAL // 16
    assert (reply.tokens, reply.text) == (right.tokens, right.text)


@pytest.mark.parametrize("after", [1, 20, LENGTH - 1])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_death_in_the_reply_is_not_seen_in_the_stream(kind: str, after: int) -> None:
    tokens = prompt(300, seed=after)
    (right,) = await undisturbed(kind, [tokens])
    async with running_parts(kind, **SETTINGS) as parts:
        reply = await disturbed(parts, tokens, generated(after))
    assert (reply.tokens, reply.text, reply.reason) == (right.tokens, right.text, "length")


@pytest.mark.parametrize("kind", KINDS)
async def test_several_deaths_while_several_requests_run_are_not_seen_in_any_stream(kind: str) -> None:
    prompts = [prompt(900, seed) for seed in (1, 2, 3)]
    right = await undisturbed(kind, prompts)
    async with running_parts(kind, **SETTINGS) as parts:
        replies = [asyncio.create_task(parts.run(tokens, LENGTH)) for tokens in prompts]
        dice = random.Random(kind)
        for _ in range(6):
            while parts.supervisor.state is not State.READY:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await asyncio.sleep(dice.uniform(0.0, 1.0))
            if parts.supervisor.pid is not None:
                kill(parts)
                await asyncio.sleep(0.2)
        found = await gather(replies)
        assert parts.supervisor.restarts > 0
    for reply, wanted in zip(found, right, strict=True):
        # Beside others batches have other shapes, so that tokens may differ; tests/faults holds them to the oracle.
        assert (len(reply.tokens), reply.reason) == (len(wanted.tokens), wanted.reason)


async def test_a_worker_that_hangs_is_replaced_and_the_stream_goes_on() -> None:
    tokens = prompt(300)
    (right,) = await undisturbed("hybrid", [tokens])
    async with running_parts("hybrid", **SETTINGS) as parts:
        reply = await disturbed(parts, tokens, generated(10), signal.SIGSTOP)
        assert parts.supervisor.restarts == 1
    assert reply.tokens == right.tokens


async def test_a_request_during_which_the_worker_aborts_twice_is_given_up_and_others_are_served() -> None:
    async with running_parts("hybrid", **SETTINGS) as parts:
        poison, other = parts.submit(prompt(300), 3000), parts.submit(prompt(200, 2), LENGTH)
        following = asyncio.create_task(follow(poison))
        neighbour = asyncio.create_task(follow(other))
        starts = 0
        while not following.done():
            # Whenever it is started it kills the worker.
            if len(parts.of(p.Started, poison.id)) > starts:
                starts = len(parts.of(p.Started, poison.id))
                kill(parts, signal.SIGABRT)
            await asyncio.sleep(0.001)
        with pytest.raises(Quarantined, match="crashed the engine twice"):
            await following
        assert len((await neighbour).tokens) == LENGTH


@pytest.mark.parametrize("kind", KINDS)
async def test_the_tail_of_a_long_reply_is_in_ram_before_it_ends(kind: str) -> None:
    # The hybrid computes thousands of tokens a second, and orders are given half a second ahead.
    cache, model = {**SETTINGS["cache"], "save_every": 0.1}, {**SETTINGS["model"], "ctx": 8192}
    async with running_parts(kind, **{**SETTINGS, "cache": cache, "model": model}) as parts:
        generation = parts.submit(prompt(300), 7800)
        following = asyncio.create_task(follow(generation))
        await parts.until(lambda: len(parts.of(p.Saved)) > 1, "its tail is saved twice")
        assert not following.done()
        assert not any(m.problem for m in parts.of(p.Saved))
        kill(parts)
        await parts.until(lambda: len(parts.of(p.Started)) > 1, "it goes on")
        assert parts.of(p.Started)[-1].begin > 300
        generation.close()
        following.cancel()
