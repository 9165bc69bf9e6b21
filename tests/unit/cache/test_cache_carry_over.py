"""From one daemon to the next: what is taken over, what is not and why, and when the list is written."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from synthetic_kv import CHECKPOINT_BYTES, SEGMENT_BYTES, Bench, path

from lcpd.cache.arena import Arena
from lcpd.cache.cache import PromptCache
from lcpd.cache.index import IndexArea, front_size
from lcpd.carry_over import BUSY_INTERVAL, NAME, CarryOver, FirstWord, is_due, open_arena
from lcpd.engine.protocol import ModelInfo
from lcpd.fdstore import ServiceManager
from lcpd.scheduler.slots import Slot

SIZE = 1 << 20
HEAD = path(*range(100, 112))
INFO = ModelInfo("", "hybrid", 1, 1, 64, 64, 1, 1, 1, 1, 1, {}, "", "")


class Life(Bench):
    """One daemon's cache, and what its dispatcher would do."""

    arenas: ClassVar[list[Arena]] = []
    """Those of the test that runs."""

    def __init__(self, before: Life | None = None, kv_type: str = "f16") -> None:
        self.now = 0.0
        passed = {NAME: [os.dup(before.arena.fd)]} if before else {}
        self.arena, adopted = open_arena(ServiceManager("/nobody/listens", 0.0, passed), SIZE)
        self.arenas.append(self.arena)
        self.cache = PromptCache(self.arena, 8, lambda: self.now)
        self.cache.configure(segment_bytes=SEGMENT_BYTES, checkpoint_bytes=CHECKPOINT_BYTES)
        self.carry_over = CarryOver(self.arena, self.cache, lambda info: {"kv type": kv_type}, adopted)
        self.running = 0
        self.exporting = False
        self.slots: list[Slot] = []

    @property
    def generation(self) -> int:
        return IndexArea(self.arena.front).generation

    def export_slot(self, seq: int) -> None:
        super().save(self.slots[seq].tokens)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while True:
            if true():
                return
            await asyncio.sleep(0.01)


@pytest.fixture
def first() -> Iterator[Life]:
    Life.arenas.clear()
    life = Life()
    life.carry_over.on_model(INFO)
    yield life
    for arena in Life.arenas:
        arena.close()


async def test_what_the_earlier_daemon_left_is_there_before_the_first_request(first: Life) -> None:
    first.save(HEAD)
    first.carry_over.write()
    second = Life(first)
    assert second.cache.covered(HEAD) == 0
    second.carry_over.on_model(INFO)
    second.restore(HEAD, 0, 12)
    second.check()


async def test_after_a_change_of_the_fingerprint_nothing_is_and_the_log_names_the_field(
    first: Life, caplog: pytest.LogCaptureFixture
) -> None:
    first.save(HEAD)
    first.carry_over.write()
    second = Life(first, kv_type="q8_0")
    second.carry_over.on_model(INFO)
    assert second.cache.covered(HEAD) == 0
    assert "fingerprint changed: kv type (f16, now q8_0)" in caplog.text
    past = second.cache.past(HEAD)
    assert past.length == 12
    assert [(loss.end, loss.reason, loss.detail) for loss in past.losses] == [
        (12, "fingerprint changed", "kv type (f16, now q8_0)")
    ]
    third = Life(second, kv_type="f16")
    third.carry_over.on_model(INFO)
    assert third.cache.covered(HEAD) == 0


async def test_damaged_memory_is_no_reason_to_fail(first: Life, caplog: pytest.LogCaptureFixture) -> None:
    first.save(HEAD)
    first.carry_over.write()
    first.arena.front[:] = os.urandom(len(first.arena.front))
    second = Life(first)
    second.carry_over.on_model(INFO)
    assert second.cache.covered(HEAD) == 0
    assert "the list of the prompt cache that was kept is not used" in caplog.text
    second.save(HEAD)
    second.check()


async def test_pieces_whose_bytes_changed_are_dropped_in_the_background(
    first: Life, caplog: pytest.LogCaptureFixture
) -> None:
    first.save(HEAD)
    first.save(path(1, 2, 3))
    first.take_checkpoint(path(1, 2, 3))
    first.carry_over.write()
    damaged = first.cache.segments(HEAD, 0, 8)[0].piece.extent
    first.arena.view(damaged)[40] ^= 1
    second = Life(first)
    second.carry_over.on_model(INFO)
    assert second.cache.covered(HEAD) == 12
    second.carry_over.start(second)
    await until(lambda: not second.cache.covered(HEAD))
    await second.carry_over.finish(second)
    assert second.cache.covered(path(1, 2, 3)) == 3
    assert second.cache.checkpoints_on(path(1, 2, 3)) == [3]
    assert second.cache.stats().dropped == {"corrupt": 2}
    assert [loss.reason for loss in second.cache.past(HEAD).losses] == ["damaged"]
    second.check()


async def test_the_list_is_not_touched_before_the_model_is_loaded(first: Life) -> None:
    first.save(HEAD)
    first.carry_over.write()
    second = Life(first)
    second.carry_over.start(second)
    await second.carry_over.finish(second)
    assert second.generation == first.generation
    third = Life(second)
    third.carry_over.on_model(INFO)
    third.restore(HEAD, 0, 12)


async def test_a_second_load_of_the_model_changes_nothing(first: Life) -> None:
    first.save(HEAD)
    generation = first.generation
    first.carry_over.on_model(INFO)
    assert first.generation == generation


async def test_changes_are_listed_for_a_daemon_that_is_killed(first: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lcpd.carry_over.LIST_INTERVAL", 0.01)
    first.carry_over.start(first)
    generation = first.generation
    first.save(HEAD)
    await until(lambda: first.generation > generation)
    second = Life(first)  # the first one wrote nothing more
    second.carry_over.on_model(INFO)
    second.restore(HEAD, 0, 12)
    await first.carry_over.finish(first)


async def test_a_planned_stop_brings_what_slots_hold_into_the_arena_once_requests_are_over(first: Life) -> None:
    first.slots = [Slot(0, HEAD, last_used=2.0), Slot(1, path(7, 8, 9), last_used=1.0)]
    first.running = 1
    order: list[int] = []

    class Dispatcher:
        slots = first.slots
        running = 1
        exporting = False

        def save(self, seq: int) -> None:
            order.append(seq)
            self.exporting = True
            asyncio.get_running_loop().call_later(0.02, self._saved, seq)

        def _saved(self, seq: int) -> None:
            first.export_slot(seq)
            self.exporting = False

    dispatcher = Dispatcher()
    stopping = asyncio.create_task(first.carry_over.finish(dispatcher))
    await asyncio.sleep(0.05)
    assert order == []
    dispatcher.running = 0
    await stopping
    assert order == [1, 0]
    second = Life(first)
    second.carry_over.on_model(INFO)
    assert (second.cache.covered(HEAD), second.cache.covered(path(7, 8, 9))) == (12, 3)


@pytest.mark.parametrize("fails", ["_verify", "write"])
async def test_what_fails_once_in_the_background_is_logged_and_changes_are_listed_all_the_same(
    first: Life, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: str
) -> None:
    monkeypatch.setattr("lcpd.carry_over.LIST_INTERVAL", 0.01)
    fail_once(monkeypatch, first.carry_over, fails)
    generation = first.generation
    first.save(HEAD)
    first.carry_over.start(first)
    await until(lambda: "a defect" in caplog.text)
    first.save(path(7, 8, 9))
    await until(lambda: first.generation > generation)
    await first.carry_over.finish(first)


@pytest.mark.parametrize("fails", ["_verify", "write"])
async def test_a_planned_stop_saves_and_lists_although_the_background_failed(
    first: Life, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: str
) -> None:
    fail_once(monkeypatch, first.carry_over, fails)
    first.save(HEAD)
    first.carry_over.start(first)
    await until(lambda: "a defect" in caplog.text)
    first.save(path(7, 8, 9))
    await first.carry_over.finish(first)
    second = Life(first)
    second.carry_over.on_model(INFO)
    assert (second.cache.covered(HEAD), second.cache.covered(path(7, 8, 9))) == (12, 3)


def fail_once(monkeypatch: pytest.MonkeyPatch, carry_over: CarryOver, name: str) -> None:
    """Make a method fail the first time."""
    method = getattr(carry_over, name)

    def fail() -> None:
        monkeypatch.setattr(carry_over, name, method)
        raise RuntimeError("a defect")

    monkeypatch.setattr(carry_over, name, fail)


async def test_a_stop_that_takes_too_long_still_writes_the_list(
    first: Life, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lcpd.carry_over.STOP_WITHIN", 0.05)
    first.save(HEAD)
    first.running = 1
    await first.carry_over.finish(first)
    assert "not all that slots held" in caplog.text
    second = Life(first)
    second.carry_over.on_model(INFO)
    assert second.cache.covered(HEAD) == 12


# ---- the arena -----------------------------------------------------------------------------------------------


def test_without_a_service_manager_the_arena_is_all_for_the_cache() -> None:
    arena, adopted = open_arena(ServiceManager(), SIZE)
    assert (arena.size, arena.mapped, adopted) == (SIZE, SIZE, False)
    arena.close()


def test_an_arena_of_another_size_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    before = Arena(2 * SIZE, front_size(2 * SIZE))
    passed = os.dup(before.fd)
    arena, adopted = open_arena(ServiceManager("/nobody/listens", 0.0, {NAME: [passed]}), SIZE)
    assert not adopted
    assert f"it has {2 * SIZE} bytes, cache.ram is {SIZE}" in caplog.text
    assert not Path(f"/proc/self/fd/{passed}").exists() or arena.fd == passed
    arena.close()
    before.close()


def test_an_arena_that_is_turned_off_is_given_up() -> None:
    before = Arena(SIZE, front_size(SIZE))
    arena, adopted = open_arena(ServiceManager("/nobody/listens", 0.0, {NAME: [os.dup(before.fd)]}), 0)
    assert (arena.mapped, adopted) == (0, False)
    before.close()


def test_what_does_not_fit_into_memory_is_halved_and_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lcpd.room.LEAST", SIZE // 4)
    arena, _ = open_arena(ServiceManager(), SIZE, room=SIZE - 1)
    assert arena.size == SIZE // 2
    assert "cache.ram: 1 MiB do not fit" in caplog.text
    arena.close()


def test_what_the_daemon_before_has_taken_up_counts_as_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lcpd.room.LEAST", SIZE // 4)
    before = Arena(SIZE, front_size(SIZE))
    os.pwrite(before.fd, b"x" * SIZE, 0)
    arena, adopted = open_arena(ServiceManager("/nobody/listens", 0.0, {NAME: [os.dup(before.fd)]}), SIZE, room=0)
    assert (arena.mapped, adopted) == (SIZE, True)
    arena.close()
    before.close()


# ---- when, and who is told -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "busy", "since", "due"),
    [
        (False, False, 1e9, False),
        (True, False, 0.0, True),
        (True, True, BUSY_INTERVAL - 1, False),
        (True, True, BUSY_INTERVAL, True),
    ],
)
def test_running_requests_are_spared_the_writing_for_a_while(
    changed: bool, busy: bool, since: float, due: bool
) -> None:
    assert is_due(changed, busy, since) == due


def test_the_cache_hears_of_the_model_before_requests_are_started() -> None:
    heard: list[object] = []

    class Listener:
        def on_up(self, info: ModelInfo) -> None:
            heard.append("dispatcher")

        def on_message(self, message: object) -> None:
            heard.append(message)

        def on_down(self, reason: str, cause: str) -> None:
            heard.append((reason, cause))

        def on_failed(self, reason: str) -> None:
            heard.append(reason)

    listener = FirstWord(Listener(), lambda info: heard.append("cache"))
    listener.on_up(INFO)
    listener.on_message("message")  # type: ignore[arg-type]
    listener.on_down("reason", "crash")
    listener.on_failed("failed")
    assert heard == ["cache", "dispatcher", "message", ("reason", "crash"), "failed"]
