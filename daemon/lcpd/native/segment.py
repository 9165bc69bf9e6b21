"""What a segment says about itself: the part of its bytes that libllama believes.

    u32 magic, i32 sequence, u32 streams, u32 cells; of each cell i32 position, u32 sequences, 12 bytes of extension on
    some models, i32 sequence; u32 whether V is transposed; then the values with a head for each layer's, and behind
    them what there is of a rolling state, which is none

The heads are compared by libllama with what its context has, and refused where they differ.  So nothing but the values
can be wrong in a segment that :func:`describes` is true of and that libllama takes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

HEAD = np.dtype([("magic", "<u4"), ("seq", "<i4"), ("streams", "<u4"), ("cells", "<u4"), ("position", "<i4")])
"""How the bytes of a sequence begin that holds attention cells; `position` is that of its first cell."""
_MAGIC = 0xAF143CD8
_BEFORE_CELLS = 16
_CELLS = [
    np.dtype([("position", "<i4"), ("count", "<u4"), ("seq", "<i4")]),
    np.dtype([("position", "<i4"), ("count", "<u4"), ("extension", "V12"), ("seq", "<i4")]),
]


def cells_in(segment: Bytes) -> int:
    """How many cells the bytes say they hold."""
    return int(segment[: HEAD.itemsize].view(HEAD)["cells"][0]) if len(segment) >= HEAD.itemsize else 0


def describes(segment: Bytes, begin: int, end: int, tail: bytes) -> bool:
    """Whether it says to be one cell for each position of [begin, end), of one sequence, and ends with `tail`."""
    if len(segment) < HEAD.itemsize or segment[len(segment) - len(tail) :].tobytes() != tail:
        return False
    head = segment[: HEAD.itemsize].view(HEAD)[0]
    count = end - begin
    if count < 1 or (head["magic"], head["streams"], head["cells"]) != (_MAGIC, 1, count):
        return False
    return any(_hold(segment, cell, begin, end) for cell in _CELLS)


def _hold(segment: Bytes, cell: np.dtype[np.void], begin: int, end: int) -> bool:
    after = _BEFORE_CELLS + (end - begin) * cell.itemsize
    if len(segment) < after + 4:
        return False
    cells = segment[_BEFORE_CELLS:after].view(cell)
    alike = (cells["count"] == 1).all() and (cells["seq"] == cells["seq"][0]).all()
    transposed = int(segment[after : after + 4].view("<u4")[0])  # libllama takes any number but 0 for 1
    return bool(alike and transposed <= 1 and _are(cells["position"], np.arange(begin, end, dtype=np.int32)))


def _are(positions: npt.NDArray[np.int32], wanted: npt.NDArray[np.int32]) -> bool:
    """Whether the positions are those that are wanted, in any order; they are nearly always in this one."""
    return np.array_equal(positions, wanted) or np.array_equal(np.sort(positions), wanted)
