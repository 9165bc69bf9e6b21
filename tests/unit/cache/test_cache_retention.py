"""What is worth keeping, and in which order payloads are given up."""

from __future__ import annotations

from dataclasses import replace

from synthetic_kv import CHECKPOINT_BYTES, SEGMENT_BYTES, Bench, path

from lcpd.cache.retention import Candidate, Economics, worth

MIB = 1 << 20
SEGMENT = Candidate("segment", bytes=68 * MIB, tokens=2048, last_used=1000.0, hits=3, branches=1)
CHECKPOINT = Candidate("checkpoint", bytes=150 * MIB, tokens=8192, last_used=1000.0, hits=3, branches=1)


def value(candidate: Candidate, now: float = 2000.0) -> float:
    return worth(candidate, now, Economics())


def test_what_was_used_lately_is_worth_more() -> None:
    assert value(replace(SEGMENT, last_used=1500.0)) > value(SEGMENT)


def test_worth_falls_off_as_one_over_the_time_since_the_last_use() -> None:
    assert value(SEGMENT, 1000.0 + 60.0) == value(SEGMENT, 1000.0) / 2
    assert value(SEGMENT, 1000.0 + 59 * 60.0) == value(SEGMENT, 1000.0) / 60


def test_what_was_used_often_is_worth_more() -> None:
    assert value(replace(SEGMENT, hits=30)) > value(SEGMENT)


def test_a_head_from_which_many_paths_go_on_is_worth_more() -> None:
    assert value(replace(SEGMENT, branches=10)) > value(SEGMENT)


def test_a_checkpoint_close_to_the_one_before_is_worth_less_than_the_segments_of_its_conversation() -> None:
    assert value(replace(CHECKPOINT, tokens=300)) < value(SEGMENT)


def test_a_checkpoint_that_others_outrun_is_worth_less() -> None:
    assert value(replace(CHECKPOINT, outrun=True)) < value(CHECKPOINT)


def test_a_checkpoint_where_paths_part_keeps_its_worth_when_others_lie_beyond() -> None:
    fork = replace(CHECKPOINT, branches=2)
    assert value(replace(fork, outrun=True)) == value(fork)


def test_what_is_on_disk_too_is_worth_no_more_than_reading_it() -> None:
    assert value(replace(SEGMENT, on_disk=True)) < value(SEGMENT)
    quick = replace(SEGMENT, tokens=10)
    assert value(replace(quick, on_disk=True)) == value(quick)


def test_worth_is_per_byte() -> None:
    assert value(replace(SEGMENT, bytes=SEGMENT.bytes * 2)) == value(SEGMENT) / 2


def test_a_clock_that_went_back_does_not_make_anything_worth_more_than_now() -> None:
    assert value(SEGMENT, 0.0) == value(SEGMENT, 1000.0)


def test_the_path_that_was_used_longest_ago_goes_first() -> None:
    bench = Bench(2048, chunk=100)
    for first in range(4):  # 448 bytes each
        bench.now += 100
        bench.save(path(first, *range(18)))
    bench.now += 100
    bench.cache.touch(path(0, *range(18)))
    bench.save(path(9, *range(18)))
    covered = [bench.cache.covered(path(first, *range(18))) for first in (0, 1, 2, 3, 9)]
    assert covered == [19, 0, 19, 19, 19]
    bench.check()


def test_the_end_of_a_conversation_goes_before_its_begin() -> None:
    bench = Bench(1024)
    bench.save(path(*range(24)))  # three segments of 8 tokens, 256 bytes each
    bench.now += 10_000
    bench.save(path(*range(50, 66)))
    assert bench.cache.covered(path(*range(24))) == 16
    assert bench.cache.covered(path(*range(50, 66))) == 16


def test_checkpoints_are_thinned_where_others_lie_close() -> None:
    bench = Bench(4 * CHECKPOINT_BYTES)
    tokens = path(*range(2000))
    for end in (1000, 1010, 1900, 2000):
        assert bench.take_checkpoint(tokens[:end])
    assert bench.cache.checkpoints_on(tokens) == [1000, 1010, 1900, 2000]
    assert bench.take_checkpoint(path(7, 7))
    assert bench.cache.checkpoints_on(tokens) == [1000, 1900, 2000]


def test_a_checkpoint_whose_neighbour_was_dropped_is_worth_more_than_before() -> None:
    bench = Bench(4 * CHECKPOINT_BYTES)
    tokens = path(*range(3000))
    for end in (300, 500, 750, 3000):
        assert bench.take_checkpoint(tokens[:end])
    bench.cache.configure(segment_bytes=SEGMENT_BYTES, checkpoint_bytes=2 * CHECKPOINT_BYTES)
    assert bench.take_checkpoint(path(7, 7))  # 500 goes first; from then on 750 stands for 450 tokens instead of 250
    assert bench.cache.checkpoints_on(tokens) == [750, 3000]


def test_segments_that_no_checkpoint_needs_any_more_go_first() -> None:
    bench = Bench(4 * CHECKPOINT_BYTES)
    tokens = path(*range(20))
    bench.save(tokens)  # 3 segments, 8 + 8 + 4 tokens
    assert bench.take_checkpoint(tokens[:8])
    bench.now += 10_000
    assert bench.take_checkpoint(path(7, 7))
    assert bench.cache.checkpoints_on(tokens) == [8]
    assert bench.cache.covered(tokens) == 8
    bench.check()


def test_a_segment_stays_as_long_as_the_checkpoint_at_its_end() -> None:
    bench = Bench(4 * CHECKPOINT_BYTES)
    tokens = path(*range(8))
    bench.save(tokens)
    assert bench.take_checkpoint(tokens)
    for other in range(20, 30):
        bench.now += 100
        assert bench.take_checkpoint(path(other, *range(200)))
        assert bench.cache.checkpoints_on(tokens) == [] or bench.cache.covered(tokens) == 8
    bench.check()
