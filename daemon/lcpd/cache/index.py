"""What the arena holds, written into the arena: so that it can be found again by who has nothing but the memory.

    front of the arena    what
    ------------------    ----
    superblock            magic, version, sizes, and their checksum; at offset 0
    two areas             generation, length and checksum of a list of contents, then the list (MessagePack)

The lists take turns, so that the one before is still whole when the daemon dies while it writes.  A list may be older
than the bytes that it speaks of: an extent may have been given to something else since.  That does no harm, because
every piece is compared with its checksum before it is used.  What is read here is believed only as far as it can be
checked, and never a reason to fail.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import msgspec
import numpy as np

from lcpd.cache.arena import Arena, checksum
from lcpd.cache.eviction import PayloadNode
from lcpd.cache.extents import ALIGNMENT
from lcpd.cache.payloads import TARGET, Payload
from lcpd.cache.trie import IntegrityError, Trie, common_prefix
from lcpd.engine.protocol import Piece, Tokens, pack, unpack

VERSION = 1
"""Raised whenever something here, or in `Index`, changes its meaning or shape."""
_MAGIC = b"lcpdindx"
_SUPERBLOCK = struct.Struct("<8sIIQQ")
"""Magic, version, 0, bytes of the front, bytes of one area; its checksum follows."""
_HEADER = struct.Struct("<QQ")
"""Generation (from 1 on) and length; the checksum of both and of the list follows."""
_CHECKSUM = 16
_SUPERBLOCK_SIZE = 4096
_LEAST_ARENA = 1 << 20
_SHARE = 256
"""An area takes one in so many bytes of the arena: enough where a token's state has a KiB, which is little."""
_ENTRY_BYTES = 128
"""Most that the list needs for an entry without its tokens and pieces."""
_PIECE_BYTES = 64
"""Most that the list needs for a piece without its name."""

Pieces = dict[str, Piece]
"""A payload's parts."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A node of the trie."""

    parent: int
    """Index of the entry it goes on from, which comes before it; -1: none."""
    edge: bytes
    """Its items (`pack`)."""
    beyond: bytes
    """Items behind the edge that its segment covers too."""
    segment: Pieces | None
    checkpoint: Pieces | None
    last_used: float
    """On the machine's monotonic clock, which outlives the daemon as the memory does."""
    hits: int


class Index(msgspec.Struct, frozen=True, array_like=True):
    """One list of contents."""

    fingerprint: dict[str, str]
    """Of the state bytes (:mod:`lcpd.cache.fingerprint`)."""
    entries: list[Entry]


class IndexRefused(RuntimeError):
    """There is no list that could be read; the text says why."""


def front_size(size: int) -> int:
    """Bytes at the front of an arena of `size` bytes in all that are set apart for this; 0 where it is too small."""
    if size < _LEAST_ARENA:
        return 0
    area = size // _SHARE
    return _SUPERBLOCK_SIZE + 2 * (area - area % ALIGNMENT)


class IndexArea:
    """The front of an arena, which must outlive it."""

    def __init__(self, front: memoryview) -> None:
        """`front`: `front_size` writable bytes, with whatever is in them."""
        self._front = front
        self._size = (len(front) - _SUPERBLOCK_SIZE) // 2
        """Bytes of an area."""

    @property
    def capacity(self) -> int:
        """Bytes that a list may have."""
        return self._size - _HEADER.size - _CHECKSUM

    @property
    def generation(self) -> int:
        """Of the last list; 0: there is none."""
        return max((generation for generation, _ in self._lists()), default=0)

    def read(self) -> bytes:
        """The last list that is whole.  Raises IndexRefused."""
        found = bytes(self._front[: _SUPERBLOCK.size])
        magic, version, _, _, _ = _SUPERBLOCK.unpack(found)
        if magic != _MAGIC:
            raise IndexRefused("there is none in this memory")
        if version != VERSION:
            raise IndexRefused(f"it has version {version}, this lcpd reads {VERSION}")
        if not self._is_laid_out():
            raise IndexRefused("the superblock is damaged")
        lists = self._lists()
        if not lists:
            raise IndexRefused("there is none, or it is damaged")
        return max(lists)[1]

    def write(self, data: bytes) -> None:
        """Replace the older of the two lists.  ValueError where the new one is longer than `capacity`."""
        if len(data) > self.capacity:
            raise ValueError(f"a list of {len(data)} bytes does not fit into {self.capacity}")
        if not self._is_laid_out():
            self._lay_out()
        generation = self.generation + 1
        begin = self._begin(generation)
        header = _HEADER.pack(generation, len(data))
        content = begin + _HEADER.size + _CHECKSUM
        self._front[begin:content] = bytes(_HEADER.size + _CHECKSUM)  # no list, while it is written
        self._front[content : content + len(data)] = data
        self._front[begin:content] = header + checksum(header + data)

    def _superblock(self) -> bytes:
        fields = _SUPERBLOCK.pack(_MAGIC, VERSION, 0, len(self._front), self._size)
        return fields + checksum(fields)

    def _is_laid_out(self) -> bool:
        expected = self._superblock()
        return bytes(self._front[: len(expected)]) == expected

    def _lay_out(self) -> None:
        for generation in (0, 1):
            begin = self._begin(generation)
            self._front[begin : begin + _HEADER.size + _CHECKSUM] = bytes(_HEADER.size + _CHECKSUM)
        superblock = self._superblock()
        self._front[: len(superblock)] = superblock

    def _begin(self, generation: int) -> int:
        return _SUPERBLOCK_SIZE + generation % 2 * self._size

    def _lists(self) -> list[tuple[int, bytes]]:
        """The lists that are whole, with their generations."""
        found = []
        for number in (0, 1) if self._is_laid_out() else ():
            begin = self._begin(number)
            header = bytes(self._front[begin : begin + _HEADER.size])
            generation, length = _HEADER.unpack(header)
            if not generation or generation % 2 != number or length > self.capacity:
                continue
            content = begin + _HEADER.size + _CHECKSUM
            data = bytes(self._front[content : content + length])
            if checksum(header + data) == self._front[begin + _HEADER.size : content]:
                found.append((generation, data))
        return found


# ---- writing ---------------------------------------------------------------------------------------------


def encode(index: Index) -> bytes:
    """The bytes of a list."""
    return msgspec.msgpack.encode(index)


def collect(trie: Trie[Payload], capacity: int) -> tuple[list[Entry], int]:
    """The nodes of a trie that hold something or lead to what does, as entries; and how many were left out.

    Those used last come first, each behind the one it goes on from, as many as are sure to be encoded in `capacity`
    bytes.
    """
    latest: dict[PayloadNode, float] = {}
    """When a node, or one below it, was used last; of those that are of use."""
    nodes = list(trie.nodes())
    for node in reversed(nodes):
        below = [latest[child] for child in node.children.values() if child in latest]
        if below or node.segment is not None or node.checkpoint is not None:
            latest[node] = max([node.last_used, *below])
    wanted = sorted((node for node in nodes if node in latest), key=lambda node: -latest[node])
    numbers: dict[PayloadNode, int] = {}
    entries: list[Entry] = []
    for node in wanted:
        capacity -= _room(node)
        if capacity < 0:
            break
        assert node.parent is not None
        numbers[node] = len(entries)
        entries.append(_entry(node, numbers.get(node.parent, -1)))
    return entries, len(wanted) - len(entries)


def _entry(node: PayloadNode, parent: int) -> Entry:
    return Entry(
        parent=parent,
        edge=pack(node.edge),
        beyond=pack(node.covers[len(node.edge) :]),
        segment=node.segment.parts if node.segment is not None else None,
        checkpoint=node.checkpoint.parts if node.checkpoint is not None else None,
        last_used=node.last_used,
        hits=node.hits,
    )


def _room(node: PayloadNode) -> int:
    """Bytes that the entry of a node needs at most."""
    size = _ENTRY_BYTES + 4 * max(len(node.edge), len(node.covers))
    for payload in (node.segment, node.checkpoint):
        if payload is not None:
            size += sum(_PIECE_BYTES + 4 * len(name) for name in payload.parts)
    return size


# ---- reading ---------------------------------------------------------------------------------------------


def decode(data: bytes) -> Index:
    """What `encode` gave.  Raises IndexRefused for other bytes."""
    try:
        return msgspec.msgpack.decode(data, type=Index)
    except (msgspec.DecodeError, RecursionError) as error:
        raise IndexRefused(f"it cannot be read: {error}") from error


def paths(entries: list[Entry], most: int) -> list[Tokens]:
    """The tokens of the paths that nothing goes on from; those used last, which come first, at most `most`."""
    parents = {entry.parent for entry in entries}
    found: list[Tokens] = []
    for number, entry in enumerate(entries):
        if number in parents:
            continue
        if len(found) == most:
            break
        edges = [entry.edge]
        above = entry.parent
        while 0 <= above < number:
            number, above = above, entries[above].parent
            edges.append(entries[number].edge)
        if not any(len(edge) % 4 for edge in edges):
            found.append(unpack(b"".join(reversed(edges))))
    return found


@dataclass
class Restored:
    """A trie whose payloads' extents are in use in the arena again."""

    trie: Trie[Payload]
    payloads: int = 0
    dropped: int = 0
    """Payloads that contradict others, or do not lie in the arena."""


def restore(arena: Arena, entries: list[Entry], now: float) -> Restored:
    """Build a trie of what `entries` tell, in an arena of which nothing is in use.

    The bytes are not looked at: whoever uses them compares them with their checksums.  What contradicts what came
    before it is dropped, and what builds on that; everything, where the whole makes no sense.
    """
    restored = _Restoring(arena, now)
    for entry in entries:
        restored.add(entry)
    try:
        restored.result.trie.check_integrity()
    except IntegrityError:
        restored.give_up()
    return restored.result


@dataclass
class _Place:
    """Where an entry came to lie."""

    node: PayloadNode
    ahead: Tokens
    """Items behind the node that the segment before them covers."""
    whole: bool
    """Whether all items up to the end of the node are covered."""


_EMPTY: Tokens = np.zeros(0, np.int32)


class _Restoring:
    def __init__(self, arena: Arena, now: float) -> None:
        self._arena = arena
        self._now = now
        self.result = Restored(Trie())
        self._places: list[_Place | None] = []

    def add(self, entry: Entry) -> None:
        place = self._place(entry)
        self._places.append(place)
        if place is None:
            self.result.dropped += (entry.segment is not None) + (entry.checkpoint is not None)
            return
        node = place.node
        last_used = entry.last_used if math.isfinite(entry.last_used) else 0.0
        node.last_used = max(node.last_used, min(last_used, self._now))
        node.hits = max(node.hits, entry.hits, 0)
        if entry.checkpoint is not None:
            payload = None if node.checkpoint is not None else self._claim(entry.checkpoint)
            self.result.dropped += payload is None
            node.checkpoint = node.checkpoint or payload

    def _place(self, entry: Entry) -> _Place | None:
        """Put the path of an entry into the trie, and its segment; None where that is impossible."""
        trie = self.result.trie
        if not -1 <= entry.parent < len(self._places) or len(entry.edge) % 4 or not entry.edge or len(entry.beyond) % 4:
            return None
        above = _Place(trie.root, _EMPTY, True) if entry.parent == -1 else self._places[entry.parent]
        if above is None:
            return None
        edge = unpack(entry.edge)
        ahead = above.ahead
        if entry.segment is not None:
            covers = unpack(entry.edge + entry.beyond)
            if above.whole and not len(ahead) and self._attach(above.node, covers, entry.segment):
                ahead = covers
            else:
                self.result.dropped += 1
        served = common_prefix(ahead, edge)
        whole = above.whole and served == len(edge)
        return _Place(trie.extend(above.node, edge), ahead[served:] if whole else _EMPTY, whole)

    def _attach(self, node: PayloadNode, covers: Tokens, parts: Pieces) -> bool:
        first = node.children.get(int(covers[0]))
        if first is not None and first.segment is not None:
            return False
        if (payload := self._claim(parts)) is None:
            return False
        self.result.trie.attach(node, covers, payload)
        return True

    def _claim(self, parts: Pieces) -> Payload | None:
        """Take the extents of all parts into use, or of none."""
        claimed = []
        for piece in parts.values():
            if len(piece.checksum) != _CHECKSUM or not self._arena.claim(piece.extent):
                break
            claimed.append(piece.extent)
        if TARGET in parts and len(claimed) == len(parts):
            self.result.payloads += 1
            return Payload(parts)
        for extent in claimed:
            self._arena.free(extent)
        return None

    def give_up(self) -> None:
        """Forget everything."""
        for node in self.result.trie.nodes():
            for payload in (node.segment, node.checkpoint):
                if payload is not None:
                    for piece in payload.parts.values():
                        self._arena.free(piece.extent)
        self.result.dropped += self.result.payloads
        self.result.payloads = 0
        self.result.trie = Trie()
