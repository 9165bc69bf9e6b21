"""Which bytes of a fixed range are in use: best fit, neighbours joined when they are freed.  Pure bookkeeping."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from lcpd.engine.protocol import Extent

ALIGNMENT = 64
"""Bytes: a cache line, and what vector instructions like best.  Every extent begins at a multiple of it."""


class ExtentError(ValueError):
    """An extent that is not in use was freed, shrunk or read: a mistake of the caller's."""


class ExtentAllocator:
    """Hands out extents of [begin, begin + size) and never more than that.

    Every operation costs O(log n) comparisons for n free runs, which are never adjacent.
    """

    def __init__(self, size: int, begin: int = 0) -> None:
        """Both in bytes; what exceeds a multiple of `ALIGNMENT` is never handed out.  `begin` is such a multiple."""
        self.size = size - size % ALIGNMENT
        self.used = 0
        """Bytes in use, each extent rounded up to a multiple of `ALIGNMENT`."""
        self._extents: dict[int, int] = {}
        """Of extents in use: offset -> size as it was asked for."""
        self._runs: dict[int, int] = {}
        """Free runs: offset -> size."""
        self._offsets: list[int] = []
        """Of the free runs, ascending."""
        self._by_size: list[tuple[int, int]] = []
        """(size, offset) of the free runs, ascending."""
        if self.size:
            self._add_run(begin, self.size)

    @property
    def free_bytes(self) -> int:
        """Bytes that are not in use."""
        return self.size - self.used

    @property
    def largest_free(self) -> int:
        """Bytes of the largest extent that could be allocated now."""
        return self._by_size[-1][0] if self._by_size else 0

    @property
    def fragmentation(self) -> float:
        """The share of the free bytes that lies outside of the largest free run: 0 (best) to almost 1."""
        return 1 - self.largest_free / self.free_bytes if self.free_bytes else 0.0

    def allocate(self, size: int) -> Extent | None:
        """An extent of `size` bytes (more than 0), or None where no free run is long enough."""
        if size <= 0:
            raise ValueError(f"an extent of {size} bytes was asked for; it must have at least one")
        needed = _round_up(size)
        index = bisect_left(self._by_size, (needed, 0))
        if index == len(self._by_size):
            return None
        run_size, offset = self._by_size[index]
        self._remove_run(offset)
        if run_size > needed:
            self._add_run(offset + needed, run_size - needed)
        self._extents[offset] = size
        self.used += needed
        return Extent(offset, size)

    def claim(self, extent: Extent) -> bool:
        """Take just this extent into use; False where it is none that could have been handed out, or not all free."""
        end = extent.offset + _round_up(extent.size)
        index = bisect_right(self._offsets, extent.offset) - 1
        if extent.size <= 0 or extent.offset % ALIGNMENT or index < 0:
            return False
        begin = self._offsets[index]
        run_end = begin + self._runs[begin]
        if end > run_end:
            return False
        self._remove_run(begin)
        for start, stop in ((begin, extent.offset), (end, run_end)):
            if start < stop:
                self._add_run(start, stop - start)
        self._extents[extent.offset] = extent.size
        self.used += end - extent.offset
        return True

    def shrink(self, extent: Extent, size: int) -> Extent:
        """The front part of `extent`, at least one byte; the rest is free and `extent` is no longer valid."""
        self._check(extent)
        if not 0 < size <= extent.size:
            raise ValueError(f"an extent of {extent.size} bytes cannot be shrunk to {size}")
        self._extents[extent.offset] = size
        self._release(extent.offset + _round_up(size), extent.offset + _round_up(extent.size))
        return Extent(extent.offset, size)

    def free(self, extent: Extent) -> None:
        """Give `extent` back.  Raises ExtentError where it is not in use, with just this offset and size."""
        self._check(extent)
        del self._extents[extent.offset]
        self._release(extent.offset, extent.offset + _round_up(extent.size))

    def holds(self, extent: Extent) -> bool:
        """Whether `extent` is an extent in use, or the front part of one."""
        return 0 < extent.size <= self._extents.get(extent.offset, 0)

    def _check(self, extent: Extent) -> None:
        if self._extents.get(extent.offset) != extent.size:
            raise ExtentError(f"{extent} is not in use: it was freed or shrunk before, or never allocated")

    def _release(self, begin: int, end: int) -> None:
        """Make [begin, end) free, together with the free runs that touch it."""
        if begin == end:
            return
        self.used -= end - begin
        index = bisect_left(self._offsets, begin)
        before, after = self._offsets[index - 1 : index], self._offsets[index : index + 1]
        if before and before[0] + self._runs[before[0]] == begin:
            begin = before[0]
            self._remove_run(begin)
        if after and after[0] == end:
            end += self._runs[end]
            self._remove_run(after[0])
        self._add_run(begin, end - begin)

    def _add_run(self, offset: int, size: int) -> None:
        self._runs[offset] = size
        insort(self._offsets, offset)
        insort(self._by_size, (size, offset))

    def _remove_run(self, offset: int) -> None:
        size = self._runs.pop(offset)
        del self._offsets[bisect_left(self._offsets, offset)]
        del self._by_size[bisect_left(self._by_size, (size, offset))]


def _round_up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
