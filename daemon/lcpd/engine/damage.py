"""Finds out that stored bytes are damaged, at the price of reading them once, and leaves nothing of them behind.

A large segment is checked while libllama copies it: both read the same bytes at the same time, so that memory delivers
them once.  Checking them first, or the next ones meanwhile, takes a fifth to a half longer where memory is the limit.
What a segment says about itself was looked at before (:mod:`lcpd.native.segment`), so damage can be in its values only,
and nothing is computed before the check is over.  A checkpoint is read after its check, which runs beside the last
segment.

Who trusts the machine's memory can have each piece checked once only, when it is read for the first time: a worker
knows of no other that writes over what it has found right, but for the daemon, which never does before it is freed.

Nothing of a damaged segment may stay, not even in cells that are free: attention multiplies the values of cells that do
not count by zero, and zero times what is no number is no number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from lcpd.cache import blob
from lcpd.cache.arena import checksum
from lcpd.engine import protocol as p
from lcpd.native.context import Context, StateError
from lcpd.native.segment import Bytes

_BESIDE = 4 << 20
"""Bytes from which on checking in another thread saves more time than waking it takes."""


_KNOWN_MAX = 50_000
"""Pieces that are known to be right; beyond, all of them are checked once more."""


class DamagedPiece(StateError):
    """Bytes in the arena are not those that were stored."""


class Checker:
    """Compares pieces with their checksums, large ones in a thread of its own."""

    def __init__(self, once: bool = False) -> None:
        """`once`: what was found right is not checked again while nothing is written there."""
        self._once = once
        self._known: dict[int, p.Piece] = {}
        """The pieces that were found right, by their offsets."""
        self._thread = ThreadPoolExecutor(1, "checksums")

    def begin(self, piece: p.Piece, data: Bytes, name: str) -> Callable[[], None]:
        """Begin to check a piece; what is returned waits for the outcome, and raises DamagedPiece."""
        found: Future[bytes] = Future()
        if self._known.get(piece.extent.offset) == piece:
            found.set_result(piece.checksum)
        elif len(data) < _BESIDE:
            found.set_result(checksum(data))
        else:
            found = self._thread.submit(checksum, data)

        def finish() -> None:
            if found.result() != piece.checksum:
                raise DamagedPiece(f"the bytes of the {name} are damaged")
            if self._once:
                self._know(piece)

        return finish

    def look_again(self, piece: p.Piece, data: Bytes, name: str) -> None:
        """Check a piece that something is wrong with, whatever is known of it.  Raises DamagedPiece."""
        self.written(piece.extent)
        self.begin(piece, data, name)()

    def written(self, extent: p.Extent) -> None:
        """Other bytes are there now."""
        self._known.pop(extent.offset, None)

    def _know(self, piece: p.Piece) -> None:
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[piece.extent.offset] = piece


def overwrite_free_cells(context: Context, seq: int, segment: Bytes) -> None:
    """Write zeros into all attention cells that no sequence holds; `seq` and scratch are empty before and afterwards.

    Nothing tells in which cells a segment was, so blank copies of it are read until there is no room for another, and
    then blank copies of its first cell: slow, but damage is rare.
    """
    for blank in _blanks(segment):
        try:
            while True:
                context.read_state(context.scratch, blank, partial=False)
                context.share(context.scratch, seq, 0, np.iinfo(np.int32).max)
        except StateError:
            continue  # there is no room for another one
    context.clear(context.scratch)
    context.clear(seq)


def _blanks(segment: Bytes) -> Iterator[Bytes]:
    """The segment, which libllama could read, and its first token as a segment of its own; without their values."""
    layout = blob.layout(segment)
    blank = segment.copy()
    for section in layout.sections:
        for array in section.arrays[1:]:  # the first one describes the cells
            blank[array.offset : array.offset + array.outer * layout.cells * array.inner] = 0
    yield blank
    if layout.cells > 1:
        front, back = (np.empty(size, np.uint8) for size in blob.split_sizes(layout, 1))
        blob.split(blank, layout, 1, front, back)
        yield front
