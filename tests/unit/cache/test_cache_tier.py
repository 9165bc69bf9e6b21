"""The disk tier: what is kept comes back as it was, and not more than is needed."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from disk_bench import FINGERPRINT, TALK, DiskBench, conversation, reborn, stop
from memory_store import MemoryStore
from synthetic_kv import path

from lcpd.engine.protocol import Tokens

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


# ---- all of it together ----------------------------------------------------------------------------------


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
