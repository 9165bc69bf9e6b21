"""The extent allocator against a naive model of one flag per unit: nothing overlaps, nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from examples import examples
from lcpd.cache.extents import ALIGNMENT, ExtentAllocator, ExtentError
from lcpd.engine.protocol import Extent


def units(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT


class AgainstFlags(RuleBasedStateMachine):
    """`flags[i]` says whether unit i is in use."""

    extents = Bundle("extents")

    @initialize(size=st.integers(0, 40 * ALIGNMENT))
    def start(self, size: int) -> None:
        self.allocator = ExtentAllocator(size)
        self.flags = [False] * (size // ALIGNMENT)

    def mark(self, begin: int, count: int, in_use: bool) -> None:
        first = begin // ALIGNMENT
        assert self.flags[first : first + count] == [not in_use] * count
        self.flags[first : first + count] = [in_use] * count

    def free_runs(self) -> list[int]:
        text = "".join("x" if flag else "." for flag in self.flags)
        return [len(run) for run in text.split("x") if run]

    @rule(target=extents, size=st.integers(1, 15 * ALIGNMENT))
    def allocate(self, size: int) -> Extent:
        extent = self.allocator.allocate(size)
        assert (extent is None) == (max(self.free_runs(), default=0) < units(size))
        if extent is None:
            return multiple()
        assert extent.size == size
        assert extent.offset % ALIGNMENT == 0
        self.mark(extent.offset, units(size), True)
        return extent

    @rule(
        target=extents, unit=st.integers(-1, 41), size=st.integers(0, 15 * ALIGNMENT), shift=st.sampled_from([0, 0, 7])
    )
    def claim(self, unit: int, size: int, shift: int) -> Extent:
        extent = Extent(unit * ALIGNMENT + shift, size)
        wanted = self.flags[unit : unit + units(size)] if unit >= 0 else []
        possible = size > 0 and not shift and wanted == [False] * units(size)
        assert self.allocator.claim(extent) == possible
        if not possible:
            return multiple()
        self.mark(extent.offset, units(size), True)
        return extent

    @rule(extent=consumes(extents))
    def free(self, extent: Extent) -> None:
        self.allocator.free(extent)
        self.mark(extent.offset, units(extent.size), False)

    @rule(target=extents, extent=consumes(extents), data=st.data())
    def shrink(self, extent: Extent, data: st.DataObject) -> Extent:
        size = data.draw(st.integers(1, extent.size))
        shrunk = self.allocator.shrink(extent, size)
        assert shrunk == Extent(extent.offset, size)
        kept = units(size)
        self.mark(extent.offset + kept * ALIGNMENT, units(extent.size) - kept, False)
        return shrunk

    @invariant()
    def the_numbers_are_exact(self) -> None:
        if not hasattr(self, "allocator"):
            return
        runs = self.free_runs()
        assert self.allocator.used == sum(self.flags) * ALIGNMENT
        assert self.allocator.free_bytes == sum(runs) * ALIGNMENT
        assert self.allocator.largest_free == max(runs, default=0) * ALIGNMENT
        expected = 1 - max(runs) / sum(runs) if runs else 0
        assert self.allocator.fragmentation == pytest.approx(expected)


AgainstFlags.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=40, deadline=None)
TestAgainstFlags = AgainstFlags.TestCase


def filled(count: int) -> tuple[ExtentAllocator, list[Extent]]:
    """An allocator full of `count` extents of one unit each."""
    allocator = ExtentAllocator(count * ALIGNMENT)
    extents = [allocator.allocate(ALIGNMENT) for _ in range(count)]
    assert allocator.allocate(1) is None
    return allocator, [extent for extent in extents if extent]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_freeing_everything_in_any_order_leaves_one_free_run(order: tuple[int, ...]) -> None:
    allocator, extents = filled(4)
    for index in order:
        allocator.free(extents[index])
    assert allocator.used == 0
    assert allocator.fragmentation == 0
    assert allocator.allocate(4 * ALIGNMENT) == Extent(0, 4 * ALIGNMENT)


def test_the_smallest_run_that_is_long_enough_is_taken() -> None:
    allocator, extents = filled(10)
    for index in (0, 1, 2, 3, 5, 6, 8):
        allocator.free(extents[index])
    assert allocator.allocate(2 * ALIGNMENT) == Extent(5 * ALIGNMENT, 2 * ALIGNMENT)


def test_fragmentation_is_the_share_of_the_free_bytes_outside_of_the_largest_run() -> None:
    allocator, extents = filled(8)
    for index in (0, 1, 2, 4):
        allocator.free(extents[index])
    assert allocator.fragmentation == pytest.approx(1 / 4)


def test_freeing_twice_is_an_error() -> None:
    allocator, (extent, _) = filled(2)
    allocator.free(extent)
    with pytest.raises(ExtentError, match="not in use"):
        allocator.free(extent)


def test_freeing_or_shrinking_what_was_shrunk_by_its_old_size_is_an_error() -> None:
    allocator = ExtentAllocator(1024)
    extent = allocator.allocate(200)
    assert extent
    allocator.shrink(extent, 100)
    with pytest.raises(ExtentError):
        allocator.free(extent)
    with pytest.raises(ExtentError):
        allocator.shrink(extent, 50)


def test_freeing_what_was_never_allocated_is_an_error() -> None:
    with pytest.raises(ExtentError, match="never allocated"):
        ExtentAllocator(1024).free(Extent(64, 64))


@pytest.mark.parametrize("size", [0, -1])
def test_an_extent_without_bytes_is_a_mistake(size: int) -> None:
    allocator = ExtentAllocator(1024)
    with pytest.raises(ValueError, match="at least one"):
        allocator.allocate(size)
    extent = allocator.allocate(10)
    assert extent
    with pytest.raises(ValueError, match="cannot be shrunk"):
        allocator.shrink(extent, size)


def test_an_extent_cannot_be_shrunk_to_more_than_it_has() -> None:
    allocator = ExtentAllocator(1024)
    extent = allocator.allocate(10)
    assert extent
    with pytest.raises(ValueError, match="cannot be shrunk to 11"):
        allocator.shrink(extent, 11)


def test_an_extent_and_its_front_parts_are_held_until_it_is_freed() -> None:
    allocator = ExtentAllocator(1024)
    extent = allocator.allocate(100)
    assert extent
    assert allocator.holds(extent)
    assert allocator.holds(Extent(extent.offset, 40))
    assert not allocator.holds(Extent(extent.offset, 101))
    assert not allocator.holds(Extent(extent.offset + 64, 10))
    allocator.free(extent)
    assert not allocator.holds(extent)
