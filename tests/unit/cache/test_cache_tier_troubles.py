"""The disk tier: a disk that fails costs nothing but its help, what is damaged is noticed, a purge leaves nothing."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest
from disk_bench import FINGERPRINT, TALK, DiskBench, conversation, reborn, stop, until
from memory_store import MemoryStore

from lcpd.cache.store import Listing, StoreError

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
    assert bench.skipped("gone") == 0
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
