"""The arena: memory of fixed size that two processes share, and nobody can take from under the other."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xxhash

from lcpd.cache.arena import Arena, ArenaError, ArenaView, checksum
from lcpd.cache.extents import ExtentError
from lcpd.engine.protocol import Extent

SIZE = 1 << 20


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(SIZE)
    yield arena
    arena.close()


def allocate(arena: Arena, size: int) -> Extent:
    extent = arena.allocate(size)
    assert extent is not None
    return extent


def test_the_worker_sees_what_the_daemon_wrote_and_the_other_way_round(arena: Arena) -> None:
    extent = allocate(arena, 1000)
    view, array = arena.view(extent), ArenaView(arena.fd, SIZE).array(extent)
    view[:] = bytes(range(250)) * 4
    assert array.tobytes() == bytes(range(250)) * 4
    array[:] = 7
    assert bytes(view) == b"\7" * 1000


def test_the_worker_needs_the_descriptor_only_for_mapping(arena: Arena) -> None:
    fd = os.dup(arena.fd)
    theirs = ArenaView(fd, SIZE)
    os.close(fd)
    extent = allocate(arena, 3)
    arena.view(extent)[:] = b"abc"
    assert theirs.array(extent).tobytes() == b"abc"


def test_no_more_than_its_size_is_handed_out(arena: Arena) -> None:
    assert arena.allocate(SIZE + 1) is None
    extents = []
    while extent := arena.allocate(100_000):
        extents.append(extent)
        assert arena.used <= SIZE
    assert len(extents) == 10
    arena.free(extents[3])
    assert arena.allocate(100_000) == extents[3]


def test_used_counts_what_alignment_costs(arena: Arena) -> None:
    allocate(arena, 1)
    allocate(arena, 65)
    assert arena.used == 64 + 128


def test_shrinking_gives_the_rest_back_and_keeps_the_front(arena: Arena) -> None:
    extent = allocate(arena, SIZE)
    arena.view(extent)[:4] = b"kept"
    extent = arena.shrink(extent, 4)
    assert bytes(arena.view(extent)) == b"kept"
    assert arena.used == 64
    assert arena.largest_free == SIZE - 64
    assert arena.fragmentation == 0


def test_an_extent_that_was_freed_cannot_be_viewed_or_freed_again(arena: Arena) -> None:
    extent = allocate(arena, 10)
    arena.free(extent)
    with pytest.raises(ExtentError):
        arena.view(extent)
    with pytest.raises(ExtentError):
        arena.free(extent)


def test_the_front_part_of_an_extent_can_be_viewed(arena: Arena) -> None:
    extent = allocate(arena, 100)
    arena.view(extent)[:5] = b"piece"
    assert bytes(arena.view(Extent(extent.offset, 5))) == b"piece"


@pytest.mark.parametrize("extent", [Extent(-64, 64), Extent(0, -1), Extent(0, SIZE + 1), Extent(SIZE, 1)])
def test_the_worker_refuses_extents_outside_of_the_arena(arena: Arena, extent: Extent) -> None:
    with pytest.raises(ArenaError, match="not within"):
        ArenaView(arena.fd, SIZE).array(extent)


@pytest.mark.parametrize("size", [SIZE // 2, SIZE + 4096])
def test_nobody_can_resize_it(arena: Arena, size: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fd, size)


def test_a_worker_that_was_told_another_size_says_so_instead_of_crashing_later(arena: Arena) -> None:
    with pytest.raises(ArenaError, match=f"the descriptor has {SIZE}"):
        ArenaView(arena.fd, 2 * SIZE)


def test_programs_that_the_daemon_starts_do_not_inherit_it(arena: Arena) -> None:
    assert not os.get_inheritable(arena.fd)


def test_memory_is_taken_only_when_it_is_touched() -> None:
    arena = Arena(1 << 30)
    assert os.fstat(arena.fd).st_blocks == 0
    arena.view(allocate(arena, 4096))[:] = b"\1" * 4096
    assert 0 < os.fstat(arena.fd).st_blocks * 512 <= 1 << 25  # one page, perhaps a huge one
    arena.close()


def test_closing_it_while_views_are_left_is_possible_and_they_stay_valid() -> None:
    arena = Arena(SIZE)
    view = arena.view(allocate(arena, 3))
    array = ArenaView(arena.fd, SIZE).array(Extent(0, 3))
    arena.close()
    view[:] = b"abc"
    assert array.tobytes() == b"abc"
    with pytest.raises(ExtentError):
        arena.view(Extent(0, 3))


def test_closing_it_gives_descriptors_and_mapping_back() -> None:
    def held() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), Path("/proc/self/maps").read_text().count("lcpd-arena")

    gc.collect()  # what other tests left
    before = held()
    arena = Arena(SIZE)
    theirs = ArenaView(arena.fd, SIZE)
    assert held()[1] > before[1]
    arena.close()
    arena.close()
    del theirs
    assert held() == before


def test_an_arena_of_size_zero_never_has_room() -> None:
    arena = Arena(0)
    assert arena.allocate(1) is None
    assert (arena.fd, arena.size, arena.used, arena.largest_free, arena.fragmentation) == (-1, 0, 0, 0, 0)
    arena.close()


@pytest.mark.parametrize("size", [1 << 62, 1 << 70])
def test_more_than_can_be_mapped_is_an_error_that_names_the_setting(size: int) -> None:
    fds = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ArenaError, match=r"make cache\.ram smaller"):
        Arena(size)
    assert len(list(Path("/proc/self/fd").iterdir())) == fds


def test_a_limit_on_address_space_is_the_same_error() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 36, hard))
    try:
        with pytest.raises(ArenaError, match=r"cache\.ram"):
            Arena(1 << 36)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("size", [0, 1, 63, 64, 1000])
def test_a_checksum_is_the_xxh3_128_of_the_bytes_wherever_they_lie(arena: Arena, size: int) -> None:
    data = np.random.default_rng(1).bytes(size)
    expected = xxhash.xxh3_128(data).digest()
    assert len(expected) == 16
    assert checksum(data) == checksum(memoryview(data)) == checksum(np.frombuffer(data, np.uint8)) == expected
    if size:
        extent = allocate(arena, size)
        arena.view(extent)[:] = data
        assert checksum(arena.view(extent)) == checksum(ArenaView(arena.fd, SIZE).array(extent)) == expected


def test_one_flipped_bit_changes_the_checksum() -> None:
    data = bytearray(1000)
    before = checksum(data)
    data[500] ^= 1
    assert checksum(data) != before
