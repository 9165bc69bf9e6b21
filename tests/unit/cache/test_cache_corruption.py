"""Files on a real disk are changed in every way: each change is noticed, counted by its reason, and costs no more than
computing again.

LCPD_CORRUPTIONS=2000 is the long mode.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
from disk_bench import FINGERPRINT, DiskBench, conversation

from lcpd.cache.catalogue import Entry
from lcpd.cache.record import Record, decode, encode
from lcpd.cache.store import DiskStore

TRIALS = int(os.environ.get("LCPD_CORRUPTIONS", "30"))
HEAD = conversation(0, 24)
TALKS = [np.concatenate([HEAD, conversation(seed, 24)]) for seed in range(1, 5)]
KINDS = ("bit flip", "truncation", "growth", "swap", "fingerprint", "deletion", "zeros")
EXPECTED = {
    "bit flip": ("damaged",),
    "truncation": ("truncated",),
    "growth": ("truncated",),
    "swap": ("swapped",),
    "fingerprint": ("fingerprint",),
    "deletion": ("missing",),
    "zeros": ("damaged",),
}


class Vandal:
    """Changes files behind the store's back."""

    def __init__(self, folder: Path, store: DiskStore, seed: int) -> None:
        self._folder = folder
        self._store = store
        self._random = np.random.default_rng(seed)

    def path(self, entry: Entry) -> Path:
        return self._folder / self._store._names[entry.key]

    def choose(self, entries: list[Entry]) -> Entry:
        return entries[self._random.integers(len(entries))]

    def strike(self, kind: str, victim: Entry, entries: list[Entry]) -> None:
        path = self.path(victim)
        data = bytearray(path.read_bytes())
        at = int(self._random.integers(len(data)))
        if kind == "bit flip":
            data[at] ^= 1 << int(self._random.integers(8))
        elif kind == "truncation":
            del data[at:]
        elif kind == "growth":
            data += bytes(1 + at)
        elif kind == "zeros":
            data[:] = bytes(len(data))
        elif kind == "swap":
            other = self.choose([entry for entry in entries if entry is not victim])
            data = bytearray(self.path(other).read_bytes())
        elif kind == "fingerprint":
            found = decode(bytes(data))
            record: Record = msgspec.structs.replace(found.record, fingerprint={**FINGERPRINT, "kv type": "q8_0"})
            data = bytearray(encode(record, found.state)) + data[found.length :]
        if kind == "deletion":
            path.unlink()
        else:
            path.write_bytes(data)


async def test_every_corruption_is_noticed_counted_and_computed_again(tmp_path):
    store = DiskStore(tmp_path / "prompts")
    bench = DiskBench(store, ram=1 << 18)
    await bench.start()
    for talk in TALKS:
        await bench.put_away(talk, 24)
    vandal = Vandal(tmp_path / "prompts", store, seed=1)
    struck: Counter[str] = Counter()
    for trial in range(TRIALS):
        kind = KINDS[trial % len(KINDS)]
        talk = TALKS[trial % len(TALKS)]
        entries = bench.disk._shelf.catalogue.along(talk)
        victim = vandal.choose(entries)
        vandal.strike(kind, victim, bench.disk._shelf.catalogue.entries)
        bench.cache.purge()
        before = {reason: bench.removed(reason) for reason in EXPECTED[kind]}
        await bench.ask(talk)  # checks the bytes of all that came back
        needed = victim.kind == "segment" or victim.end == len(talk)
        noticed = any(bench.removed(reason) == count + 1 for reason, count in before.items())
        if not needed and not noticed:  # a checkpoint that this prompt can do without: the next one needs it
            await bench.ask(HEAD)
            noticed = any(bench.removed(reason) == count + 1 for reason, count in before.items())
        assert noticed, (kind, victim.kind, victim.begin, before, bench.disk.stats().counts.removed)
        struck[kind] += 1
        bench.compute(talk, 24)  # again
        await bench.disk.flush()
        bench.disk._shelf.catalogue.check_integrity()
        bench.cache.purge()
        assert await bench.ask(talk) == len(talk)
    assert sum(struck.values()) == TRIALS
    await bench.disk.finish(5.0)
    again = DiskBench(DiskStore(tmp_path / "prompts"), ram=1 << 18)
    await again.start()
    assert not +Counter(again.disk.stats().counts.removed)
    await again.disk.finish(5.0)


async def test_files_that_were_changed_while_no_daemon_ran_are_counted_at_the_start(tmp_path):
    folder = tmp_path / "prompts"
    bench = DiskBench(DiskStore(folder), ram=1 << 18)
    await bench.start()
    for talk in TALKS:
        await bench.put_away(talk, 24)
    files = bench.disk.stats().files
    await bench.disk.finish(5.0)
    blobs = sorted(folder.glob("??/*.blob"), key=lambda path: path.stat().st_mtime)
    blobs[-1].write_bytes(blobs[-1].read_bytes()[:-1])
    blobs[-2].unlink()
    (folder / "ab").mkdir(exist_ok=True)
    (folder / "ab" / ("0" * 30 + ".blob")).write_bytes(b"?")
    again = DiskBench(DiskStore(folder), ram=1 << 18)
    await again.start()
    counts = again.disk.stats().counts.removed
    assert (counts["truncated"], counts["missing"], counts["orphan"]) == (1, 1, 1)
    assert again.disk.stats().files == files - 2
    await again.disk.finish(5.0)
