"""What happens to the disk tier while a file is being read, and what becomes of the file then."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import BinaryIO

import numpy as np
import pytest
from disk_bench import DiskBench, conversation
from memory_store import MemoryStore

TALK = conversation(1, 40)
PROMPT = np.append(TALK, [1, 2]).astype(np.int32)


class SlowStore(MemoryStore):
    """Reading waits where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()
        self.begun = threading.Event()

    def read(self, key: str) -> BinaryIO:
        file = super().read(key)
        self.begun.set()
        self.goes_on.wait(30)
        return file


async def until(event: threading.Event) -> None:
    async with asyncio.timeout(10):
        while not event.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@pytest.fixture
async def store() -> SlowStore:
    """It holds a conversation that an earlier daemon has put away."""
    store = SlowStore()
    earlier = DiskBench(store)
    await earlier.start()
    await earlier.put_away(TALK, 12)
    await earlier.disk.finish(1.0)
    return store


@pytest.fixture
async def bench(store: SlowStore) -> AsyncIterator[DiskBench]:
    bench = DiskBench(store)
    await bench.start()
    yield bench
    store.goes_on.set()
    await bench.disk.finish(1.0)


async def test_what_is_purged_while_it_is_read_does_not_come_back(bench: DiskBench, store: SlowStore) -> None:
    asking = asyncio.create_task(bench.disk.promote(PROMPT))
    await until(store.begun)
    bench.cache.purge()
    await bench.disk.purge()
    store.goes_on.set()
    assert await asking == 0
    assert bench.cache.stats().used == 0
    await bench.disk.flush()
    assert store.files == {}


async def test_a_bad_file_that_was_being_read_while_the_index_was_read_again_is_found_again(
    bench: DiskBench, store: SlowStore
) -> None:
    for key, data in store.files.items():
        store.files[key] = data[:-1] + bytes([data[-1] ^ 1])
    asking = asyncio.create_task(bench.disk.promote(PROMPT))
    await until(store.begun)
    store.trouble = "i/o"
    bench.compute(conversation(9, 20))
    await bench.disk.flush()
    assert bench.disk.stats().state == "degraded"
    store.trouble = None
    async with asyncio.timeout(10):
        while bench.disk.stats().state != "ok":  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    store.goes_on.set()
    assert await asking == 0
    assert bench.removed("damaged") == 1
    bench.disk._shelf.catalogue.check_integrity()
