"""The list of contents in the arena's front: found again with its bytes, believed only as far as it can be checked."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_kv import CHECKPOINT_BYTES, SEGMENT_BYTES, Bench, exported, path, state

from examples import examples
from lcpd.cache.arena import Arena, ArenaError, checksum
from lcpd.cache.cache import PromptCache
from lcpd.cache.index import (
    Entry,
    Index,
    IndexArea,
    IndexRefused,
    Restored,
    collect,
    decode,
    encode,
    front_size,
    paths,
    restore,
)
from lcpd.engine.protocol import Extent, Piece, pack

SIZE = 1 << 20
FRONT = front_size(SIZE)
HEAD = path(*range(100, 112))
FINGERPRINT = {"kv type": "f16"}


class Kept(Bench):
    """A cache over an arena with a front; `again` is what the next daemon makes of the memory."""

    arenas: ClassVar[list[Arena]] = []
    """Those of the test that runs."""

    def __init__(self, arena: Arena | None = None, chunk: int = 8, now: float = 0.0) -> None:
        self.now = now
        self.arena = arena or Arena(SIZE, FRONT)
        self.arenas.append(self.arena)
        self.area = IndexArea(self.arena.front)
        self.cache = PromptCache(self.arena, chunk, lambda: self.now)
        self.cache.configure(segment_bytes=SEGMENT_BYTES, checkpoint_bytes=CHECKPOINT_BYTES)

    def list_contents(self) -> None:
        entries, _ = collect(self.cache.trie, self.area.capacity - 100)
        self.area.write(encode(Index(FINGERPRINT, entries)))

    def again(self, chunk: int = 8) -> tuple[Kept, Restored]:
        arena = Arena.adopt(os.dup(self.arena.fd), SIZE, FRONT)
        after = Kept(arena, chunk, self.now)
        restored = restore(arena, decode(after.area.read()).entries, self.now)
        after.cache.install(restored.trie)
        after.check()
        return after, restored


def conversation(*rest: int) -> np.ndarray:
    return np.concatenate([HEAD, path(*rest)])


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture(autouse=True)
def _close_arenas(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    arenas: list[Arena] = []
    monkeypatch.setattr(Kept, "arenas", arenas)
    yield
    for arena in arenas:
        arena.close()


# ---- what is written is found --------------------------------------------------------------------------------


def test_the_next_daemon_finds_all_segments_and_checkpoints_with_their_bytes(kept: Kept) -> None:
    for number in range(5):
        kept.save(conversation(number, number + 1))
        kept.take_checkpoint(conversation(number, number + 1))
    kept.take_checkpoint(HEAD)
    kept.list_contents()
    after, restored = kept.again()
    assert restored.dropped == 0
    assert after.arena.used == kept.arena.used
    for number in range(5):
        tokens = conversation(number, number + 1)
        after.restore(tokens, 0, 14)
        piece = after.cache.checkpoint(tokens, 14)
        assert piece is not None
        assert bytes(after.arena.view(piece.extent)) == state(tokens)
    assert after.cache.checkpoints_on(conversation(9)) == [12]


def test_a_segment_that_reaches_beyond_forks_and_checkpoints_stays_in_one_piece(kept: Kept) -> None:
    kept = Kept(chunk=100)
    kept.save(HEAD)
    kept.take_checkpoint(HEAD[:5])
    kept.take_checkpoint(np.concatenate([HEAD[:7], path(1, 2)]))
    kept.list_contents()
    after, _ = kept.again()
    assert [(s.begin, s.end) for s in after.cache.segments(HEAD, 0, 12)] == [(0, 12)]
    assert after.cache.covered(np.concatenate([HEAD[:7], path(1, 2)])) == 7
    after.restore(HEAD, 0, 12)


def test_what_was_taken_over_can_be_added_to_cut_and_evicted(kept: Kept) -> None:
    kept.save(HEAD)
    kept.list_contents()
    after, _ = kept.again(chunk=1000)
    for number in range(70):
        after.now += 1
        after.save(conversation(number, *range(1000)))
        after.save(np.concatenate([HEAD[:7], path(number)]))
    after.check()
    assert after.cache.stats().dropped["segment"] > 0


def test_how_often_and_when_something_was_used_survives(kept: Kept) -> None:
    kept.save(HEAD)
    kept.now = 50.0
    kept.cache.touch(HEAD)
    kept.list_contents()
    kept.now = 80.0
    after, _ = kept.again()
    nodes = list(after.cache.trie.nodes())
    assert {(node.last_used, node.hits) for node in nodes} == {(50.0, 1)}


def test_an_empty_cache_is_a_list_too(kept: Kept) -> None:
    kept.list_contents()
    after, restored = kept.again()
    assert (restored.payloads, after.arena.used) == (0, 0)


def test_what_was_reserved_for_a_command_is_free_again(kept: Kept) -> None:
    kept.save(HEAD)
    used = kept.arena.used
    kept.cache.reserve_checkpoint()
    kept.list_contents()
    after, _ = kept.again()
    assert after.arena.used == used


def test_nothing_is_installed_over_what_is_in_use(kept: Kept) -> None:
    kept.save(HEAD)
    kept.list_contents()
    _, restored = kept.again()
    with pytest.raises(ValueError, match="in use already"):
        kept.cache.install(restored.trie)


# ---- room -------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_the_list_is_what_was_used_longest_ago(kept: Kept) -> None:
    for number in range(200):
        kept.now += 1
        kept.save(path(number, *range(50)))
    entries, left_out = collect(kept.cache.trie, 3000)
    assert 0 < len(entries) < 200
    assert left_out > 0
    assert len(encode(Index({}, entries))) <= 3000
    assert entries[0].last_used == 200.0
    kept.area.write(encode(Index(FINGERPRINT, entries)))
    after, restored = kept.again()
    assert restored.dropped == 0
    assert after.cache.covered(path(199, *range(50))) > 0
    assert after.cache.covered(path(0, *range(50))) == 0


@given(st.data())
@settings(max_examples=examples(30), deadline=None)
def test_the_list_is_never_longer_than_it_was_allowed_to_be(data: st.DataObject) -> None:
    bench = Kept(chunk=3)
    for _ in range(data.draw(st.integers(0, 8))):
        bench.now = data.draw(st.floats(0, 1e9))
        tokens = np.array(data.draw(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=12)), np.int32)
        bench.save(tokens)
        bench.take_checkpoint(tokens)
    capacity = data.draw(st.integers(0, 6000))
    entries, left_out = collect(bench.cache.trie, capacity)
    assert len(encode(Index({}, entries))) <= capacity + 16
    assert left_out or len(entries) == bench.cache.stats().nodes
    bench.arena.close()


def test_a_list_that_is_too_long_is_refused(kept: Kept) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        kept.area.write(bytes(kept.area.capacity + 1))


def test_the_front_is_no_part_of_any_extent(kept: Kept) -> None:
    while extent := kept.arena.allocate(1000):
        assert extent.offset >= FRONT
    assert kept.arena.used <= kept.arena.size == SIZE - FRONT


@pytest.mark.parametrize("size", [0, 1000, (1 << 20) - 1])
def test_small_arenas_have_no_list(size: int) -> None:
    assert front_size(size) == 0


@pytest.mark.parametrize("size", [1 << 20, 123456789, 1 << 33])
def test_the_front_takes_less_than_two_per_cent(size: int) -> None:
    assert 4096 < front_size(size) < size * 0.02
    assert front_size(size) % 64 == 0


# ---- death while writing, damage --------------------------------------------------------------------------------


def test_the_list_before_is_read_when_the_last_one_is_torn(kept: Kept) -> None:
    kept.area.write(b"first")
    kept.area.write(b"second")
    assert kept.area.read() == b"second"
    at = bytes(kept.arena.front).index(b"second")
    kept.arena.front[at] ^= 1
    assert kept.area.read() == b"first"
    kept.area.write(b"third")
    assert kept.area.read() == b"third"


def test_memory_without_a_list_says_so(kept: Kept) -> None:
    with pytest.raises(IndexRefused, match="there is none"):
        kept.area.read()


def test_a_list_of_another_version_is_not_read(kept: Kept) -> None:
    kept.area.write(b"list")
    struct.pack_into("<I", kept.arena.front, 8, 99)
    with pytest.raises(IndexRefused, match="version 99"):
        kept.area.read()


def test_after_a_damaged_superblock_old_lists_do_not_come_back(kept: Kept) -> None:
    for _ in range(5):
        kept.area.write(b"old")
    kept.arena.front[20] ^= 1
    with pytest.raises(IndexRefused, match="superblock"):
        kept.area.read()
    kept.area.write(b"new")
    assert (kept.area.read(), kept.area.generation) == (b"new", 1)


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_whatever_bytes_of_the_front_change_only_what_was_written_is_read(data: st.DataObject) -> None:
    front = bytearray(FRONT)
    area = IndexArea(memoryview(front))
    written = [bytes([number]) * (10 * number) for number in range(1, data.draw(st.integers(1, 4)) + 1)]
    for content in written:
        area.write(content)
    hot = st.one_of(st.integers(0, 63), st.integers(4096, 4250), st.integers(0, FRONT - 1))
    for at in data.draw(st.lists(hot, min_size=1, max_size=8)):
        front[at] = data.draw(st.integers(0, 255))
    try:
        assert area.read() in written[-2:]
    except IndexRefused:
        pass


@given(st.binary(max_size=300))
@settings(max_examples=examples(80), deadline=None)
def test_bytes_that_are_no_list_are_refused(data: bytes) -> None:
    try:
        assert isinstance(decode(data), Index)
    except IndexRefused:
        pass


@given(st.data())
@settings(max_examples=examples(80), deadline=None)
def test_a_list_with_changed_bytes_is_refused_or_names_pieces_that_fail_their_checksums(data: st.DataObject) -> None:
    """As if the checksum of the list itself had not caught it."""
    bench = Kept(chunk=5)
    for number in range(3):
        bench.save(conversation(number, 7))
        bench.take_checkpoint(conversation(number, 7))
    original, _ = collect(bench.cache.trie, 1 << 20)
    content = bytearray(encode(Index(FINGERPRINT, original)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        entries = decode(bytes(content)).entries
    except IndexRefused:
        return
    arena = Arena.adopt(os.dup(bench.arena.fd), SIZE, FRONT)
    after = Kept(arena)
    after.cache.install(restore(arena, entries, 0.0).trie)
    after.check()
    stored = {
        (p.extent, p.checksum) for e in original for parts in (e.segment, e.checkpoint) for p in (parts or {}).values()
    }
    for payload in after.cache.payloads():
        intact = checksum(arena.view(payload.piece.extent)) == payload.piece.checksum
        assert not intact or (payload.piece.extent, payload.piece.checksum) in stored
    bench.arena.close()
    arena.close()


EXTENTS = st.builds(
    Extent,
    st.one_of(st.integers(-(2**40), 2**40), st.integers(FRONT // 64, FRONT // 64 + 12).map(lambda n: n * 64)),
    st.one_of(st.integers(-64, 400), st.integers(-(2**62), 2**62)),
)
PIECES = st.dictionaries(
    st.sampled_from(["target", "draft", ""]), st.builds(Piece, EXTENTS, st.sampled_from([b"x" * 16, b""])), max_size=2
)
ITEMS = st.lists(st.integers(0, 2), max_size=3).map(lambda items: pack(np.array(items, np.int32)))
ENTRIES = st.builds(
    Entry,
    parent=st.integers(-3, 8),
    edge=st.one_of(ITEMS, st.binary(max_size=5)),
    beyond=st.one_of(ITEMS, st.binary(max_size=5)),
    segment=st.none() | PIECES,
    checkpoint=st.none() | PIECES,
    last_used=st.floats(),
    hits=st.integers(-5, 5),
)


@given(st.lists(ENTRIES, max_size=12))
@settings(max_examples=examples(80), deadline=None)
def test_no_list_makes_the_start_fail_or_the_cache_contradict_itself(entries: list[Entry]) -> None:
    bench = Kept(now=10.0)
    restored = restore(bench.arena, entries, bench.now)
    bench.cache.install(restored.trie)
    bench.check()
    assert restored.payloads == len(bench.cache.payloads())
    named = sum((entry.segment is not None) + (entry.checkpoint is not None) for entry in entries)
    assert restored.payloads + restored.dropped == named
    assert all(0 <= node.last_used <= bench.now for node in bench.cache.trie.nodes() if node.last_used > 0)
    bench.arena.close()


def piece_at(offset: int) -> dict[str, Piece]:
    return {"target": Piece(Extent(FRONT + offset, 100), b"x" * 16)}


def entry(parent: int, *items: int, segment: int | None = None, beyond: tuple[int, ...] = ()) -> Entry:
    pieces = None if segment is None else piece_at(segment)
    return Entry(parent, pack(path(*items)), pack(path(*beyond)), pieces, None, 0.0, 0)


@pytest.mark.parametrize(
    ("entries", "payloads"),
    [
        pytest.param([entry(-1, 1, segment=0), entry(-1, 2, segment=64)], 1, id="extents that overlap"),
        pytest.param([entry(-1, 1), entry(0, 2, segment=0)], 0, id="a segment that follows on nothing"),
        pytest.param([entry(1, 1, segment=0), entry(-1, 2)], 0, id="a parent that comes later"),
        pytest.param([entry(-1, 1, segment=0), entry(-1, 1, segment=128)], 1, id="two segments for one path"),
        pytest.param([entry(-1, 1, segment=-128)], 0, id="an extent in the front"),
        pytest.param([entry(-1, 1, segment=SIZE - FRONT - 64)], 0, id="an extent that reaches out of the arena"),
        pytest.param([entry(-1, 1, segment=32)], 0, id="an extent that could not have been handed out"),
        pytest.param(
            [entry(-1, 1, segment=0, beyond=(2, 3)), entry(0, 2, segment=128)], 1, id="a segment within another one"
        ),
    ],
)
def test_what_contradicts_the_rest_is_dropped(entries: list[Entry], payloads: int, kept: Kept) -> None:
    restored = restore(kept.arena, entries, 0.0)
    assert restored.payloads == payloads
    kept.cache.install(restored.trie)
    kept.check()


def test_the_paths_of_a_list_are_told_without_its_bytes_those_used_last_first(kept: Kept) -> None:
    for number in range(3):
        kept.now += 1
        kept.save(conversation(number, 5))
    entries, _ = collect(kept.cache.trie, 1 << 20)
    assert [tokens.tolist() for tokens in paths(entries, 2)] == [conversation(n, 5).tolist() for n in (2, 1)]
    assert len(paths(entries, 9)) == 3


@given(st.lists(ENTRIES, max_size=12))
@settings(max_examples=examples(40), deadline=None)
def test_no_list_makes_telling_its_paths_fail(entries: list[Entry]) -> None:
    assert len(paths(entries, 5)) <= 5


# ---- lists that are older than the bytes ------------------------------------------------------------------------


def test_bytes_that_were_replaced_since_the_list_was_written_fail_their_checksum(kept: Kept) -> None:
    kept.save(HEAD)
    kept.list_contents()
    pin = kept.cache.pin(HEAD, 12)
    kept.cache.discard(pin)
    kept.cache.unpin(pin)
    assert kept.arena.used == 0
    kept.save(path(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12))
    after, restored = kept.again()
    assert restored.payloads == 2
    for payload in after.cache.payloads():
        assert checksum(after.arena.view(payload.piece.extent)) != payload.piece.checksum
    after.cache.condemn(after.cache.payloads()[0])
    after.check()
    assert (after.cache.covered(HEAD), after.arena.used) == (0, 0)
    assert after.cache.stats().dropped == {"corrupt": 2}


def test_condemning_a_checkpoint_leaves_the_segments(kept: Kept) -> None:
    kept.save(HEAD)
    kept.take_checkpoint(HEAD)
    checkpoint = next(node.checkpoint for node in kept.cache.trie.nodes() if node.checkpoint)
    kept.cache.condemn(checkpoint)
    kept.cache.condemn(checkpoint)
    assert kept.cache.covered(HEAD) == 12
    assert kept.cache.checkpoints_on(HEAD) == []
    kept.check()


# ---- adopting the memory ----------------------------------------------------------------------------------------


def test_an_adopted_arena_has_the_bytes_of_the_one_before(kept: Kept) -> None:
    kept.save(HEAD)
    extent = kept.cache.segments(HEAD, 0, 8)[0].piece.extent
    fd = os.dup(kept.arena.fd)
    kept.arena.close()
    arena = Arena.adopt(fd, SIZE, FRONT)
    assert arena.used == 0
    assert arena.claim(extent)
    assert bytes(arena.view(extent)) == exported(HEAD, 0, 8)
    assert not os.get_inheritable(fd)
    arena.close()


def _memfd(size: int) -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    return fd


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(lambda: os.dup(Arena(2 * SIZE).fd), f"it has {2 * SIZE} bytes, cache.ram is {SIZE}", id="size"),
        pytest.param(lambda: _memfd(SIZE), "seals", id="not sealed"),
        pytest.param(lambda: os.open("/dev/null", os.O_RDWR), "cannot be used again", id="no memory"),
    ],
)
def test_what_is_no_arena_of_the_right_size_is_refused_and_closed(make, reason: str) -> None:  # type: ignore[no-untyped-def]
    fd = make()
    with pytest.raises(ArenaError, match=reason):
        Arena.adopt(fd, SIZE, FRONT)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
