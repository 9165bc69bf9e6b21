"""In which order payloads are given up when there is no room: by worth, as far as the structure allows."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection
from itertools import count

from lcpd.cache.payloads import Payload
from lcpd.cache.retention import Candidate, Economics, Kind, worth
from lcpd.cache.trie import Node, Trie

PayloadNode = Node[Payload]


class Eviction:
    """One search for room.  The trie may only lose what `next` names while it is in use.

    A segment is named after all segments that build on it and, where checkpoints are needed to go on at all, after
    all checkpoints that need it.  Neither it nor a checkpoint is named while it is pinned, or its node is held.
    """

    def __init__(
        self, trie: Trie[Payload], now: float, economics: Economics, held: Collection[PayloadNode] = ()
    ) -> None:
        """Costs nothing; the first question costs one walk over all nodes."""
        self._held = frozenset(held)
        self._trie = trie
        self._scanned = False
        self._rolls_back = False
        """Whether a path can go on from anywhere: nothing needs a checkpoint."""
        self._evictable = 0
        self._now = now
        self._economics = economics
        self._segments: Counter[PayloadNode] = Counter()
        """How many there are below a node."""
        self._checkpoints: Counter[PayloadNode] = Counter()
        self._numbers = count()
        self._heap: list[tuple[float, float, int, PayloadNode, Kind]] = []

    @property
    def evictable(self) -> int:
        """Bytes of all that could still be given up."""
        self._scan()
        return self._evictable

    def next(self) -> tuple[PayloadNode, Kind] | None:
        """What is to be dropped next, which the caller does; None where nothing is left."""
        self._scan()
        while self._heap:
            known, _, _, node, kind = heapq.heappop(self._heap)
            payload = _payload(node, kind)
            if payload is None or self._stays(node, payload):  # None: listed twice, and dropped the first time
                continue
            if self._worth(node, kind) > known:  # a neighbour is gone on which it depended
                self._push(node, kind)
                continue
            self._evictable -= payload.bytes
            self._forget(node, kind)
            return node, kind
        return None

    def _stays(self, node: PayloadNode, payload: Payload | None) -> bool:
        return payload is not None and (payload.pins > 0 or node in self._held)

    def _scan(self) -> None:
        if self._scanned:
            return
        self._scanned = True
        needed: set[PayloadNode] = set()  # something that is pinned lies below them
        nodes = list(self._trie.nodes())
        self._rolls_back = all(node.checkpoint is None for node in nodes)
        for node in reversed(nodes):
            parent = node.parent
            assert parent is not None
            segment, checkpoint = node.segment, node.checkpoint
            self._segments[parent] += self._segments[node] + (segment is not None)
            self._checkpoints[parent] += self._checkpoints[node] + (checkpoint is not None)
            if node in needed or self._stays(node, segment) or self._stays(node, checkpoint):
                needed.add(parent)
            elif segment is not None:
                self._evictable += segment.bytes
            if checkpoint is not None and not self._stays(node, checkpoint):
                self._evictable += checkpoint.bytes
        for node in nodes:
            if node.checkpoint is not None:
                self._push(node, "checkpoint")
            self._push_segment(node)

    def _push_segment(self, node: PayloadNode) -> None:
        """List the segment of `node`, if nothing that is left needs it."""
        if node.segment is not None and not self._segments[node] and not self._serves(node):
            self._push(node, "segment")

    def _serves(self, node: PayloadNode) -> int:
        """Checkpoints at or below `node`."""
        return self._checkpoints[node] + (node.checkpoint is not None)

    def _push(self, node: PayloadNode, kind: Kind) -> None:
        heapq.heappush(self._heap, (self._worth(node, kind), node.last_used, next(self._numbers), node, kind))

    def _worth(self, node: PayloadNode, kind: Kind) -> float:
        payload = _payload(node, kind)
        assert payload is not None
        if kind == "segment":
            # Without a checkpoint to go on from there a segment is of no use.
            tokens = len(node.covers) if self._rolls_back else 0
            size, outrun = payload.bytes, False
        else:
            outrun = self._checkpoints[node] > 0
            size = payload.bytes + (0 if outrun else self._only_for(node))
            tokens = node.end - _checkpoint_before(node)
        branches = len(node.children)
        candidate = Candidate(kind, size, tokens, node.last_used, node.hits, branches, outrun, payload.on_disk)
        return worth(candidate, self._now, self._economics)

    def _only_for(self, node: PayloadNode) -> int:
        """Bytes of the segments that no other checkpoint than that of `node`, which is the last one, needs."""
        size = 0
        above: PayloadNode | None = node
        while above is not None and self._serves(above) == 1:
            size += above.segment.bytes if above.segment is not None else 0
            above = above.parent
        return size

    def _forget(self, node: PayloadNode, kind: Kind) -> None:
        counts = self._segments if kind == "segment" else self._checkpoints
        above = node.parent
        while above is not None:
            counts[above] -= 1
            above = above.parent
        if kind == "checkpoint":
            self._push_freed(node)
            return
        above = node.parent
        while above is not None and above.segment is None:
            above = above.parent
        if above is not None:
            self._push_segment(above)

    def _push_freed(self, node: PayloadNode) -> None:
        """List what is worth less now that the checkpoint of `node` goes: its segments, the checkpoint before it."""
        at: PayloadNode | None = node
        while at is not None and self._checkpoints[at] == 0:
            if at is not node and at.checkpoint is not None:
                self._push(at, "checkpoint")
                return
            if at.segment is not None and not self._segments[at]:
                self._push(at, "segment")
            at = at.parent


def _payload(node: PayloadNode, kind: Kind) -> Payload | None:
    return node.segment if kind == "segment" else node.checkpoint


def _checkpoint_before(node: PayloadNode) -> int:
    above = node.parent
    while above is not None and above.checkpoint is None:
        above = above.parent
    return above.end if above is not None else 0
