"""What is on disk: a trie of token paths, and the tree of files that build on one another.  No I/O.

A file holds one segment or one checkpoint and never changes.  Where another path turns off within a segment, the trie
has two *slices* of one file instead of one; the file is read once and cut then.  A file builds on the segment in which,
or behind which, it begins (its parent), and is of no use without it; so files are given up children first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from lcpd.cache.payloads import Held
from lcpd.cache.record import Record
from lcpd.cache.retention import Kind
from lcpd.cache.trie import IntegrityError, Node, Trie
from lcpd.engine.protocol import Tokens, unpack

BLOCK = 4096
"""Bytes: what a file takes up is a multiple."""


@dataclass(eq=False)
class Entry:
    """One file."""

    key: str
    kind: Kind
    begin: int
    """See `Record`."""
    tokens: Tokens
    """Items [begin, end)."""
    parent: Entry | None
    state: int
    """Bytes of state."""
    length: int
    """Bytes of the file."""
    checksum: bytes
    """Of the state."""
    last_used: float
    """Unix seconds."""
    hits: int = 0
    children: set[Entry] = field(default_factory=set)

    @property
    def size(self) -> int:
        """Bytes that it takes up on disk."""
        return blocks(self.length)

    @property
    def end(self) -> int:
        """Position after the last item."""
        return self.begin + len(self.tokens)

    @property
    def path(self) -> Tokens:
        """Items [0, end)."""
        parts = [self.tokens]
        below, above = self, self.parent
        while above is not None:
            parts.append(above.tokens[: below.begin - above.begin])
            below, above = above, above.parent
        return np.concatenate(parts[::-1])


@dataclass(frozen=True, eq=False)
class Slice:
    """Items [begin, end) of a file."""

    entry: Entry
    begin: int
    end: int


SliceNode = Node[Slice]


@dataclass(frozen=True)
class Found:
    """A file as the index tells of it."""

    key: str
    record: Record
    state: int
    """Bytes of state."""
    length: int
    """Bytes of the file."""
    last_used: float
    """Unix seconds."""


def blocks(size: int) -> int:
    """Bytes that a file of `size` bytes takes up on disk."""
    return -(-size // BLOCK) * BLOCK


class Catalogue:
    """Owner of the trie and of the entries.  For one thread."""

    def __init__(self) -> None:
        self._trie: Trie[Slice] = Trie()
        self._entries: dict[str, Entry] = {}
        self.held: dict[Kind, Held] = {"segment": Held(), "checkpoint": Held()}
        self.needs_segments = True
        """False on pure recurrent models, where a checkpoint is all there is."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes that all files take up."""
        return sum(held.bytes for held in self.held.values())

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def holds(self, entry: Entry) -> bool:
        """Whether it is this very file that is known by its key: not one of a catalogue before this one."""
        return self._entries.get(entry.key) is entry

    @property
    def entries(self) -> list[Entry]:
        """All of them, in no particular order."""
        return list(self._entries.values())

    # ---- looking up ------------------------------------------------------------------------------------

    def chain(self, tokens: Tokens) -> list[tuple[Slice, int]]:
        """What covers `tokens` from 0 on without a gap, each with the position up to which it serves this path."""
        return [(node.segment, upto) for node, upto in self._trie.coverage(tokens) if node.segment is not None]

    def reach(self, tokens: Tokens) -> int:
        """Items from 0 on that are covered."""
        chain = self._trie.coverage(tokens)
        return chain[-1][1] if chain else 0

    def checkpoints(self, tokens: Tokens) -> dict[int, Entry]:
        """Those along this path, by position, ascending; the last may be len(tokens)."""
        match = self._trie.match(tokens)
        return {
            node.end: node.checkpoint.entry
            for node in match.nodes
            if node.checkpoint is not None and node.end <= match.length
        }

    def parent_of(self, tokens: Tokens) -> Entry | None:
        """The segment that the next file on this path, which is covered, builds on; None at 0."""
        chain = self.chain(tokens)
        return chain[-1][0].entry if chain else None

    def along(self, tokens: Tokens) -> list[Entry]:
        """All files that serve this path."""
        match = self._trie.match(tokens)
        slices = [node.segment for node in match.nodes]
        slices += [node.checkpoint for node in match.nodes if node.end <= match.length]
        return list(dict.fromkeys(one.entry for one in slices if one is not None))

    def ends(self, most: int) -> list[Entry]:
        """The files that nothing builds on, at most `most`: those used last come first, of equals the furthest."""
        leaves = (entry for entry in self._entries.values() if not entry.children)
        return sorted(leaves, key=lambda entry: (-entry.last_used, -entry.end))[:most]

    # ---- changing --------------------------------------------------------------------------------------

    def add(self, found: Found) -> bool:
        """Take a file in; False where it does not go on from where it says, or all of it is known."""
        record = found.record
        parent = self._entries.get(record.parent) if record.parent else None
        if found.key in self._entries or (record.parent and parent is None) or (not record.parent and record.begin):
            return False
        if parent is not None and not _follows(record, parent):
            return False
        entry = Entry(
            key=found.key,
            kind=record.kind,
            begin=record.begin,
            tokens=unpack(record.tokens),
            parent=parent,
            state=found.state,
            length=found.length,
            checksum=record.checksum,
            last_used=found.last_used,
        )
        path = entry.path
        if not (self._attach(entry, path) if record.kind == "segment" else self._mark(entry, path)):
            return False
        self._entries[entry.key] = entry
        self.held[entry.kind].count += 1
        self.held[entry.kind].bytes += entry.size
        if parent is not None:
            parent.children.add(entry)
        while parent is not None:  # what something builds on was used when that was
            parent.last_used = max(parent.last_used, entry.last_used)
            parent = parent.parent
        return True

    def _attach(self, entry: Entry, path: Tokens) -> bool:
        chain = self._trie.coverage(path)
        if (chain[-1][1] if chain else 0) != entry.begin:
            return False
        before = self._end_slice(chain, path[: entry.begin])
        self._trie.attach(before, entry.tokens, Slice(entry, entry.begin, entry.end))
        return True

    def _mark(self, entry: Entry, path: Tokens) -> bool:
        if self.needs_segments and self.reach(path) < len(path):
            return False
        node = self._trie.insert(path)
        if node.checkpoint is not None:
            return False
        node.checkpoint = Slice(entry, entry.begin, entry.end)
        return True

    def _end_slice(self, chain: list[tuple[SliceNode, int]], path: Tokens) -> SliceNode:
        """The node at the end of a path that `chain` covers; a slice that reaches beyond becomes two."""
        if not chain:
            return self._trie.root
        node = chain[-1][0]
        if node.covers_end == len(path):
            return self._trie.extend(node, path[node.end :])
        whole, before, covers, k = node.segment, node.parent, node.covers, len(path) - node.begin
        assert whole is not None
        assert before is not None
        self._trie.detach(node)
        middle = self._trie.attach(before, covers[:k], Slice(whole.entry, whole.begin, len(path)))
        self._trie.attach(middle, covers[k:], Slice(whole.entry, len(path), whole.end))
        return middle

    def remove(self, entry: Entry) -> list[Entry]:
        """Forget a file and all that build on it, which are returned."""
        order = [entry]
        for one in order:
            order.extend(one.children)
        for one in reversed(order):
            self._forget(one)
        return order

    def _forget(self, entry: Entry) -> None:
        path = entry.path
        if entry.kind == "checkpoint":
            node = self._trie.find(path)
            if node is not None and node.checkpoint is not None:
                node.checkpoint = None
                self._trie.prune(node)
        else:
            loose: list[SliceNode] = []
            for node, _ in reversed(self._trie.coverage(path)):
                if node.segment is None or node.segment.entry is not entry:
                    break
                loose += self._trie.detach(node)
            for node in loose:
                self._trie.prune(node)
        del self._entries[entry.key]
        self.held[entry.kind].count -= 1
        self.held[entry.kind].bytes -= entry.size
        if entry.parent is not None:
            entry.parent.children.discard(entry)

    def used(self, tokens: Tokens, now: float, hits: int = 0) -> list[Entry]:
        """A request came along this path at `now`: returns the files that serve it."""
        entries = self.along(tokens)
        for entry in entries:
            entry.last_used = max(entry.last_used, now)
            entry.hits += hits
        return entries

    def clear(self) -> None:
        """Forget everything."""
        self._trie = Trie()
        self._entries.clear()
        self.held = {"segment": Held(), "checkpoint": Held()}

    def expired(self, before: float) -> list[Entry]:
        """Files that were used last before then, with all that builds on them."""
        return [entry for entry in self._entries.values() if entry.last_used < before]

    # ---- checking --------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raise IntegrityError unless trie and entries agree."""
        self._trie.check_integrity()
        sliced: defaultdict[Entry, list[tuple[int, int]]] = defaultdict(list)
        marked: Counter[Entry] = Counter()
        for node in self._trie.nodes():
            if node.segment is not None:
                sliced[node.segment.entry].append((node.segment.begin, node.segment.end))
                if (node.begin, node.covers_end) != (node.segment.begin, node.segment.end):
                    raise IntegrityError("a slice does not lie where it says")
            if node.checkpoint is not None:
                marked[node.checkpoint.entry] += 1
        for entry in self._entries.values():
            ranges = sorted(sliced.pop(entry, []))
            if entry.kind == "checkpoint":
                if ranges or marked.pop(entry, 0) != 1:
                    raise IntegrityError("a checkpoint is not in the trie just once")
            elif not ranges or ranges[0][0] != entry.begin or ranges[-1][1] != entry.end:
                raise IntegrityError("a segment is not in the trie as a whole")
            elif any(a[1] != b[0] for a, b in pairwise(ranges)):
                raise IntegrityError("the slices of a segment do not follow on one another")
        if sliced or marked:
            raise IntegrityError("the trie holds files that are not listed")
        for kind, amount in self.held.items():
            sizes = [entry.size for entry in self._entries.values() if entry.kind == kind]
            if (amount.count, amount.bytes) != (len(sizes), sum(sizes)):
                raise IntegrityError(f"there are {len(sizes)} {kind}s of {sum(sizes)} bytes, not {amount}")


def _follows(record: Record, parent: Entry) -> bool:
    """Whether a file can begin there: a segment in or behind its parent, a checkpoint with its last item in it."""
    if parent.kind != "segment":
        return False
    if record.kind == "segment":
        return parent.begin < record.begin <= parent.end
    return parent.begin <= record.begin and record.end <= parent.end
