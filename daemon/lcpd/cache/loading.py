"""From disk to RAM: what of a path is to be read, and reading it.  The planning is pure; the reading blocks."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from lcpd.cache.arena import checksum
from lcpd.cache.blob import layout, split, split_sizes
from lcpd.cache.catalogue import Catalogue, Entry
from lcpd.cache.record import BadFile, Header, Record, check, decode
from lcpd.cache.store import BlobStore
from lcpd.engine.protocol import Tokens

_CHUNK = 4 << 20
"""Bytes that are read at once."""
_FIRST = 1 << 16
"""Bytes of a file that are read first; most headers are shorter."""
_LARGEST_HEADER = 1 << 24
"""Bytes: that of a context of four million tokens."""


@dataclass(frozen=True, eq=False)
class Step:
    """One piece to be read: of a segment items [begin, end); a checkpoint at `end`."""

    entry: Entry
    begin: int
    end: int
    path: Tokens
    """Items [0, end)."""

    @property
    def whole(self) -> bool:
        """Whether all of the file's state is wanted, as it is."""
        return self.entry.kind == "checkpoint" or (self.begin, self.end) == (self.entry.begin, self.entry.end)


def goal(catalogue: Catalogue, tokens: Tokens, covered: int, held: Collection[int], rolls_back: bool) -> int:
    """The furthest position that a prompt can go on from with the help of the disk; 0: none.

    `covered`: its tokens whose segments are in RAM; `held`: checkpoints that are; `rolls_back`: none are needed.
    """
    last = len(tokens) - 1
    reach = min(max(covered, catalogue.reach(tokens)), last)
    if rolls_back:
        return reach
    limit = reach if catalogue.needs_segments else last
    return max((at for at in (*catalogue.checkpoints(tokens), *held) if at <= limit), default=0)


def steps(catalogue: Catalogue, tokens: Tokens, covered: int, held: Collection[int], upto: int) -> list[Step]:
    """What has to be read so that a prompt can go on from `upto`, a `goal`: segments ascending, then the checkpoint."""
    found: list[Step] = []
    for piece, _ in catalogue.chain(tokens) if catalogue.needs_segments else ():
        if piece.end <= covered or piece.begin >= upto:
            continue
        entry = piece.entry
        path = np.concatenate(
            [tokens[: piece.begin], entry.tokens[piece.begin - entry.begin : piece.end - entry.begin]]
        )
        found.append(Step(entry, max(piece.begin, covered), piece.end, path))
    checkpoint = catalogue.checkpoints(tokens).get(upto)
    if checkpoint is not None and upto not in held:
        found.append(Step(checkpoint, upto, upto, tokens[:upto]))
    return found


def read(store: BlobStore, entry: Entry, expected: Record, target: memoryview) -> None:
    """Read the state of a file into `target`, which has just its size.  Raises BadFile."""
    try:
        with store.read(entry.key) as file:
            size = file.seek(0, os.SEEK_END)
            found = _header(file, size, entry)
            check(found, expected, entry.state, size)
            file.seek(found.length)
            _fill(file, target)
    except FileNotFoundError as error:
        raise BadFile("missing", f"it is not there: {error}") from error
    except OSError as error:
        raise BadFile("unreadable", f"it cannot be read: {error}") from error
    if checksum(target) != expected.checksum:
        raise BadFile("damaged", "the checksum of the state is wrong")


def _header(file: BinaryIO, size: int, entry: Entry) -> Header:
    try:
        file.seek(0)
        data = file.read(_FIRST)
        try:
            return decode(data)
        except BadFile as error:
            if error.problem != "truncated" or size <= len(data):
                raise
        file.seek(0)
        return decode(file.read(_LARGEST_HEADER))
    except BadFile as error:
        # A file that is as long as ever was not cut off: a length in its header is wrong.
        if error.problem == "truncated" and size == entry.length:
            raise BadFile("damaged", "the lengths in its header are damaged") from error
        raise


def _fill(file: BinaryIO, target: memoryview) -> None:
    at = 0
    while at < len(target):
        count = file.readinto(target[at : at + _CHUNK])  # type: ignore[attr-defined]
        if not count:
            raise BadFile("truncated", f"it ends {len(target) - at} bytes too early")
        at += count


def cut(state: memoryview, begin: int, end: int) -> memoryview:
    """Items [begin, end) of a segment's state, counted from its first one.  Raises BlobError."""
    if begin:
        state = _part(state, begin, front=False)
    found = layout(state)
    return _part(state, end - begin, front=True) if end - begin < found.cells else state


def _part(state: memoryview, k: int, front: bool) -> memoryview:
    found = layout(state)
    sizes = split_sizes(found, k)
    parts = memoryview(bytearray(sizes[0])), memoryview(bytearray(sizes[1]))
    split(state, found, k, *parts)
    return parts[0] if front else parts[1]
