"""The layout of a hybrid's checkpoint blob, as far as exporting segments needs it.

Little-endian: u32 magic, i32 sequence; u32 cells; per cell i32 position, u32 0; u32 s_trans, u32 layers; then for each
recurrent layer's R, and again for its S: i32 type, u64 row size, the cells' rows.
"""

from __future__ import annotations

import struct

MAGIC = 0xAF143CD8
_HEAD, _CELL, _LAYERS, _ROW = struct.Struct("<IiI"), struct.Struct("<iI"), struct.Struct("<II"), struct.Struct("<iQ")


def without_cells(checkpoint: bytes) -> bytes:
    """The checkpoint without any cell: it takes a sequence's recurrent state away and leaves its attention cells.

    Raises ValueError for anything that is not laid out as described above.
    """
    magic, seq, cells = _HEAD.unpack_from(checkpoint, 0)
    if magic != MAGIC:
        raise ValueError(f"magic {magic:#x} is not that of a sequence state")
    at = _HEAD.size
    for _ in range(cells):
        _, more = _CELL.unpack_from(checkpoint, at)
        if more != 0:
            raise ValueError("a cell of a single sequence's checkpoint names other sequences")
        at += _CELL.size
    out = [_HEAD.pack(magic, seq, 0), checkpoint[at : at + _LAYERS.size]]
    at += _LAYERS.size
    while at < len(checkpoint):
        kind, size = _ROW.unpack_from(checkpoint, at)
        out.append(_ROW.pack(kind, size))
        at += _ROW.size + size * cells
    if at != len(checkpoint):
        raise ValueError(f"the checkpoint ends {at - len(checkpoint)} bytes early")
    return b"".join(out)
