"""The memory for state bytes: one memfd of fixed size, mapped by the daemon and by the worker.

The daemon's :class:`Arena` alone decides what lies where; the worker's :class:`ArenaView` reads and writes the extents
that it is told.  Pages take up RAM from when they are first touched until the arena is closed: they are not given back
before, because the worker may have pinned them for its GPU, and a page that is replaced under a pin would be another
one for the GPU than for the CPU.  (Touching a page again after a hole was punched also costs ten times its copy.)
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from lcpd.cache.extents import ExtentAllocator, ExtentError
from lcpd.engine.protocol import Extent

Bytes: TypeAlias = npt.NDArray[np.uint8]
Buffer: TypeAlias = bytes | bytearray | memoryview | Bytes

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class ArenaError(RuntimeError):
    """The arena's memory cannot be had; the text names the setting."""


def checksum(data: Buffer) -> bytes:
    """xxh3-128 of contiguous bytes, which are not copied."""
    return xxhash.xxh3_128_digest(data.data if isinstance(data, np.ndarray) else data)


class Arena:
    """The daemon's end: owns the memory and knows which extents of it are in use.

    An arena of size 0 is disabled: it has no descriptor and every allocation gives None.
    """

    _bytes: memoryview | None
    """None: disabled or closed."""

    def __init__(self, size: int, front: int = 0) -> None:
        """`size` in bytes (`cache.ram`), of which the first `front`, a multiple of 64, are no part of any extent.

        Raises ArenaError when so much cannot be mapped.
        """
        self._reset(size, front)
        if not size:
            return
        try:
            self.fd = os.memfd_create("lcpd-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.fd, size)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            self._bytes = _map(self.fd, size)
        except (OSError, OverflowError, ValueError) as error:
            self.close()
            raise ArenaError(f"an arena of {size} bytes cannot be mapped ({error}): make cache.ram smaller") from error

    @classmethod
    def adopt(cls, fd: int, size: int, front: int = 0) -> Arena:
        """An arena in the memory of an earlier one, whose bytes are still there; no extent is in use.

        Takes `fd` over, which is closed where it is no arena of that size.  Raises ArenaError then.
        """
        arena = cls.__new__(cls)
        arena._reset(size, front)
        arena.fd = fd
        try:
            if (seals := fcntl.fcntl(fd, fcntl.F_GET_SEALS)) & _SEALS != _SEALS:
                raise ValueError(f"its seals are {seals:#x} instead of {_SEALS:#x}: somebody could take memory away")
            if (actual := os.fstat(fd).st_size) != size:
                raise ValueError(f"it has {actual} bytes, cache.ram is {size}")
            os.set_inheritable(fd, False)
            arena._bytes = _map(fd, size)
        except (OSError, OverflowError, ValueError) as error:
            arena.close()
            raise ArenaError(f"the memory cannot be used again: {error}") from error
        return arena

    def _reset(self, size: int, front: int) -> None:
        self.size = size - front
        """Bytes that extents can take up."""
        self.mapped = size
        """Bytes in all."""
        self.fd = -1
        """Of the memfd, for the worker; -1: disabled or closed.  It cannot be resized by anybody."""
        self._extents = ExtentAllocator(size - front, front)
        self._bytes = None

    @property
    def front(self) -> memoryview:
        """The writable bytes before the extents.  Raises ArenaError when the arena is closed."""
        if self._bytes is None:
            raise ArenaError("the arena is disabled or closed")
        return self._bytes[: self.mapped - self.size]

    @property
    def used(self) -> int:
        """Bytes in use, each extent rounded up to 64; at most `size`."""
        return self._extents.used

    @property
    def largest_free(self) -> int:
        """Bytes of the largest extent that could be allocated now."""
        return self._extents.largest_free

    @property
    def fragmentation(self) -> float:
        """The share of the free bytes that lies outside of the largest free run: 0 (best) to almost 1."""
        return self._extents.fragmentation

    def allocate(self, size: int) -> Extent | None:
        """An extent of `size` bytes (more than 0) with undefined content, or None where there is no room for it."""
        return self._extents.allocate(size)

    def claim(self, extent: Extent) -> bool:
        """Take just this extent into use, with its content; False where that is no extent, or not all of it is free."""
        return self._extents.claim(extent)

    def shrink(self, extent: Extent, size: int) -> Extent:
        """The front part of `extent`, which is no longer valid.  Raises ExtentError when it was not in use."""
        return self._extents.shrink(extent, size)

    def free(self, extent: Extent) -> None:
        """Give `extent` back; nobody may read it any more.  Raises ExtentError when it was not in use."""
        self._extents.free(extent)

    def view(self, extent: Extent) -> memoryview:
        """The writable bytes of an extent in use, or of the front part of one.  Raises ExtentError."""
        if self._bytes is None or not self._extents.holds(extent):
            raise ExtentError(f"{extent} is not in use: it was freed or shrunk before, or never allocated")
        return self._bytes[extent.offset : extent.offset + extent.size]

    def close(self) -> None:
        """Close the descriptor and give up the memory, which is unmapped with the last view of it."""
        self._bytes = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class ArenaView:
    """The worker's end: the bytes that the daemon's messages name.

    There is nothing to close: the memory is unmapped when this and the last array of it are gone.
    """

    def __init__(self, fd: int, size: int) -> None:
        """Map the daemon's memfd `fd` of `size` bytes; the descriptor is not needed afterwards.  Raises ArenaError."""
        try:
            actual = os.fstat(fd).st_size
            if actual != size:
                raise ValueError(f"the descriptor has {actual}")
            self._bytes: Bytes = np.frombuffer(_map(fd, size), np.uint8)
        except (OSError, OverflowError, ValueError) as error:
            raise ArenaError(f"the arena of {size} bytes (cache.ram) cannot be mapped: {error}") from error
        self.size = size

    def array(self, extent: Extent) -> Bytes:
        """The writable bytes of an extent, not a copy.  Raises ArenaError when it does not lie in the arena."""
        if extent.offset < 0 or extent.size < 0 or extent.offset + extent.size > self.size:
            raise ArenaError(f"{extent} is not within the arena of {self.size} bytes")
        return self._bytes[extent.offset : extent.offset + extent.size]


def _map(fd: int, size: int) -> memoryview:
    """A shared mapping, which lives as long as something refers to it.

    Not closed explicitly: mmap.close() raises BufferError while any view is left.
    """
    mapping = mmap.mmap(fd, size)
    with suppress(OSError):  # not offered for shared memory on this machine; small pages do as well
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(mapping)
