"""A request waits for what the disk can bring it, others pass, and a disk that fails only costs what it would spare."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import numpy as np
import pytest
from dispatcher_bench import Engine, piece

from lcpd.cache.isolation import marked
from lcpd.engine import protocol as p
from lcpd.scheduler import fetching
from lcpd.scheduler.generation import Prompt
from lcpd.scheduler.slots import Tokens


class Disk:
    """Has all but the last token of every prompt, once it is told so."""

    def __init__(self, engine: Engine) -> None:
        self._cache = engine.cache
        self.ready = asyncio.Event()
        self.error: Exception | None = None
        self.asked: list[int] = []
        self.started = True
        """Whether the model is loaded: before, it does not know whose state is of use."""

    def wants(self, tokens: Tokens, begin: int) -> int:
        self.asked.append(begin)
        if not self.started:
            return 0
        return len(tokens) - 1 if begin < len(tokens) - 1 else 0

    async def promote(self, tokens: Tokens) -> int:
        await self.ready.wait()
        if self.error:
            raise self.error
        path = tokens[:-1]
        cuts = self._cache.plan_save(path, len(path))
        segments = [p.Segment(cut.begin, cut.end, piece(cut.extent)) for cut in cuts]
        self._cache.add_segments(path, cuts, segments)
        return len(path)


@pytest.fixture
async def engine():
    return Engine(slots=2).up()


@pytest.fixture
def disk(engine):
    disk = Disk(engine)
    engine.dispatcher.use_disk(disk)
    return disk


def prompt(text: str = "a long prompt", **fields) -> Prompt:
    return Prompt(np.frombuffer(text.encode(), np.uint8).astype(np.int32), (), b"{}", 50, **fields)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_request_starts_from_what_came_from_disk_and_says_so(engine, disk):
    engine.dispatcher.submit(prompt(name="one"))
    assert engine.take() == []
    assert engine.dispatcher.waiting == 1
    disk.ready.set()
    await settle()
    start = engine.start()
    assert (start.begin, start.source) == (12, -1)
    engine.say(p.Started(start.request, start.begin))
    report = engine.dispatcher.report("one")
    assert (report.disk, report.ram, report.vram, report.computed) == (12, 0, 0, 1)
    assert engine.metrics.tokens.prompt.labels("disk")._value.get() == 12


async def test_a_request_that_came_before_the_model_was_loaded_waits_for_the_disk_too():
    engine = Engine(slots=2)
    disk = Disk(engine)
    disk.started = False
    engine.dispatcher.use_disk(disk)
    engine.dispatcher.submit(prompt())
    disk.started = True
    engine.up()
    assert engine.take() == []
    disk.ready.set()
    await settle()
    assert engine.start().begin == 12


async def test_a_request_whose_engine_died_goes_on_from_what_the_disk_has(engine, disk):
    disk.started = False
    engine.dispatcher.submit(prompt())
    engine.start()
    disk.started = True
    engine.dispatcher.on_down("killed", "crash")
    engine.up()
    assert engine.take() == []
    disk.ready.set()
    await settle()
    assert engine.start().begin == 12


async def test_others_pass_a_request_that_waits_for_the_disk(engine, disk):
    engine.dispatcher.submit(prompt())
    engine.dispatcher.submit(prompt("x"))
    assert engine.start().tokens == p.pack(np.array([ord("x")], np.int32))


async def test_the_disk_is_told_how_far_slots_and_ram_reach(engine, disk):
    disk.ready.set()
    engine.dispatcher.submit(prompt())
    await settle()
    engine.run(engine.start())
    engine.dispatcher.submit(prompt())
    assert disk.asked == [0, 12]
    assert engine.start().source == 0


@pytest.mark.parametrize("error", [OSError("bad"), RuntimeError("worse")])
async def test_a_disk_that_fails_is_done_without(engine, disk, error, caplog):
    disk.error = error
    disk.ready.set()
    engine.dispatcher.submit(prompt())
    await settle()
    assert engine.start().begin == 0
    assert "reading a prompt back from disk failed" in caplog.text


async def test_a_disk_that_takes_too_long_is_done_without(engine, disk, monkeypatch):
    monkeypatch.setattr(fetching, "WITHIN", 0.0)
    engine.dispatcher.submit(prompt())
    await asyncio.sleep(0.01)
    assert engine.start().begin == 0


async def test_a_disk_that_hangs_so_that_nothing_can_be_called_off_holds_up_one_request_and_not_for_long(
    engine, disk, monkeypatch
):
    monkeypatch.setattr(fetching, "WITHIN", 0.0)

    async def promote(tokens: Tokens) -> int:
        while not disk.ready.is_set():
            with suppress(asyncio.CancelledError):
                await disk.ready.wait()
        return 0

    monkeypatch.setattr(disk, "promote", promote)
    engine.dispatcher.submit(prompt())
    await settle()
    assert engine.start().begin == 0
    engine.dispatcher.submit(prompt("another prompt"))
    assert engine.start().begin == 0
    disk.ready.set()
    await settle()
    engine.dispatcher.submit(prompt("the disk is back"))
    assert engine.take() == []


async def test_a_request_that_is_closed_meanwhile_is_never_started(engine, disk):
    engine.dispatcher.submit(prompt()).close()
    disk.ready.set()
    await settle()
    assert engine.take() == []
    assert engine.dispatcher.waiting == 0


async def test_what_is_computed_ahead_does_not_wait_for_the_disk(engine, disk):
    engine.dispatcher.submit(prompt(kind="prefill"))
    assert engine.start().begin == 0


async def test_of_a_request_that_is_not_stored_nothing_is_saved():
    engine = Engine(slots=1, kind="hybrid").up()
    engine.dispatcher.submit(prompt(store=False))
    start = engine.start()
    assert start.checkpoints == {}
    engine.run(start)
    engine.take()
    engine.dispatcher.submit(prompt("quite another one"))
    assert not any(isinstance(message, p.Save) for message in engine.take())
    assert engine.cache.stats().used == engine.cache.stats().reserved_bytes


async def test_the_next_request_of_a_slot_is_saved_again():
    engine = Engine(slots=1).up()
    engine.dispatcher.submit(prompt(store=False))
    engine.run(engine.start())
    engine.take()
    engine.dispatcher.submit(prompt("quite another one"))
    (start,) = (message for message in engine.take() if isinstance(message, p.Start))
    engine.run(start)
    engine.take()
    engine.dispatcher.submit(prompt("and a third"))
    assert any(isinstance(message, p.Save) for message in engine.take())


async def test_the_mark_of_a_key_never_reaches_the_engine_and_keeps_slots_apart():
    engine = Engine(slots=2).up()
    tokens = prompt().tokens
    for number in (1, 2):
        engine.dispatcher.submit(Prompt(marked(tokens, number), (), b"{}", 50))
        start = engine.start()
        assert start.tokens == p.pack(tokens)
        assert start.begin == 0
        engine.run(start)
        engine.take()
    engine.dispatcher.submit(Prompt(marked(tokens, 1), (), b"{}", 50))
    assert engine.start().begin == len(tokens) - 1


async def test_forgetting_empties_idle_slots_and_keeps_nothing_that_is_being_saved():
    engine = Engine(slots=1).up()
    engine.dispatcher.submit(prompt())
    engine.run(engine.start())
    engine.take()
    engine.dispatcher.save(0)
    engine.dispatcher.forget()
    assert any(isinstance(message, p.Clear) for message in engine.sent)
    engine.save()
    engine.cache.purge()
    assert engine.cache.stats().nodes == 0
    assert engine.cache.stats().used == 0
    assert not len(engine.dispatcher.slots[0].tokens)
