"""Many conversations at once on a real engine: each gets the reply it would get alone, whatever the others do.

Replies are checked by the oracle (tests/oracle): every token lies within delta of the best one of a cold solo replay.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise

import pytest
import pytest_asyncio
from e2e_parts import Parts, Reply, follow, gather, prefilled, running_parts

from lcpd.engine import protocol as p
from lcpd.scheduler.generation import Begun
from oracle.process import Oracle
from oracle.tables import table
from support import model_path

pytestmark = [pytest.mark.native, pytest.mark.asyncio(loop_scope="module")]
SLOTS = 4
BATCH = 64
"""Small, so that prompts of a few hundred tokens have several chunks."""
FAR = 3.0
"""How far a reply to another prompt misses, over delta."""


@pytest.fixture(scope="module", params=["attention", "hybrid"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def oracle(kind: str) -> Iterator[Oracle]:
    with Oracle(model_path(kind)) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parts(kind: str) -> AsyncIterator[Parts]:
    sections = {"scheduler": {"follow_min": BATCH}}
    async with running_parts(kind, model={"slots": SLOTS, "batch": BATCH}, **sections) as running:
        yield running


def check(oracle: Oracle, replies: list[Reply]) -> None:
    """Every reply is complete and passes the oracle."""
    assert {reply.reason for reply in replies} == {"length"}
    gaps = [oracle.gap(reply.prompt, reply.tokens) for reply in replies]
    assert max(gaps) < oracle.delta, f"gaps {gaps}, delta {oracle.delta}"


async def test_sixteen_streams_over_four_slots_all_pass_the_oracle(parts: Parts, oracle: Oracle) -> None:
    draw = random.Random(1)
    jobs = [(oracle.tokenize(table(seed, draw.randrange(2, 8))), draw.randrange(4, 20)) for seed in range(16)]
    replies = await gather([parts.run(prompt, length) for prompt, length in jobs])
    assert [len(reply.tokens) for reply in replies] == [length for _, length in jobs]
    assert max(len(step.outputs) for step in parts.of(p.Step)) == SLOTS
    check(oracle, replies)
    # The negative control: with each reply given to another prompt the same check fails, and by far.
    swapped = [oracle.gap(reply.prompt, other.tokens) for reply, other in pairwise(replies[:5])]
    assert min(swapped) > oracle.delta
    assert max(swapped) > FAR * oracle.delta


async def test_one_stream_at_a_time_says_what_a_solo_run_with_the_same_cuts_says(parts: Parts, oracle: Oracle) -> None:
    """Where no tie is decided by the last bits of a logit, which depend on where the cells of a sequence lie."""
    compared = 0
    for seed in range(20, 32):
        prompt = oracle.tokenize(table(seed, 12))
        generation = parts.submit(prompt, 12)
        reply = await follow(generation)
        chunks = parts.chunks(generation.id)
        assert len(chunks) > 1
        expected = oracle.greedy(prompt, 12, cuts={edge for chunk in chunks for edge in chunk})
        if oracle.lead(prompt, expected) > oracle.delta / FAR:
            assert reply.tokens == expected
            compared += 1
            if compared == 3:
                return
    raise AssertionError(f"only {compared} replies are beyond doubt")


async def test_four_requests_with_one_long_head_compute_it_once(parts: Parts, oracle: Oracle) -> None:
    head, tails = _family(oracle, seed=30)
    generations = [parts.submit(head + tail, 12) for tail in tails]
    replies = await gather([follow(generation) for generation in generations])
    assert parts.computed([g.id for g in generations]) < 1.3 * len(head) + sum(map(len, tails))
    check(oracle, replies)


async def test_when_the_one_that_computes_the_head_is_cancelled_another_goes_on_where_it_stood(
    parts: Parts, oracle: Oracle
) -> None:
    head, tails = _family(oracle, seed=31)
    leader, *others = [parts.submit(head + tail, 12) for tail in tails]
    await follow(leader, prefilled(len(head) // 2))
    replies = await gather([follow(generation) for generation in others])
    assert parts.computed([g.id for g in (leader, *others)]) < 1.3 * len(head) + sum(map(len, tails))
    check(oracle, replies)


def _family(oracle: Oracle, seed: int) -> tuple[list[int], list[list[int]]]:
    """A long head and four short tails, each of which begins differently and asks for another part of the head."""
    lines = table(seed, 44).splitlines()
    head = oracle.tokenize("\n".join(lines[:40]) + "\n\n")
    return head, [oracle.tokenize(f"{name}\n{lines[at]}\n{lines[at + 1]}") for at, name in enumerate("ABCD")]


async def test_a_cancelled_prefill_stops_within_one_chunk(parts: Parts, oracle: Oracle) -> None:
    prompt = oracle.tokenize(table(40, 60))
    generation = parts.submit(prompt, 4)
    await follow(generation, prefilled(1))
    sent = len(parts.chunks(generation.id))
    await parts.until_idle()
    # One may have been in progress, and the report of one more on its way.
    assert len(parts.chunks(generation.id)) <= sent + 2
    assert parts.of(p.Finished, generation.id)[0].reason == "cancelled"
    # What was computed stays usable.
    again = parts.submit(prompt, 4)
    reply = await follow(again)
    assert parts.computed([again.id]) < len(prompt)
    check(oracle, [reply])


async def test_two_hundred_random_cancels_leave_no_slot_leaked(parts: Parts, oracle: Oracle) -> None:
    draw = random.Random(5)
    # Few different beginnings, so that most of the time goes into what is tested and not into prefill.
    heads = [oracle.tokenize(table(seed, 6)) for seed in range(50, 54)]

    async def cancelled_somewhere(number: int) -> None:
        prompt = [*draw.choice(heads), *oracle.tokenize(str(number))]
        left = draw.randrange(6)  # events to wait for; 0: as soon as it is queued
        generation = parts.submit(
            prompt, 40, priority=draw.choice(["interactive", "background"]), client=str(number % 3)
        )
        if not left:
            generation.close()
            return

        def enough(event: object) -> bool:
            nonlocal left
            left -= 1
            return left <= 0

        await follow(generation, enough)

    for first in range(0, 200, 20):
        await asyncio.gather(*(cancelled_somewhere(first + number) for number in range(20)))
    await parts.until_idle()
    assert not any(slot.busy for slot in parts.dispatcher.slots)
    check(oracle, await gather([parts.run(head, 12) for head in heads]))


async def test_an_interactive_request_overtakes_background_ones_and_takes_a_slot_from_them(
    parts: Parts, oracle: Oracle
) -> None:
    prompts = [oracle.tokenize(table(seed, 4)) for seed in range(60, 67)]
    preemptions = parts.metric("lcpd_num_preemptions_total")
    background = [parts.submit(prompt, 40, priority="background") for prompt in prompts[:-1]]
    running, queued = background[:SLOTS], background[SLOTS:]
    followed = asyncio.ensure_future(gather([follow(generation) for generation in background]))
    await parts.until(lambda: all(parts.of(p.Started, g.id) for g in running), "the slots are taken")
    urgent = parts.submit(prompts[-1], 12)
    replies = [await follow(urgent), *await followed]
    order = [message.request for message in parts.of(p.Started)]
    assert all(order.index(urgent.id) < order.index(late.id) for late in queued)
    assert parts.metric("lcpd_num_preemptions_total") > preemptions
    check(oracle, replies)


async def test_beside_a_running_stream_prompts_are_computed_in_small_parts(kind: str, oracle: Oracle) -> None:
    """A limit that no chunk can keep makes them as small as they get; alone the prompt is computed in full batches."""
    sections = {"scheduler": {"max_stall_ms": 1}, "engine": {"emit_interval": 0}}
    async with running_parts(kind, model={"slots": 2, "batch": BATCH}, **sections) as parts:
        alone = parts.submit(oracle.tokenize(table(70, 30)), 1)
        await follow(alone)
        assert {end - begin for begin, end in parts.chunks(alone.id)[:-1]} == {BATCH}

        stream = parts.submit(oracle.tokenize(table(71, 6)), 2000)
        streaming = asyncio.create_task(follow(stream))
        await parts.until(lambda: bool(parts.of(p.Step)[1:]), "the stream decodes")
        beside = parts.submit(oracle.tokenize(table(72, 30)), 1)
        await follow(beside)
        streaming.cancel()
        chunks = [end - begin for begin, end in parts.chunks(beside.id)[:-1]]
        assert len(chunks) > 4
        assert max(chunks) < BATCH
        # And the stream gets a token between any two of them.
        told = [m for m in parts.messages if isinstance(m, p.Step | p.Prefilled)]
        told = told[told.index(parts.of(p.Prefilled, beside.id)[0]) :]
        assert not any(isinstance(a, p.Prefilled) and isinstance(b, p.Prefilled) for a, b in pairwise(told))


async def test_with_a_third_of_the_cells_all_replies_are_completed_through_parking(kind: str, oracle: Oracle) -> None:
    jobs = [(oracle.tokenize(table(seed, 4))[-48:], 144) for seed in range(80, 84)]
    cells = sum(len(prompt) + length for prompt, length in jobs) // 3
    async with running_parts(kind, model={"slots": SLOTS, "ctx": cells, "batch": BATCH}) as parts:
        replies = await gather([parts.run(prompt, length) for prompt, length in jobs])
        assert [len(reply.tokens) for reply in replies] == [length for _, length in jobs]
        assert parts.metric("lcpd_num_preemptions_total") > 0
        assert parts.of(p.Parked)
        assert parts.of(p.Saved), "what was parked came back from RAM"
        assert not parts.of(p.Failed)
        check(oracle, replies)
        # Clients see when it began once, however often it was parked.
        assert all(sum(isinstance(event, Begun) for event in reply.events) == 1 for reply in replies)
