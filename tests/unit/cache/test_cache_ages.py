"""How old what is evicted or used again is, as an onlooker is told."""

from __future__ import annotations

import numpy as np
from synthetic_kv import CHECKPOINT_BYTES, Bench, path

from lcpd.cache.history import TRIVIAL
from lcpd.cache.retention import Kind


class Onlooker:
    """Keeps what it is told."""

    def __init__(self, bench: Bench) -> None:
        self.evictions: list[tuple[Kind, float, float]] = []
        self.gaps: list[float] = []
        bench.cache.tell_ages(self)

    def evicted(self, kind: Kind, lifetime: float, idle: float) -> None:
        self.evictions.append((kind, lifetime, idle))

    def used_again(self, gap: float) -> None:
        self.gaps.append(gap)


def test_what_is_evicted_for_room_tells_how_long_it_was_kept_and_not_used() -> None:
    bench = Bench(CHECKPOINT_BYTES)
    onlooker = Onlooker(bench)
    bench.take_checkpoint(path(1, 2, 3))
    bench.now = 30.0
    bench.cache.touch(path(1, 2, 3, 4))
    bench.now = 100.0
    bench.take_checkpoint(path(7, 8))
    assert onlooker.evictions == [("checkpoint", 100.0, 70.0)]


def test_what_goes_for_another_reason_tells_nothing() -> None:
    bench = Bench(8192)
    onlooker = Onlooker(bench)
    bench.save(path(1, 2, 3))
    bench.cache.purge()
    assert onlooker.evictions == []
    assert bench.cache.figures().dropped == {("segment", "purged"): 1}


def test_a_path_that_is_used_again_tells_after_what_time() -> None:
    bench = Bench(8192)
    onlooker = Onlooker(bench)
    bench.cache.touch(path(*range(20)))
    assert onlooker.gaps == [], "nothing of it was known"
    bench.save(path(*range(20)))
    bench.now = 12.0
    bench.cache.touch(path(*range(21)))
    bench.now = 20.0
    bench.cache.touch(path(*range(21)))
    assert onlooker.gaps == [12.0, 8.0]


def test_a_path_that_shares_only_the_first_words_of_a_template_is_not_used_again() -> None:
    bench = Bench(8192)
    onlooker = Onlooker(bench)
    bench.save(path(*range(40)))
    bench.now = 12.0
    bench.cache.touch(path(*range(TRIVIAL - 1), 99, *range(40)))
    assert onlooker.gaps == []
    bench.now = 20.0
    bench.cache.touch(path(*range(TRIVIAL), 99))
    assert onlooker.gaps == [8.0]


def test_a_part_of_a_segment_is_as_old_as_the_whole_was() -> None:
    bench = Bench(4096, chunk=100)
    onlooker = Onlooker(bench)
    bench.save(np.arange(20, dtype=np.int32))
    bench.now = 50.0
    bench.save(np.array([*range(10), 99], np.int32))  # cuts the segment in two
    born: list[float] = []
    for _ in range(20):
        bench.now += 1000.0
        bench.save(np.full(40, 100 + bench.now, np.int32))
        born += [bench.now - lifetime for _, lifetime, _ in onlooker.evictions]
        onlooker.evictions.clear()
    assert born.count(0.0) == 2, "both parts"
    assert born.count(50.0) == 1
