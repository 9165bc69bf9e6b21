"""The fake worker's memory: what its sequences hold, in cells that they can share, and their state as bytes.

A segment is a blob of libllama's format with one layer, whose K row of a cell is a hash of all tokens up to it; a
checkpoint is the same hash with padding.  So a sequence that is put together from wrong bytes is noticed, where the
real worker would generate nonsense.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from lcpd.cache.arena import ArenaView, checksum
from lcpd.engine import protocol as p

CHECKPOINT_BYTES = 1000
SEGMENT_BYTES = (48, 24)
"""A segment of n tokens has a + b * n bytes."""
_MAGIC = 0xAF143CD8
_CELL = np.dtype([("position", "<i4"), ("sequences", "<u4"), ("sequence", "<i4")])
_HASH = np.dtype("<u8")
_V_ROW = 4


class CacheFull(Exception):
    """There are not enough free cells; `missing` more are needed."""

    def __init__(self, missing: int) -> None:
        super().__init__(f"{missing} cells are missing")
        self.missing = missing


class Mismatch(ValueError):
    """The daemon believes that a sequence or a piece holds other tokens than it does."""


class Impossible(Exception):
    """The sequence cannot be brought to where it is wanted; the real worker begins at 0 then."""


class Damaged(Impossible):
    """The bytes of a piece are not those that were written."""


def path_hashes(tokens: Sequence[int]) -> list[int]:
    """For each token, a hash of all up to and including it."""
    return list(itertools.accumulate(tokens, lambda crc, token: zlib.crc32(struct.pack("<i", token), crc), initial=0))[
        1:
    ]


def segment_blob(tokens: Sequence[int], begin: int, end: int) -> bytes:
    """The state of tokens [begin, end)."""
    count = end - begin
    cells = np.zeros(count, _CELL)
    cells["position"], cells["sequences"] = np.arange(begin, end), 1
    rows = np.array(path_hashes(tokens[:end])[begin:], _HASH)
    return b"".join(
        [
            struct.pack("<IiII", _MAGIC, 0, 1, count),
            cells.tobytes(),
            struct.pack("<II", 0, 1),
            struct.pack("<iQ", 1, _HASH.itemsize) + rows.tobytes(),
            struct.pack("<iQ", 1, _V_ROW) + bytes(_V_ROW * count),
        ]
    )


def _rows(blob: bytes) -> dict[int, int]:
    """Position -> hash."""
    magic, _, _, count = struct.unpack_from("<IiII", blob)
    if magic != _MAGIC:
        raise Mismatch("a piece holds no segment")
    cells = np.frombuffer(blob, _CELL, count, 16)
    rows = np.frombuffer(blob, _HASH, count, 16 + cells.nbytes + 8 + 12)
    return dict(zip(cells["position"].tolist(), rows.tolist(), strict=True))


def checkpoint_blob(tokens: Sequence[int]) -> bytes:
    """The recurrent state after these tokens."""
    head = struct.pack("<4sIQ", b"CKPT", len(tokens), path_hashes(tokens)[-1] if tokens else 0)
    return head.ljust(CHECKPOINT_BYTES, b"\0")


class Sequences:
    """What each sequence holds."""

    def __init__(self, rolls_back: bool, cells: int, arena: ArenaView | None) -> None:
        self._rolls_back = rolls_back
        self._capacity = cells
        self._arena = arena
        self._tokens: dict[int, list[int]] = {}
        self._cells: dict[int, list[int]] = {}
        self._users: Counter[int] = Counter()
        self._ids = itertools.count()
        self.most_used = 0
        """Cells that were in use at the worst moment."""

    def held(self, seq: int) -> list[int]:
        """The tokens of a sequence."""
        return self._tokens.setdefault(seq, [])

    @property
    def used(self) -> int:
        """Cells in use; shared ones once."""
        return len(self._users)

    def extend(self, seq: int, tokens: Sequence[int]) -> None:
        """Decode tokens; raises CacheFull, and then nothing has changed."""
        missing = self.used + len(tokens) - self._capacity
        if missing > 0:
            raise CacheFull(missing)
        fresh = [next(self._ids) for _ in tokens]
        self.held(seq).extend(tokens)
        self._cells.setdefault(seq, []).extend(fresh)
        self._users.update(fresh)
        self.most_used = max(self.most_used, self.used)

    def cut(self, seq: int, length: int) -> None:
        """Keep the first `length` tokens."""
        gone = self._cells.setdefault(seq, [])[length:]
        self._users.subtract(gone)
        for cell in gone:
            if not self._users[cell]:
                del self._users[cell]
        del self._cells[seq][length:]
        del self.held(seq)[length:]

    def bring(self, start: p.Start, tokens: list[int]) -> None:
        """The three steps of `Start`; raises Impossible (the sequence is empty then) or Mismatch."""
        try:
            self._bring(start, tokens)
        except (Impossible, CacheFull):
            self.cut(start.seq, 0)
            raise

    def _bring(self, start: p.Start, tokens: list[int]) -> None:
        seq, shared = start.seq, start.shared
        at_live_end = False
        if start.source == seq:
            at_live_end = len(self.held(seq)) == shared
            if not (at_live_end or self._rolls_back or start.restore):
                raise Impossible(f"sequence {seq} cannot be truncated to {shared}")
        else:
            self.cut(seq, 0)
        if start.source >= 0:
            if len(self.held(start.source)) < shared:
                raise Impossible(f"sequence {start.source} holds less than {shared} tokens")
            if self.held(start.source)[:shared] != tokens[:shared]:
                raise Mismatch(f"sequence {start.source} does not hold the first {shared} tokens of the prompt")
            if start.source == seq:
                self.cut(seq, shared)
            else:
                self._share(start.source, seq, shared)
        for segment in start.segments:
            self._append(seq, segment, tokens)
        if len(self.held(seq)) < start.begin:
            raise Impossible(f"nothing brings sequence {seq} to {start.begin}")
        if start.restore is not None:
            self._restore(start.restore, tokens[: start.begin])
        elif not (self._rolls_back or start.begin == 0 or (at_live_end and start.begin == shared)):
            raise Impossible(f"position {start.begin} of sequence {seq} needs a checkpoint")
        self.cut(seq, start.begin)

    def _share(self, source: int, seq: int, shared: int) -> None:
        self._tokens[seq] = self.held(source)[:shared]
        self._cells[seq] = self._cells.get(source, [])[:shared]
        self._users.update(self._cells[seq])

    def _append(self, seq: int, segment: p.Segment, tokens: list[int]) -> None:
        length = len(self.held(seq))
        if segment.begin > length:
            raise Mismatch(f"the segment at {segment.begin} leaves a gap after {length}")
        rows = _rows(self._read(segment.piece))
        # It is read whole into a scratch sequence, beside what is held already.
        missing = self.used + segment.end - segment.begin - self._capacity
        if missing > 0:
            raise CacheFull(missing)
        if list(rows) != list(range(segment.begin, segment.end)):
            raise Mismatch(f"the segment of [{segment.begin}, {segment.end}) holds other positions")
        end = min(segment.end, len(tokens))
        expected = path_hashes(tokens[:end])
        # What lies beyond `begin` may belong to another path: it is cut off again.
        same = length
        while same < end and rows.get(same) == expected[same]:
            same += 1
        self.extend(seq, [*tokens[length:same], *[-2] * (segment.end - same)])

    def _restore(self, piece: p.Piece, tokens: list[int]) -> None:
        if self._read(piece) != checkpoint_blob(tokens):
            raise Mismatch(f"the checkpoint was not taken after the first {len(tokens)} tokens of the prompt")

    def check(self, seq: int, tokens: list[int]) -> None:
        """Raises Mismatch unless the sequence holds exactly these tokens."""
        if self.held(seq) != tokens:
            raise Mismatch(f"sequence {seq} does not hold the first {len(tokens)} tokens of the prompt")

    # ---- bytes -----------------------------------------------------------------------------------------

    def export(self, seq: int, begin: int, end: int, extent: p.Extent) -> p.Piece | None:
        """The segment [begin, end) of a sequence, or None where it does not fit."""
        if end > len(self.held(seq)):
            raise Mismatch(f"sequence {seq} holds less than {end} tokens")
        return self._write(extent, segment_blob(self.held(seq), begin, end))

    def take_checkpoint(self, seq: int, extent: p.Extent) -> p.Piece | None:
        """How the sequence stands."""
        return self._write(extent, checkpoint_blob(self.held(seq)))

    def _write(self, extent: p.Extent, blob: bytes) -> p.Piece | None:
        if self._arena is None or len(blob) > extent.size:
            return None
        self._arena.array(p.Extent(extent.offset, len(blob)))[:] = np.frombuffer(blob, np.uint8)
        return p.Piece(p.Extent(extent.offset, len(blob)), checksum(blob))

    def _read(self, piece: p.Piece) -> bytes:
        if self._arena is None:
            raise Impossible("there is no arena")
        blob = self._arena.array(piece.extent).tobytes()
        if checksum(blob) != piece.checksum:
            raise Damaged("a piece's checksum is wrong")
        return blob
