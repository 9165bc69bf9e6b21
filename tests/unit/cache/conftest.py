"""What several files of tests of the disk tier begin with."""

from __future__ import annotations

import pytest
from disk_bench import DiskBench, stop
from memory_store import MemoryStore


@pytest.fixture
async def bench():
    bench = DiskBench(MemoryStore())
    await bench.start()
    yield bench
    await stop(bench)
