"""The cache as it is shown: where what is known lies, in stretches without forks."""

from __future__ import annotations

import numpy as np
from synthetic_kv import Bench, path

from lcpd.cache.tree import Branch

HEAD = path(*range(100, 112))
ROOMY = 1 << 16


def conversation(*rest: int) -> np.ndarray:
    return np.concatenate([HEAD, path(*rest)])


def shape(branches: tuple[Branch, ...]) -> list[tuple[int | None, int, int, int, int]]:
    """Parent, begin, tokens, of these in RAM, in a slot."""
    return [(one.parent, one.begin, one.tokens, one.ram, one.vram) for one in branches]


def test_nothing_is_shown_of_an_empty_cache() -> None:
    assert Bench(ROOMY).cache.tree().branches == ()


def test_a_head_with_two_conversations_is_three_branches() -> None:
    bench = Bench(ROOMY)
    bench.save(conversation(1, 2))
    bench.now = 5.0
    bench.save(conversation(3))
    bench.take_checkpoint(HEAD)
    bench.cache.touch(conversation(3))
    bench.now = 7.0
    tree = bench.cache.tree()
    assert shape(tree.branches) == [(None, 0, 12, 12, 0), (0, 12, 1, 1, 0), (0, 12, 2, 2, 0)]
    head, latest, _ = tree.branches
    assert (head.checkpoints, head.hits, head.age, head.depth) == ((12,), 1, 2.0, 0)
    assert (latest.starts, latest.depth, latest.held) == ((3,), 1, False)
    stats = bench.cache.stats()
    assert sum(one.bytes for one in tree.branches) == stats.segment_bytes + stats.checkpoint_bytes


def test_what_slots_hold_is_shown_once_in_ram_or_not() -> None:
    bench = Bench(ROOMY)
    bench.save(conversation(1, 2))
    slots = [conversation(1), conversation(7, 8, 9), conversation(7, 8, 5)]
    assert sorted(shape(bench.cache.tree(slots).branches)[1:], key=lambda row: row[1:]) == [
        (0, 12, 2, 0, 2),
        (1, 14, 1, 0, 1),
        (1, 14, 1, 0, 1),
    ]


def test_a_path_that_is_known_only_by_its_checkpoint_is_not_in_ram() -> None:
    bench = Bench(ROOMY)
    bench.save(HEAD)
    bench.take_checkpoint(conversation(1, 2, 3))
    assert shape(bench.cache.tree().branches) == [(None, 0, 15, 12, 0)]


def test_of_too_many_branches_those_that_hold_the_least_are_omitted() -> None:
    bench = Bench(ROOMY)
    for number in range(10):
        bench.now = number
        bench.save(conversation(*[number] * (number + 1)))
    tree = bench.cache.tree(limit=4)
    assert [one.tokens for one in tree.branches] == [12, 10, 9, 8]
    assert tree.omitted == 7


def test_a_conversation_that_forks_a_thousand_times_is_shown() -> None:
    bench = Bench(1 << 20)
    tokens = HEAD
    for turn in range(1000):
        bench.take_checkpoint(np.concatenate([tokens, path(1, turn)]))
        tokens = np.concatenate([tokens, path(2, turn)])
    assert len(bench.cache.tree(limit=5000).branches) > 1500


def test_what_is_held_is_marked() -> None:
    bench = Bench(ROOMY)
    bench.save(conversation(1, 2))
    bench.save(conversation(3))
    bench.cache.hold(HEAD)
    assert [one.held for one in bench.cache.tree().branches] == [True, False, False]
