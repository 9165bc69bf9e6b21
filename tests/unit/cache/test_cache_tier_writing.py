"""The disk tier: when something is written, what is not, and which limits hold."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from disk_bench import TALK, DiskBench, conversation, reborn, stop, until
from memory_store import MemoryStore
from synthetic_kv import path

from lcpd.cache.store import DiskStore

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


async def test_a_conversation_that_ram_gave_up_before_its_turn_is_counted_once(bench):
    bench.compute(TALK[:30], 12, 20)
    bench.cache.purge()
    await bench.disk.flush()
    assert bench.store.puts == 0
    assert bench.skipped("gone") == 1


async def test_ends_that_were_overtaken_do_not_count_as_given_up(bench):
    for end in (10, 12, 14, 16, 18):
        bench.compute(TALK[:end])
    await bench.disk.flush()
    assert bench.skipped("gone") == 0


async def test_a_checkpoint_that_comes_before_the_segments_below_it_waits_for_them_and_is_not_lost(bench):
    bench.take_checkpoint(TALK)
    await bench.disk.flush()
    assert (bench.store.puts, bench.skipped("gone")) == (0, 0)
    bench.save(TALK)
    await bench.disk.flush()
    assert (bench.store.puts, bench.skipped("gone")) == (6, 0)


async def test_what_is_cut_in_two_while_its_path_is_written_is_written_as_it_is_then(bench, monkeypatch):
    admits, cuts = bench.disk._writer._admits, [np.concatenate([TALK[:at], path(1, 2, 3)]) for at in (20, 30)]

    async def cut_and_admit(length, parent):
        if cuts:
            bench.compute(cuts.pop())
        return await admits(length, parent)

    monkeypatch.setattr(bench.disk._writer, "_admits", cut_and_admit)
    await bench.put_away(TALK)
    assert not cuts
    assert bench.skipped("gone") == 0
    following = await reborn(bench)
    assert await following.ask(TALK) == 40
    await stop(following)


async def test_a_planned_stop_writes_what_waits():
    bench = DiskBench(MemoryStore())
    await bench.start()
    bench.compute(TALK[:30])
    await bench.disk.finish(5.0)
    assert bench.store.puts == 5


async def test_a_planned_stop_closes_everything_in_the_folder(tmp_path):
    bench = DiskBench(DiskStore(tmp_path))
    await bench.start()
    await bench.put_away(TALK)
    await bench.disk.finish(5.0)
    open_files = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not [path for path in open_files if path.is_relative_to(tmp_path)]
    assert not (tmp_path / "cache.db-wal").exists()


async def test_a_planned_stop_tells_of_what_could_not_be_written(bench, caplog):
    bench.compute(TALK[:30])
    bench.store.trouble = "full"
    await bench.disk.finish(5.0)
    assert "1 conversations were not written to disk: the memory (cache.dir) cannot be used" in caplog.text


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


async def test_nothing_goes_for_what_cannot_fit_nor_what_is_needed_for_it():
    bench = DiskBench(MemoryStore(), size=12 * 4096)
    await bench.start()
    await bench.put_away(TALK)
    space, entries = bench.disk._space, bench.disk._shelf.catalogue.entries
    economics = bench.cache.economics
    assert not await space.make_room(13 * 4096, list, bench.wall, economics)
    assert not await space.make_room(8 * 4096, lambda: entries, bench.wall, economics)
    assert bench.disk.stats().files == 6
    assert await space.make_room(8 * 4096, list, bench.wall, economics)
    assert bench.removed("room") == 2
    await stop(bench)


async def test_more_goes_where_the_index_has_grown_by_removing():
    class Logging(MemoryStore):
        log = 0

        def remove(self, keys: Sequence[str]) -> None:
            super().remove(keys)
            self.log = 4096

        def overhead(self) -> int:
            return self.log

    bench = DiskBench(Logging(), size=12 * 4096)
    await bench.start()
    await bench.put_away(TALK)
    assert bench.disk.stats().files == 6
    assert await bench.disk._space.make_room(8 * 4096, list, bench.wall, bench.cache.economics)
    assert (bench.removed("room"), bench.disk.stats().used) == (3, 4 * 4096)
    await stop(bench)


async def test_what_was_written_since_the_order_was_found_goes_too_where_that_is_needed():
    bench = DiskBench(MemoryStore(), size=12 * 4096)
    await bench.start()
    await bench.put_away(TALK)
    space, economics = bench.disk._space, bench.cache.economics
    assert await space.make_room(7 * 4096, list, bench.wall, economics)
    await bench.put_away(conversation(2, 40))
    assert await space.make_room(12 * 4096, list, bench.wall, economics)
    assert bench.disk.stats().files == 0
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
