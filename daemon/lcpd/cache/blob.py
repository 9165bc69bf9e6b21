"""Cutting exported KV in two: an exported segment of libllama's becomes two valid ones, without libllama.

    blob      u32 magic, i32 sequence, then sections: KV, or KV and KV of the window (SWA), the last one followed by RS
              on hybrids
    KV        u32 streams (1), u32 cells, and unless there are none: the cells, u32 v_trans, u32 layers, K of every
              layer, V of every layer (or of none)
    cell      i32 position, u32 sequences (1), 12 bytes of extension (models with M-RoPE only), i32 sequence
    K, V      i32 type, u64 bytes per cell, then one row per cell; V with v_trans: i32 type, u32 bytes per element,
              u32 elements, then for each element its value in every cell
    RS        u32 cells (0: an exported segment carries no recurrent state), u32 0, u32 layers, then i32 type, u64
              bytes per cell of every R and of every S

Nothing in a blob says which sections it has, whether cells have an extension and whether there are V rows, so all
combinations are tried; only the right one ends with the blob.

Cells lie in the order of the cache, which is not always that of their positions, so a cut goes by position: the front
gets the `k` cells of the first section with the lowest positions, and all cells of the window that lie before those
of the back.  Cells of one position (an image on M-RoPE) cannot be parted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lcpd.cache.arena import Buffer, Bytes

_MAGIC = 0xAF143CD8
_HEADER = struct.Struct("<Ii")
_COUNTS = struct.Struct("<II")
"""Streams and cells of a KV section; v_trans and layers behind its cells."""
_RS_COUNTS = struct.Struct("<III")
_ROW = struct.Struct("<iQ")
_ELEMENT = struct.Struct("<iII")
_EXTENSIONS = (0, 12)
_MAX_SECTIONS = 3


class BlobError(ValueError):
    """These bytes are no exported segment, or one that cannot be cut there."""


@dataclass(frozen=True, eq=False)
class _Array:
    """Bytes of all cells: `outer` times one item of `inner` bytes per cell, from `offset` on."""

    offset: int
    outer: int
    inner: int


@dataclass(frozen=True, eq=False)
class _Section:
    """Bytes [begin, end) of a blob: arrays over its cells, with headers before and between them."""

    begin: int
    end: int
    positions: npt.NDArray[np.int32] | None
    """Of its cells, in the order of the cache; None: a section that both halves get whole."""
    arrays: tuple[_Array, ...] = ()

    def size(self, cells: int) -> int:
        """Bytes of the section with so many cells."""
        if self.positions is None or cells == len(self.positions):
            return self.end - self.begin
        if cells == 0:
            return _COUNTS.size
        per_cell = sum(array.outer * array.inner for array in self.arrays)
        return self.end - self.begin - per_cell * (len(self.positions) - cells)


@dataclass(frozen=True, eq=False)
class BlobLayout:
    """Where everything lies in a blob; numbers only, no reference to its bytes."""

    size: int
    """Bytes."""
    positions: npt.NDArray[np.int32]
    """Of the first section's cells, one for each token of the segment, ascending."""
    sections: tuple[_Section, ...]

    @property
    def cells(self) -> int:
        """Tokens of the segment."""
        return len(self.positions)


def layout(data: Buffer) -> BlobLayout:
    """Where everything lies in an exported segment.  Reads no byte outside of it.  Raises BlobError."""
    source = np.frombuffer(data, np.uint8).data
    if len(source) < _HEADER.size or _HEADER.unpack_from(source)[0] != _MAGIC:
        raise BlobError(f"these {len(source)} bytes do not begin like the state of a sequence")
    found = list(_sections(source, _HEADER.size, _MAX_SECTIONS))
    if len(found) != 1:
        problem = "can be read in more than one way" if found else "are damaged, or not those of a KV segment"
        raise BlobError(f"the sections of this sequence state of {len(source)} bytes {problem}")
    positions = found[0][0].positions
    assert positions is not None
    return BlobLayout(len(source), np.sort(positions), found[0])


def split_sizes(layout: BlobLayout, k: int) -> tuple[int, int]:
    """Bytes of the two blobs when the first `k` tokens are cut off.

    Raises BlobError when nothing would be left on one side, or tokens k - 1 and k have the same position.
    """
    boundary = _boundary(layout, k)
    front = back = _HEADER.size
    for section in layout.sections:
        before = 0 if section.positions is None else int(np.count_nonzero(section.positions < boundary))
        front += section.size(before)
        back += section.size(0 if section.positions is None else len(section.positions) - before)
    return front, back


def split(data: Buffer, layout: BlobLayout, k: int, front: Buffer, back: Buffer) -> None:
    """Write the first `k` tokens of a segment into `front` and the others into `back`.

    Both must be writable, of just the sizes that `split_sizes` tells, and apart from `data`, of which `layout` is the
    layout.  Raises BlobError as `split_sizes` does, or when a size is wrong; nothing is written then.
    """
    source = np.frombuffer(data, np.uint8)
    targets = np.frombuffer(front, np.uint8), np.frombuffer(back, np.uint8)
    sizes = (len(source), len(targets[0]), len(targets[1]))
    expected = (layout.size, *split_sizes(layout, k))
    if sizes != expected:
        raise BlobError(f"the segment and its two parts have {sizes} bytes instead of {expected}")
    boundary = _boundary(layout, k)
    for target, is_front in zip(targets, (True, False), strict=True):
        target[: _HEADER.size] = source[: _HEADER.size]
        at = _HEADER.size
        for section in layout.sections:
            at = _write(source, section, boundary, is_front, target, at)


def _boundary(layout: BlobLayout, k: int) -> int:
    """The position of token `k`."""
    if not 0 < k < layout.cells:
        raise BlobError(f"a segment of {layout.cells} tokens cannot be cut at {k}")
    before, boundary = layout.positions[k - 1 : k + 1]
    if before == boundary:
        raise BlobError(f"a segment cannot be cut at token {k}: it has the same position as the one before it")
    return int(boundary)


# ---- writing ---------------------------------------------------------------------------------------------


def _write(source: Bytes, section: _Section, boundary: int, is_front: bool, target: Bytes, at: int) -> int:
    """Write one half of a section at `at`; returns where it ends."""
    if section.positions is None:
        return _copy(source, section.begin, section.end, target, at)
    kept = np.flatnonzero((section.positions < boundary) == is_front)
    _COUNTS.pack_into(target.data, at, 1, len(kept))
    at += _COUNTS.size
    if not len(kept):
        return at
    done = section.begin + _COUNTS.size
    contiguous = kept[-1] - kept[0] + 1 == len(kept)
    for array in section.arrays:
        at = _copy(source, done, array.offset, target, at)
        done = array.offset + array.outer * len(section.positions) * array.inner
        end = at + array.outer * len(kept) * array.inner
        cells = source[array.offset : done].reshape(array.outer, len(section.positions), array.inner)
        out = target[at:end].reshape(array.outer, len(kept), array.inner)
        if contiguous:
            out[:] = cells[:, kept[0] : kept[-1] + 1]
        else:
            # With the default mode numpy would build the result elsewhere first.
            np.take(cells, kept, axis=1, out=out, mode="clip")
        at = end
    return _copy(source, done, section.end, target, at)


def _copy(source: Bytes, begin: int, end: int, target: Bytes, at: int) -> int:
    target[at : at + end - begin] = source[begin:end]
    return at + end - begin


# ---- reading ---------------------------------------------------------------------------------------------


def _sections(source: memoryview, at: int, most: int) -> Iterator[tuple[_Section, ...]]:
    """All ways to read the rest of a blob as one to `most` sections, the first of which is KV."""
    for section in _kv_sections(source, at):
        if section.end == len(source):
            yield (section,)
        elif most > 1:
            if _is_empty_rs(source, section.end):
                yield section, _Section(section.end, len(source), None)
            for rest in _sections(source, section.end, most - 1):
                yield section, *rest


def _kv_sections(source: memoryview, begin: int) -> Iterator[_Section]:
    """All ways to read a KV section that begins at `begin`."""
    at = begin + _COUNTS.size
    if at > len(source):
        return
    streams, cells = _COUNTS.unpack_from(source, begin)
    if streams != 1:
        return
    if cells == 0:
        yield _Section(begin, at, np.empty(0, np.int32))
        return
    for extension in _EXTENSIONS:
        record = np.dtype([("pos", "<i4"), ("count", "<u4"), ("ext", f"V{extension}"), ("seq", "<i4")])
        cells_end = at + cells * record.itemsize
        if cells_end + _COUNTS.size > len(source):
            continue
        records = np.frombuffer(source, record, cells, at)
        if (records["count"] != 1).any() or (records["pos"] < 0).any() or (records["seq"] != records["seq"][0]).any():
            continue
        v_trans, layers = _COUNTS.unpack_from(source, cells_end)
        if v_trans > 1:
            continue
        table = _Array(at, 1, record.itemsize)
        positions = records["pos"].astype(np.int32)
        if (keys := _arrays(source, cells_end + _COUNTS.size, layers, cells, transposed=False)) is None:
            continue
        keys_end = _end(keys, cells)
        yield _Section(begin, keys_end, positions, (table, *keys))
        if (values := _arrays(source, keys_end, layers, cells, bool(v_trans))) is not None:
            yield _Section(begin, _end(values, cells), positions, (table, *keys, *values))


def _arrays(source: memoryview, at: int, layers: int, cells: int, transposed: bool) -> list[_Array] | None:
    """One array per layer, the first one's header at `at`; None when that is not what lies there."""
    header = _ELEMENT if transposed else _ROW
    arrays: list[_Array] = []
    while len(arrays) < layers:
        if at + header.size > len(source):
            return None
        if transposed:
            _, inner, outer = _ELEMENT.unpack_from(source, at)
        else:
            (_, inner), outer = _ROW.unpack_from(source, at), 1
        arrays.append(_Array(at + header.size, outer, inner))
        at = _end(arrays, cells)
        if not inner * outer or at > len(source):
            return None
    return arrays or None


def _end(arrays: list[_Array], cells: int) -> int:
    """Where the last array ends."""
    return arrays[-1].offset + arrays[-1].outer * cells * arrays[-1].inner


def _is_empty_rs(source: memoryview, at: int) -> bool:
    """Whether the rest of a blob is a recurrent section without cells."""
    rows = at + _RS_COUNTS.size
    if rows > len(source):
        return False
    cells, s_trans, layers = _RS_COUNTS.unpack_from(source, at)
    count, rest = divmod(len(source) - rows, _ROW.size)
    # R and S of the recurrent layers, which may be fewer than `layers`.
    if cells or s_trans or rest or count % 2 or not 0 < count <= 2 * layers:
        return False
    return all(size for _, size in _ROW.iter_unpack(source[rows:]))
