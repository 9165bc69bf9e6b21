"""The disk tier: what is kept comes back, limits hold, and a disk that fails costs nothing but its help."""

from __future__ import annotations

import asyncio
import logging
import threading

import numpy as np
import pytest
from disk_bench import FINGERPRINT, DiskBench, conversation
from memory_store import MemoryStore
from synthetic_kv import path

from lcpd.cache.store import Listing, StoreError
from lcpd.engine.protocol import Tokens


async def stop(*benches: DiskBench) -> None:
    for bench in benches:
        await bench.disk.finish(1.0)


async def until(true) -> None:
    async with asyncio.timeout(10):
        while True:
            if true():
                return
            await asyncio.sleep(0.002)


async def reborn(bench: DiskBench, fingerprint: dict[str, str] = FINGERPRINT, **limits: float) -> DiskBench:
    """The next daemon, after the one before was killed."""
    await stop(bench)
    following = DiskBench(bench.store, rolls_back=bench.rolls_back, **limits)
    following.wall = bench.wall
    await following.start(fingerprint)
    return following


@pytest.fixture
async def bench():
    bench = DiskBench(MemoryStore())
    await bench.start()
    yield bench
    await stop(bench)


TALK = conversation(1, 40)


# ---- there and back --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rolls_back", [True, False])
async def test_what_was_written_comes_back_after_a_restart_as_it_was(rolls_back):
    bench = DiskBench(MemoryStore(), rolls_back=rolls_back)
    await bench.start()
    await bench.put_away(TALK, 12)
    following = await reborn(bench)
    assert following.cache.covered(TALK) == 0
    assert following.disk.wants(np.append(TALK, [1, 2]).astype(np.int32), 0) == 40
    assert await following.ask(TALK) == 40
    assert following.disk.stats().counts.read > 0
    await stop(following)


async def test_the_index_is_read_without_reading_a_file(bench):
    for seed in range(20):
        await bench.put_away(conversation(seed, 20))
    reads = bench.store.reads
    following = await reborn(bench)
    assert bench.store.reads == reads
    assert following.disk.stats().files == 20 * 4  # three segments and a checkpoint each
    await stop(following)


async def test_what_conversations_have_in_common_is_on_disk_once(bench):
    head = conversation(7, 20)
    for seed in range(5):
        await bench.put_away(np.concatenate([head, conversation(seed, 10)]), 20)
    heads = sum(entry.begin < 20 and entry.kind == "segment" for entry in bench.disk._shelf.catalogue.entries)
    assert heads == 3
    following = await reborn(bench)
    for seed in range(5):
        assert await following.ask(np.concatenate([head, conversation(seed, 10)])) == 30
    await stop(following)


async def test_a_path_that_turns_off_within_a_file_resumes_at_the_last_checkpoint_before(bench):
    await bench.put_away(TALK, 16)
    following = await reborn(bench)
    assert await following.ask(np.concatenate([TALK[:22], path(1, 2, 3)])) == 16
    await stop(following)


async def test_a_prompt_that_comes_while_the_index_is_read_waits_for_it(bench):
    await bench.put_away(TALK)
    await stop(bench)
    following = DiskBench(bench.store)
    following.disk.start(FINGERPRINT, rolls_back=False)
    assert following.disk.wants(np.append(TALK, [1, 2]).astype(np.int32), 0) > 0
    assert await following.ask(TALK) == 40
    await stop(following)


async def test_only_what_ram_lacks_is_read(bench):
    await bench.put_away(TALK, 12)
    following = await reborn(bench)
    following.save(TALK[:13])  # cut elsewhere than the files are
    assert await following.ask(TALK) == 40
    following.check()
    await stop(following)


async def test_segments_in_ram_that_are_cut_otherwise_are_completed_on_disk(bench):
    await bench.put_away(TALK[:12])
    other = DiskBench(bench.store)
    await stop(bench)
    other.compute(TALK)
    await other.start()
    await other.disk.flush()
    third = await reborn(other)
    assert await third.ask(TALK) == 40
    await stop(third)


async def test_nothing_is_wanted_that_slots_or_ram_have(bench):
    await bench.put_away(TALK)
    prompt = np.append(TALK, [1, 2]).astype(np.int32)
    assert bench.disk.wants(prompt, 0) == 0
    following = await reborn(bench)
    assert following.disk.wants(prompt, 40) == 0
    await stop(following)


async def test_nothing_is_wanted_that_is_computed_sooner_than_it_is_read(bench):
    await bench.put_away(TALK)
    following = await reborn(bench)
    following.cache.measured(1e-12)
    assert following.disk.wants(np.append(TALK, [1, 2]).astype(np.int32), 0) == 0
    await stop(following)


async def test_without_room_in_ram_less_comes_back_and_nothing_is_lost(bench):
    await bench.put_away(TALK)
    await stop(bench)
    small = DiskBench(bench.store, ram=1024)
    await small.start()
    assert await small.ask(TALK) == 0
    assert small.disk.stats().files == bench.disk.stats().files
    await stop(small)


async def test_two_prompts_that_want_the_same_read_it_once(bench):
    await bench.put_away(TALK)
    following = await reborn(bench)
    before = bench.store.reads
    assert await asyncio.gather(following.ask(TALK), following.ask(TALK)) == [40, 40]
    assert bench.store.reads - before == following.disk.stats().files
    await stop(following)


async def test_what_a_model_with_nothing_but_checkpoints_left_comes_back():
    store = MemoryStore()
    for life in range(2):
        bench = DiskBench(store)
        bench.cache.configure(segment_bytes=(0, 0), checkpoint_bytes=256)
        bench.disk.start(FINGERPRINT, rolls_back=False, needs_segments=False)
        await bench.disk.flush()
        if life:
            assert await bench.disk.promote(np.append(TALK, [1]).astype(np.int32)) == 40
            assert bench.cache.checkpoints_on(TALK) == [40]
        bench.take_checkpoint(TALK)
        await stop(bench)


async def test_a_modest_promotion_gives_nothing_up_in_ram(bench):
    await bench.put_away(TALK, 12)
    size = bench.cache.stats().used
    full = await reborn(bench, ram=2 * size)
    full.compute(conversation(2, 40))
    before = full.cache.stats()
    full.compute(conversation(3, 20))
    assert await full.disk.promote(np.append(TALK, [-1]).astype(np.int32), modest=True) == 0
    assert full.cache.covered(TALK) == 0
    assert full.cache.covered(conversation(2, 40)) == 40
    assert full.cache.stats().dropped == before.dropped
    await stop(full)


async def test_a_modest_promotion_ends_for_one_that_is_waited_for(bench):
    await bench.put_away(TALK)
    await bench.put_away(other := conversation(2, 40))
    following = await reborn(bench)
    modest = asyncio.create_task(following.disk.promote(np.append(TALK, [-1]).astype(np.int32), modest=True))
    while not following.disk._promoter.reading:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert await following.disk.promote(np.append(other, [1]).astype(np.int32)) == 40
    assert await modest < 40
    assert following.cache.covered(TALK) < 40
    await stop(following)


async def test_ram_gives_up_first_what_the_disk_has_too(bench):
    await bench.put_away(TALK)
    bench.store.trouble = "full"
    older = conversation(2, 40)
    bench.compute(older)
    bench.now += 1
    bench.cache.touch(TALK)
    while bench.cache.covered(TALK) == bench.cache.covered(older) == 40:
        bench.now += 1
        bench.compute(conversation(int(bench.now) + 100, 40))
    assert bench.cache.covered(TALK) < bench.cache.covered(older) == 40


async def test_what_left_the_disk_counts_as_lost_again(bench):
    await bench.put_away(TALK)
    payloads = [one.payload for one in bench.cache.residents(TALK)]
    assert all(payload.on_disk for payload in payloads)
    for entry in bench.disk._shelf.catalogue.entries:
        if entry.begin == 0:
            bench.disk._space.forget(entry, "room")
    assert not any(payload.on_disk for payload in payloads)


async def test_the_paths_used_last_are_known_in_their_order(bench):
    for number in range(3):
        bench.wall += 10
        await bench.put_away(conversation(number, 40), 12)
    recent = await bench.disk.recent(2)
    assert [used.tokens.tolist() for used in recent] == [conversation(2, 40)[:length].tolist() for length in (40, 12)]
    assert recent[0].age == 0


# ---- when it is written ----------------------------------------------------------------------------------


async def test_the_end_of_a_path_is_written_once_it_rests(bench):
    bench.compute(TALK[:30])
    await asyncio.sleep(0.05)
    assert bench.store.puts == 0
    bench.now += 5.0
    bench.disk._wake.set()
    await until(lambda: bench.disk.stats().files == 5)


async def test_an_interval_of_a_long_prompt_is_written_at_once(bench):
    bench.compute(conversation(1, 32))
    await until(lambda: bench.disk.stats().files == 5)


async def test_ends_that_are_overtaken_while_they_wait_leave_no_checkpoint_on_disk(bench):
    for end in (10, 12, 14, 16, 18):
        bench.compute(TALK[:end])
    await bench.disk.flush()
    checkpoints = [entry.end for entry in bench.disk._shelf.catalogue.entries if entry.kind == "checkpoint"]
    assert sorted(checkpoints) == [16, 18]


async def test_what_was_in_ram_before_the_index_was_read_is_written_too():
    bench = DiskBench(MemoryStore())
    bench.compute(TALK)
    await bench.start()
    await bench.disk.flush()
    assert bench.disk.stats().files == 6
    await stop(bench)


async def test_bytes_are_pinned_while_they_are_copied_and_not_longer(bench):
    bench.compute(TALK)
    await bench.disk.flush()
    assert all(payload.pins == 0 for payload in bench.cache.payloads())
    bench.check()


async def test_what_is_given_up_before_its_turn_is_counted(bench):
    bench.compute(TALK[:30])
    bench.cache.purge()
    await bench.disk.flush()
    assert bench.store.puts == 0


async def test_a_planned_stop_writes_what_waits():
    bench = DiskBench(MemoryStore())
    await bench.start()
    bench.compute(TALK[:30])
    await bench.disk.finish(5.0)
    assert bench.store.puts == 5


async def test_while_replies_run_writing_rests(bench, monkeypatch):
    rests: list[float] = []
    monkeypatch.setattr("lcpd.cache.tier.time.sleep", rests.append)
    bench.busy = True
    bench.disk._writer.pace.busy = True
    assert [len(part) for part in bench.disk._writer.pace.parts(memoryview(bytes(9 << 20)))] == [
        4 << 20,
        4 << 20,
        1 << 20,
    ]
    assert len(rests) == 3


# ---- limits ----------------------------------------------------------------------------------------------


async def test_the_size_is_never_exceeded_and_what_was_used_long_ago_goes():
    bench = DiskBench(MemoryStore(), size=12 * 4096, ram=1 << 18)
    await bench.start()
    for seed in range(6):
        bench.wall += 1000
        await bench.put_away(conversation(seed, 20))
        assert bench.disk.stats().used <= 12 * 4096
        assert sum(-(-len(data) // 4096) * 4096 for data in bench.store.files.values()) <= 12 * 4096
    assert bench.removed("room") >= 12
    following = await reborn(bench, size=12 * 4096)
    assert await following.ask(conversation(5, 20)) == 20
    assert await following.ask(conversation(0, 20)) == 0
    await stop(following)


async def test_what_can_never_fit_is_not_written():
    bench = DiskBench(MemoryStore(), size=4096)
    await bench.start()
    await bench.put_away(TALK)
    assert bench.disk.stats().used <= 4096
    assert bench.skipped("size") > 0
    await stop(bench)


async def test_the_budget_of_a_day_is_not_exceeded_and_a_restart_does_not_refill_it():
    bench = DiskBench(MemoryStore(), budget=3000)
    bench.store.now = bench.wall
    await bench.start()
    for seed in range(10):
        await bench.put_away(conversation(seed, 30))
    spent = sum(map(len, bench.store.files.values()))
    assert 2000 < spent <= 3000
    assert bench.skipped("budget") > 0
    following = await reborn(bench, budget=3000)
    await following.put_away(conversation(50, 30))
    assert sum(map(len, bench.store.files.values())) <= 3000
    following.wall += 2 * 86400
    await following.put_away(conversation(51, 30))
    assert await (await reborn(following)).ask(conversation(51, 30)) == 30


async def test_below_the_floor_nothing_is_written_and_the_disk_counts_as_full():
    bench = DiskBench(MemoryStore(), floor=1 << 20)
    bench.store.space = (1 << 20) + 100
    await bench.start()
    await bench.put_away(TALK)
    assert bench.store.puts == 0
    assert bench.skipped("floor") > 0
    assert bench.disk.stats().state == "degraded"
    assert "cache.disk_floor" in bench.disk.stats().reason
    bench.store.space = 1 << 30
    await until(lambda: bench.disk.stats().state == "ok" and bench.store.puts > 0)
    assert bench.disk.stats().reason == ""
    await stop(bench)
    assert await (await reborn(bench)).ask(TALK) == 40


async def test_what_was_not_used_for_long_expires_and_what_was_stays():
    bench = DiskBench(MemoryStore(), ttl=1000.0)
    bench.store.now = bench.wall
    await bench.start()
    await bench.put_away(TALK)
    await bench.put_away(conversation(2, 30))
    bench.wall += 900
    bench.cache.touch(TALK)
    bench.wall += 900
    bench.now += 61
    bench.disk._wake.set()
    await until(lambda: bench.removed("expired") == 5)
    following = await reborn(bench, ttl=1000.0)
    assert await following.ask(conversation(2, 30)) == 0
    assert await following.ask(TALK) == 40
    await stop(following)


# ---- a disk that fails -----------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["full", "read-only", "i/o"])
async def test_a_disk_that_fails_degrades_to_ram_and_is_used_again_later(bench, trouble, caplog):
    await bench.put_away(TALK)
    bench.store.trouble = trouble
    bench.compute(conversation(2, 40))
    await until(lambda: bench.disk.stats().state == "degraded")
    assert bench.disk.stats().reason.startswith(f"{trouble}: ")
    assert bench.cache.covered(conversation(2, 40)) == 40
    bench.check()
    bench.store.trouble = None
    await until(lambda: bench.disk.stats().state == "ok")
    await bench.disk.flush()
    assert "goes on in RAM alone" in caplog.text
    following = await reborn(bench)
    assert await following.ask(conversation(2, 40)) == 40
    await stop(following)


async def test_a_full_disk_can_still_be_read(bench):
    await bench.put_away(TALK)
    bench.store.trouble = "full"
    bench.compute(conversation(2, 40))
    await until(lambda: bench.disk.stats().state == "degraded")
    bench.cache.purge()
    assert await bench.ask(TALK) == 40


async def test_a_disk_that_cannot_be_used_at_the_start_is_tried_again(caplog):
    bench = DiskBench(MemoryStore())
    bench.store.trouble = "in use"
    with caplog.at_level(logging.WARNING):
        await bench.start()
        await until(lambda: bench.disk.stats().state == "degraded")
    bench.compute(TALK)
    assert bench.disk.wants(TALK, 0) == 0
    bench.store.trouble = None
    await until(lambda: bench.disk.stats().state == "ok")
    await bench.disk.flush()
    assert bench.disk.stats().files == 6
    await stop(bench)


async def test_the_index_is_read_again_after_a_device_failed(bench):
    await bench.put_away(TALK)
    bench.store.trouble = "i/o"
    bench.compute(conversation(2, 40))
    await until(lambda: bench.disk.stats().state == "degraded")
    lost = next(iter(bench.store.files))
    del bench.store.files[lost]
    bench.store.trouble = None
    await until(lambda: bench.store.opened == 2 and bench.disk.stats().state == "ok")
    assert bench.removed("missing") == 1


# ---- what cannot be used ---------------------------------------------------------------------------------


async def test_state_of_another_kind_is_told_by_name_and_removed(bench, caplog):
    await bench.put_away(TALK)
    files = len(bench.store.files)
    following = await reborn(bench, {**FINGERPRINT, "kv type": "q8_0"})
    assert following.removed("stale") == files
    assert bench.store.files == {}
    assert "kv type (f16, now q8_0)" in caplog.text
    losses = following.cache.past(TALK).losses
    assert [loss.reason for loss in losses] == ["fingerprint changed"]
    await stop(following)


async def test_state_of_another_model_is_removed(bench):
    await bench.put_away(TALK)
    following = await reborn(bench, {**FINGERPRINT, "model file": "other"})
    assert following.removed("foreign") == 6
    assert bench.store.files == {}
    await stop(following)


def damaged(data: bytes, how: str, other: bytes) -> bytes | None:
    return {
        "damaged": data[:-1] + bytes([data[-1] ^ 1]),
        "truncated": data[:-1],
        "swapped": other,
        "missing": None,
    }[how]


@pytest.mark.parametrize("how", ["damaged", "truncated", "swapped", "missing"])
async def test_a_bad_file_is_counted_and_removed_with_what_builds_on_it_and_the_rest_is_used(bench, how):
    await bench.put_away(TALK, 16)
    following = await reborn(bench)
    segments = sorted(
        (e for e in following.disk._shelf.catalogue.entries if e.kind == "segment"), key=lambda e: e.begin
    )
    victim, other = segments[3], segments[0]
    data = damaged(bench.store.files[victim.key], how, bench.store.files[other.key])
    if data is None:
        del bench.store.files[victim.key]
    else:
        bench.store.files[victim.key] = data
    assert await following.ask(TALK) == 16
    assert following.removed(how) == 1
    await following.disk.flush()
    assert following.removed("unlinked") == 2
    assert victim.key not in bench.store.files
    assert "damaged" in [loss.reason for loss in following.cache.past(TALK).losses]
    await stop(following)


async def test_what_was_damaged_is_written_again_when_it_was_computed_again(bench):
    await bench.put_away(TALK)
    following = await reborn(bench)
    key = next(e.key for e in following.disk._shelf.catalogue.entries if e.kind == "checkpoint")
    bench.store.files[key] = bench.store.files[key][:-1] + b"?"
    assert await following.ask(TALK) == 0
    await following.put_away(TALK)
    third = await reborn(following)
    assert await third.ask(TALK) == 40
    await stop(third)


async def test_a_file_that_goes_for_want_of_room_is_not_taken_for_damage(bench):
    await bench.put_away(TALK)
    following = await reborn(bench)
    for entry in following.disk._shelf.catalogue.entries:
        if entry.kind == "checkpoint":
            following.disk._space.forget(entry, "room")
    assert await following.ask(TALK) == 0
    assert following.removed("missing") == 0
    await stop(following)


# ---- purging ---------------------------------------------------------------------------------------------


async def test_a_purge_leaves_nothing(bench):
    await bench.put_away(TALK)
    purged = await bench.disk.purge()
    assert purged.files == 6
    assert bench.store.files == {}
    bench.cache.purge()
    assert await bench.ask(TALK) == 0
    assert bench.removed("purged") == 6


class SlowToOpen(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.may_open = threading.Event()
        self.may_open.set()

    def open(self) -> Listing:
        listing = super().open()
        self.may_open.wait(5)
        return listing


async def test_a_purge_while_the_index_is_read_removes_what_it_lists():
    before = DiskBench(SlowToOpen())
    await before.start()
    await before.put_away(TALK, 12)
    await stop(before)
    bench = DiskBench(before.store)
    before.store.may_open.clear()
    bench.disk.start(FINGERPRINT, rolls_back=False)
    await asyncio.sleep(0.01)
    purging = asyncio.create_task(bench.disk.purge())
    await asyncio.sleep(0.01)
    count = len(before.store.files)
    before.store.may_open.set()
    assert (await purging).files == count > 0
    assert (len(before.store.files), bench.disk.stats().files) == (0, 0)
    await stop(bench)


async def test_a_purge_before_the_model_is_loaded_removes_everything(bench):
    await bench.put_away(TALK, 12)
    await stop(bench)
    count = len(bench.store.files)
    following = DiskBench(bench.store)
    assert (await following.disk.purge()).files == count > 0
    assert not bench.store.files
    await stop(following)


async def test_what_a_lost_index_knew_does_not_count_as_being_on_disk(bench):
    await bench.put_away(TALK, 12)
    assert all(resident.payload.on_disk for resident in bench.cache.residents(TALK))
    bench.store.files.clear()
    bench.store.headers.clear()
    bench.store.trouble = "index"
    bench.compute(conversation(2, 20))
    await bench.disk.flush()
    assert bench.disk.stats().state == "degraded"
    bench.store.trouble = None
    await until(lambda: bench.disk.stats().state == "ok")
    there = sum(resident.payload.on_disk for resident in bench.cache.residents(TALK))
    assert there <= len(bench.store.files)


async def test_what_is_being_written_during_a_purge_does_not_survive_it(bench):
    bench.compute(conversation(1, 40))
    await asyncio.sleep(0)
    bench.cache.purge()
    await bench.disk.purge()
    await bench.disk.flush()
    assert bench.store.files == {}
    bench.disk._shelf.catalogue.check_integrity()


async def test_a_purge_that_cannot_be_says_so(bench):
    await bench.put_away(TALK)
    bench.store.trouble = "read-only"
    with pytest.raises(StoreError):
        await bench.disk.purge()


async def test_after_a_purge_it_goes_on(bench):
    await bench.put_away(TALK)
    bench.cache.purge()
    await bench.disk.purge()
    await bench.put_away(TALK)
    assert await (await reborn(bench)).ask(TALK) == 40


def prompts(seed: int) -> list[Tokens]:
    """Conversations that share beginnings, in many ways."""
    random = np.random.default_rng(seed)
    base = [conversation(number, 48) for number in range(3)]
    return [
        np.concatenate(
            [base[random.integers(3)][: random.integers(1, 48)], conversation(100 + n, random.integers(1, 20))]
        )
        for n in range(12)
    ]


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_is_kept_given_up_and_brought_back_is_what_was_computed(seed):
    random = np.random.default_rng(seed)
    bench = DiskBench(MemoryStore(), ram=6000, size=40 * 4096, rolls_back=bool(seed % 2))
    await bench.start()
    for tokens in prompts(seed):
        await bench.ask(tokens)
        bench.compute(tokens, *([int(random.integers(1, len(tokens)))] if len(tokens) > 1 else []))
        bench.now += float(random.integers(10))
        bench.wall += float(random.integers(1000))
        if random.random() < 0.3:
            bench.cache.purge()
        if random.random() < 0.5:
            await bench.disk.flush()
        if random.random() < 0.2:
            bench = await reborn(bench, size=40 * 4096)
        bench.disk._shelf.catalogue.check_integrity()
        assert bench.disk.stats().used <= 40 * 4096
    await stop(bench)
