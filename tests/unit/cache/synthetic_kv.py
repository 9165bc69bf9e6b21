"""Exported segments in libllama's format whose rows tell which token path they belong to, and who writes them."""

from __future__ import annotations

import hashlib
import struct
from itertools import pairwise

import numpy as np

from lcpd.cache.arena import Arena, checksum
from lcpd.cache.cache import PromptCache
from lcpd.engine.protocol import Cut, Extent, Piece, Segment, Tokens

MAGIC = 0xAF143CD8
SEGMENT_BYTES = (48, 20)
CHECKPOINT_BYTES = 256


def path(*items: int) -> Tokens:
    return np.array(items, np.int32)


def rows(tokens: Tokens) -> np.ndarray:
    """For each token a number that depends on it and on all before it."""
    powers = np.cumprod(np.full(len(tokens), 1_000_003, np.uint64))
    return np.cumsum((tokens.astype(np.int64) + 7).astype(np.uint64) * powers).astype(np.uint32)


def exported(tokens: Tokens, begin: int, end: int) -> bytes:
    """The KV of tokens [begin, end) on this path: one layer, no transposed V, cells in reverse order."""
    positions = np.arange(begin, end, dtype=np.int32)[::-1]
    cells = np.zeros(end - begin, [("pos", "<i4"), ("count", "<u4"), ("seq", "<i4")])
    cells["pos"], cells["count"] = positions, 1
    row = rows(tokens)[positions].tobytes()
    plane = struct.pack("<iQ", 0, 4) + row
    head = struct.pack("<IiII", MAGIC, 0, 1, end - begin)
    return head + cells.tobytes() + struct.pack("<II", 0, 1) + plane + plane


def read(blob: bytes) -> dict[int, int]:
    """Position -> row."""
    n = struct.unpack_from("<I", blob, 12)[0]
    cells = np.frombuffer(blob, [("pos", "<i4"), ("count", "<u4"), ("seq", "<i4")], n, 16)
    keys = np.frombuffer(blob, "<u4", n, 16 + 12 * n + 8 + 12)
    values = np.frombuffer(blob, "<u4", n, 16 + 12 * n + 8 + 12 + 4 * n + 12)
    assert (keys == values).all()
    return dict(zip(cells["pos"].tolist(), keys.tolist(), strict=True))


def state(tokens: Tokens) -> bytes:
    """What stands for the checkpoint after exactly these tokens."""
    return hashlib.sha256(tokens.tobytes()).digest() * 8


class Bench:
    """A cache over a real arena, and what a worker would do for it."""

    def __init__(self, size: int, chunk: int = 8) -> None:
        self.now = 0.0
        self.arena = Arena(size)
        self.cache = PromptCache(self.arena, chunk, lambda: self.now)
        self.cache.configure(segment_bytes=SEGMENT_BYTES, checkpoint_bytes=CHECKPOINT_BYTES)

    def write(self, extent: Extent, data: bytes) -> Piece:
        place = Extent(extent.offset, len(data))
        self.arena.view(place)[:] = data
        return Piece(place, checksum(data))

    def export(self, tokens: Tokens, cuts: list[Cut]) -> list[Segment]:
        return [
            Segment(cut.begin, cut.end, self.write(cut.extent, exported(tokens, cut.begin, cut.end))) for cut in cuts
        ]

    def save(self, tokens: Tokens, end: int | None = None) -> list[Cut]:
        cuts = self.cache.plan_save(tokens, len(tokens) if end is None else end)
        self.cache.add_segments(tokens, cuts, self.export(tokens, cuts))
        return cuts

    def take_checkpoint(self, tokens: Tokens) -> bool:
        extent = self.cache.reserve_checkpoint()
        if extent is None:
            return False
        self.cache.add_checkpoint(tokens, extent, self.write(extent, state(tokens)))
        return True

    def restore(self, tokens: Tokens, begin: int, end: int) -> None:
        """Read tokens [begin, end) as the worker would; fails where anything is not as it was stored."""
        segments = self.cache.segments(tokens, begin, end)
        assert begin == end or (segments[0].begin <= begin and segments[-1].end >= end)
        assert all(a.end == b.begin for a, b in pairwise(segments))
        expected = rows(tokens)
        for segment in segments:
            self.check_segment(segment, expected, end)

    def check_segment(self, segment: Segment, expected: np.ndarray, end: int) -> None:
        data = self.arena.view(segment.piece.extent)
        assert checksum(data) == segment.piece.checksum
        found = read(bytes(data))
        assert sorted(found) == list(range(segment.begin, segment.end))
        assert all(found[at] == expected[at] for at in range(segment.begin, min(segment.end, end)))

    def check(self) -> None:
        self.cache.check_integrity()
        assert self.arena.used <= self.arena.size
        self.check_figures()

    def check_figures(self) -> None:
        """What is kept count of is what a walk finds."""
        figures, stats = self.cache.figures(), self.cache.stats()
        segments, checkpoints = figures.held["segment"], figures.held["checkpoint"]
        assert (segments.count, checkpoints.count) == (stats.segments, stats.checkpoints)
        assert (segments.bytes, checkpoints.bytes) == (stats.segment_bytes, stats.checkpoint_bytes)
        assert (figures.used, figures.size) == (stats.used, stats.size)
        assert (figures.reserved, figures.lingering) == (stats.reserved_bytes, stats.lingering_bytes)
        ends = self.cache.ends()
        assert (figures.paths, figures.path_tokens) == (len(ends), sum(map(len, ends)))
        assert sum(figures.dropped.values()) == sum(stats.dropped.values())
