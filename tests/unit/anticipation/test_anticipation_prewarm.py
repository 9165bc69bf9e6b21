"""Which conversations are brought back to slots before anybody asks, when, and what never happens because of it."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import numpy as np
import pytest

from fakes.api import until
from lcpd.anticipation import prewarm
from lcpd.anticipation.prewarm import Prewarmer
from lcpd.cache.figures import Limits
from lcpd.cache.isolation import marked
from lcpd.cache.tier import DiskTier
from lcpd.engine import protocol as p
from lcpd.scheduler.generation import Prompt
from lcpd.scheduler.policy import Policy
from lcpd.scheduler.slots import Tokens
from unit.cache.memory_store import MemoryStore
from unit.scheduler.dispatcher_bench import Engine, finished, held, piece, prompt
from unit.scheduler.test_scheduler_end_to_end import SYSTEM, Make, ask, make, right_reply
from unit.scheduler.test_scheduler_end_to_end import prompt as chat

__all__ = ["make"]


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prewarm, "_POLL", 0.0)


def array(text: str) -> Tokens:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def keep(engine: Engine, tokens: Tokens, *checkpoints: int) -> None:
    """A conversation is in RAM, as the latest one."""
    engine.clock.advance(1)
    cuts = engine.cache.plan_save(tokens, len(tokens))
    engine.cache.add_segments(tokens, cuts, [p.Segment(cut.begin, cut.end, piece(cut.extent)) for cut in cuts])
    for position in checkpoints:
        extent = engine.cache.reserve_checkpoint()
        assert extent is not None
        engine.cache.add_checkpoint(tokens[:position], extent, piece(extent))


def warmer(engine: Engine, count: int = 1) -> Prewarmer:
    return Prewarmer(engine.dispatcher, engine.cache, None, engine.metrics, count, engine.clock.now)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def begin(engine: Engine, count: int = 1) -> Prewarmer:
    one = warmer(engine, count)
    one.begin(engine.info)
    await settle()
    return one


def started(engine: Engine, start: p.Start, begin: int | None = None, **fields: Any) -> None:
    """The engine brings a sequence to where it was told."""
    engine.say(p.Started(start.request, start.begin if begin is None else begin, **fields))


async def restored(engine: Engine, start: p.Start) -> None:
    """The same for a conversation that is restored, which is all that is to be done."""
    started(engine, start)
    engine.say(finished(start.request, "", "length"))
    await settle()


# ---- what -------------------------------------------------------------------------------------------------


async def test_the_conversation_used_last_goes_to_an_empty_slot_and_nothing_of_it_is_computed() -> None:
    engine = Engine(slots=2).up()
    keep(engine, array("an old conversation"))
    keep(engine, array("the last one"))
    one = await begin(engine)
    start = engine.start()
    assert (start.tokens, start.begin, start.max_tokens, start.priority) == (p.pack(array("the last one")), 12, 0, 2)
    assert start.checkpoints == {}
    await restored(engine, start)
    assert held(engine, start.seq) == "the last one"
    assert engine.take() == []
    assert not one.working
    assert engine.figure("lcpd_prewarmed_tokens_total") == 12
    assert engine.figure("lcpd_prompt_tokens_total", source="anticipated") == 0


async def test_its_next_turn_goes_on_in_that_slot() -> None:
    engine = Engine(slots=2).up()
    keep(engine, array("the last one"))
    await begin(engine)
    await restored(engine, engine.start())
    engine.dispatcher.submit(prompt("the last one goes on", name="next"))
    start = engine.start()
    started(engine, start)
    report = engine.dispatcher.report("next")
    assert report is not None
    assert (report.vram, report.ram, report.computed) == (12, 0, 8)


async def test_as_many_as_are_wanted_are_restored_the_latest_first() -> None:
    engine = Engine(slots=4).up()
    for text in ("first", "second", "third"):
        keep(engine, array(text))
    await begin(engine, count=2)
    for text in ("third", "second"):
        start = engine.start()
        assert start.tokens == p.pack(array(text))
        await restored(engine, start)
    assert engine.take() == []


async def test_on_a_hybrid_it_is_restored_up_to_its_last_checkpoint() -> None:
    engine = Engine(kind="hybrid").up()
    keep(engine, array("a long conversation"), 2, 6)
    await begin(engine)
    start = engine.start()
    assert (start.tokens, start.begin) == (p.pack(array("a long")), 6)
    assert start.restore is not None


async def test_what_cannot_be_resumed_is_passed_over_for_the_one_before() -> None:
    engine = Engine(kind="hybrid").up()
    keep(engine, array("with a checkpoint"), 17)
    keep(engine, array("and one without"))
    await begin(engine)
    assert engine.start().tokens == p.pack(array("with a checkpoint"))


async def test_an_earlier_branch_of_a_conversation_is_not_another_one() -> None:
    engine = Engine(slots=4).up()
    keep(engine, array("something else"))
    keep(engine, array("a conversation that ends like th"))
    keep(engine, array("a conversation that ends like this"))
    keep(engine, array("a conversation that ends like that"))
    await begin(engine, count=2)
    first = engine.start()
    await restored(engine, first)
    second = engine.start()
    assert [first.tokens, second.tokens] == [
        p.pack(array("a conversation that ends like that")),
        p.pack(array("something else")),
    ]


async def test_one_that_a_slot_holds_already_counts_and_is_left_alone() -> None:
    engine = Engine(slots=2).up()
    engine.dispatcher.submit(prompt("the last one"))
    engine.run(engine.start(), "")
    engine.take()
    keep(engine, array("an old conversation"))
    keep(engine, array("the last one"))
    await begin(engine)
    assert engine.take() == []


async def test_what_is_restored_for_one_key_is_of_no_use_to_another_one() -> None:
    engine = Engine(slots=2).up()
    tokens = array("the last one")
    keep(engine, marked(tokens, 1))
    await begin(engine)
    start = engine.start()
    assert start.tokens == p.pack(tokens)
    await restored(engine, start)
    for number, expected in ((2, 0), (1, 11)):
        engine.dispatcher.submit(Prompt(marked(tokens, number), (), b"{}", 1))
        start = engine.start()
        assert start.begin == expected
        engine.run(start, "")
        engine.take()


async def test_without_anything_in_ram_or_on_disk_nothing_happens() -> None:
    engine = Engine().up()
    one = await begin(engine)
    assert engine.take() == []
    assert not one.working


# ---- when -------------------------------------------------------------------------------------------------


async def test_nothing_is_restored_before_the_requests_that_are_there_are_over() -> None:
    engine = Engine(slots=2).up()
    keep(engine, array("the last one"))
    engine.dispatcher.submit(prompt("hello"))
    running = engine.start()
    await begin(engine)
    assert engine.take() == []
    engine.run(running)
    engine.take()
    await settle()
    assert engine.start().tokens == p.pack(array("the last one"))


async def test_a_request_stops_it_at_once_and_it_begins_again_when_that_is_over() -> None:
    engine = Engine(slots=2).up()
    keep(engine, array("the last one"))
    await begin(engine)
    ahead = engine.start()
    engine.dispatcher.submit(prompt("hello"))
    assert engine.take() == [p.Cancel("fake", ahead.request)]
    started(engine, ahead, begin=0, problem="cancelled")
    engine.say(finished(ahead.request, "", "cancelled"))
    request = next(message for message in engine.take() if isinstance(message, p.Start))
    await settle()
    engine.run(request)
    engine.take()
    await settle()
    assert engine.start().tokens == p.pack(array("the last one"))


async def test_no_slot_is_emptied_for_it() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("hello"))
    engine.run(engine.start())
    engine.take()
    keep(engine, array("the last one"))
    one = await begin(engine)
    assert engine.take() == []
    assert not one.working


async def test_what_proves_to_be_damaged_is_not_computed_instead() -> None:
    engine = Engine().up()
    keep(engine, array("the last one"))
    await begin(engine)
    start = engine.start()
    started(engine, start, begin=0, problem="damaged", damaged=True)
    await settle()
    assert engine.take() == [p.Cancel("fake", start.request)]
    engine.say(finished(start.request, "", "cancelled"))
    await settle()
    assert engine.take() == []
    assert engine.figure("lcpd_prewarmed_tokens_total") == 0


@pytest.mark.parametrize("cause", ["killed", "crash"])
async def test_an_engine_that_dies_of_it_again_and_again_is_not_asked_any_more(cause: str) -> None:
    engine = Engine().up()
    keep(engine, array("the last one"))
    one = warmer(engine)
    asked = 0
    for _ in range(5):
        one.begin(engine.info)
        await settle()
        asked += len(engine.take())
        engine.dispatcher.on_down("it died", cause)
        await settle()
        engine.up()
    assert asked == (2 if cause == "killed" else 1)


# ---- with a worker ----------------------------------------------------------------------------------------

SOON = Policy(follow_min=4, save_after=0.01)


@pytest.mark.parametrize("kind", ["attention", "hybrid", "recurrent"])
async def test_after_a_crash_the_slot_holds_the_conversation_again_and_the_next_turn_is_right(
    make: Make, kind: str
) -> None:
    engine = make(slots=2, kind=kind, policy=SOON)
    one = Prewarmer(engine.dispatcher, engine.cache, None, engine.metrics, 1)
    listen = engine.dispatcher.on_up

    def on_up(info: p.ModelInfo) -> None:
        one.begin(info)
        listen(info)

    engine.dispatcher.on_up = on_up  # type: ignore[method-assign]
    talk = chat(SYSTEM, ("user", "one"))
    said, _ = await ask(engine, talk)
    length = len(talk.tokens) + len(said.encode())
    await until(lambda: any(slot.saved >= length for slot in engine.dispatcher.slots))
    assert engine.supervisor.pid is not None
    os.kill(engine.supervisor.pid, signal.SIGKILL)
    await until(lambda: engine.figure("lcpd_prewarmed_tokens_total") > 0)
    assert [len(slot.tokens) for slot in engine.dispatcher.slots if len(slot.tokens)] == [length]
    two = chat(SYSTEM, ("user", "one"), ("assistant", said), ("user", "two"))
    again, done = await ask(engine, two)
    assert (again, done.cached) == (right_reply(two), length)
    assert engine.figure("lcpd_prompt_tokens_total", source="vram") == length


@pytest.mark.parametrize("kind", ["attention", "hybrid"])
async def test_what_only_the_disk_has_is_brought_to_ram_first(make: Make, kind: str) -> None:
    store = MemoryStore()
    fingerprint = {"model file": "m"}
    first = make(slots=2, kind=kind, policy=SOON)
    disk = DiskTier(store, first.cache, Limits(1 << 30))
    await first.dispatcher.model_info()
    disk.start(fingerprint, rolls_back=kind == "attention")
    talk = chat(SYSTEM, ("user", "one"))
    said, _ = await ask(first, talk)
    length = len(talk.tokens) + len(said.encode())
    await until(lambda: any(slot.saved >= length for slot in first.dispatcher.slots))
    await disk.finish(5)

    second = make(slots=2, kind=kind, policy=SOON)
    disk = DiskTier(store, second.cache, Limits(1 << 30))
    second.dispatcher.use_disk(disk)
    one = Prewarmer(second.dispatcher, second.cache, disk, second.metrics, 1)
    info = await second.dispatcher.model_info()
    one.begin(info)
    disk.start(fingerprint, rolls_back=kind == "attention")
    await until(lambda: not one.working)
    assert second.figure("lcpd_prewarmed_tokens_total") == length
    two = chat(SYSTEM, ("user", "one"), ("assistant", said), ("user", "two"))
    again, done = await ask(second, two)
    assert (again, done.cached) == (right_reply(two), length)
    assert second.figure("lcpd_prompt_tokens_total", source="vram") == length
    await disk.finish(5)
