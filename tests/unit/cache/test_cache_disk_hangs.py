"""Calls that block on a disk, and a disk that never answers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lcpd.daemon_thread import DaemonThread, Unanswered


async def test_calls_are_carried_out_one_after_the_other_and_give_what_they_return_or_raise() -> None:
    thread = DaemonThread("disk")
    done: list[int] = []

    def fail() -> None:
        raise OSError("bad")

    calls = [asyncio.ensure_future(thread.call(lambda n=n: done.append(n) or n)) for n in range(3)]
    assert await asyncio.gather(*calls) == [0, 1, 2]
    with pytest.raises(OSError, match="bad"):
        await thread.call(fail)
    assert await thread.stop(5.0, last=lambda: done.append(3))
    assert done == [0, 1, 2, 3]
    assert await thread.stop(5.0), "a second time does nothing"


async def test_a_call_whose_turn_has_not_come_can_be_called_off() -> None:
    thread, may_end = DaemonThread("disk"), threading.Event()
    first = asyncio.ensure_future(thread.call(may_end.wait))
    second = asyncio.ensure_future(thread.call(lambda: pytest.fail("it was called off")))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait({second})
    may_end.set()
    assert await first
    assert await thread.stop(5.0)


async def test_what_a_disk_leaves_undone_is_given_up() -> None:
    thread, may_end = DaemonThread("disk"), threading.Event()
    calls = [asyncio.ensure_future(thread.call(may_end.wait)) for _ in range(2)]
    await asyncio.sleep(0)
    assert not await thread.stop(0.01)
    for call in calls:
        with pytest.raises(Unanswered):
            await call
    may_end.set()


STOP_WITH_A_DISK_THAT_HANGS = """
import asyncio, threading
import numpy as np
from disk_bench import FINGERPRINT, DiskBench, conversation
from memory_store import MemoryStore
from lcpd.cache import tier

tier.ANSWER_WITHIN = 0.1
began = {"put": threading.Event(), "read": threading.Event()}

class Hanging(MemoryStore):
    hangs = False

    def put(self, *what):
        if self.hangs:
            began["put"].set()
            threading.Event().wait()
        super().put(*what)

    def read(self, key):
        if self.hangs:
            began["read"].set()
            threading.Event().wait()
        return super().read(key)

async def main():
    bench = DiskBench(Hanging())
    await bench.start()
    await bench.put_away(conversation(1, 40))
    bench.cache.purge()
    bench.store.hangs = True
    asking = asyncio.create_task(bench.ask(conversation(1, 40)))
    bench.compute(conversation(2, 80))
    for event in began.values():
        while not event.is_set():
            await asyncio.sleep(0.001)
    await bench.disk.finish(0.05)
    await asyncio.wait({asking})
    print(type(asking.exception()).__name__, flush=True)

asyncio.run(main())
"""


def test_a_planned_stop_ends_the_process_though_a_write_and_a_read_hang_for_ever() -> None:
    here = Path(__file__).parent
    ended = subprocess.run(
        [sys.executable, "-c", STOP_WITH_A_DISK_THAT_HANGS],
        cwd=here,
        env={"PYTHONPATH": str(here)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "Unanswered\n"), ended.stderr
    assert "does not answer: writing and reading was given up" in ended.stderr
    assert "never retrieved" not in ended.stderr
