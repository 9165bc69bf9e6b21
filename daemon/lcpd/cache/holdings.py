"""Trie and arena together: making room, dropping payloads, cutting segments in two and adding them.

Owns both.  While it changes payloads, nodes stay; `tidy` then removes those that are not needed any more.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from itertools import count

from lcpd.cache.arena import Arena
from lcpd.cache.eviction import Eviction, PayloadNode
from lcpd.cache.extents import ALIGNMENT
from lcpd.cache.figures import Ages
from lcpd.cache.payloads import CorruptPiece, Payload, PayloadStore
from lcpd.cache.retention import Economics, Kind
from lcpd.cache.trie import IntegrityError, Trie
from lcpd.engine.protocol import Extent, Tokens

log = logging.getLogger(__name__)

Chain = list[tuple[PayloadNode, int]]
"""What `Trie.coverage` finds."""


def reach(chain: Chain) -> int:
    """Position up to which a chain of segments serves its path."""
    return chain[-1][1] if chain else 0


class Holdings:
    """All payloads, where they belong in the trie and where they lie in the arena."""

    def __init__(self, arena: Arena, clock: Callable[[], float]) -> None:
        self.trie: Trie[Payload] = Trie()
        self.store = PayloadStore(arena, clock)
        self.dropped: Counter[tuple[Kind, str]] = Counter()
        """Payloads that went, by kind and reason."""
        self.ages: Ages | None = None
        """Set by whoever wants to be told."""
        self._clock = clock
        self.economics = Economics()
        """May be set anew at any time."""
        self._held: dict[int, Tokens] = {}
        self._numbers = count(1)
        self._loose: list[PayloadNode] = []
        """Nodes that lost something."""

    # ---- room --------------------------------------------------------------------------------------------

    def eviction(self) -> Eviction:
        """A search for room, good for as long as nothing is added."""
        return Eviction(self.trie, self._clock(), self.economics, self.held_nodes())

    def make_room(self, size: int, anchor: Payload | None = None, eviction: Eviction | None = None) -> Extent | None:
        """Reserve `size` bytes, for which what is worth least is dropped; nothing is where that cannot be enough."""
        extent = self.store.reserve(size, anchor)
        if extent is not None:
            return extent
        eviction = eviction or self.eviction()
        if self.store.free_bytes + eviction.evictable < size:
            return None
        while (victim := eviction.next()) is not None:
            node, kind = victim
            self._note_age(node, kind)
            if kind == "segment":
                self.drop_segment(node, "room")
            else:
                self.drop_checkpoint(node, "room")
            extent = self.store.reserve(size, anchor)
            if extent is not None:
                return extent
        return None

    def _note_age(self, node: PayloadNode, kind: Kind) -> None:
        payload = node.segment if kind == "segment" else node.checkpoint
        if self.ages is not None and payload is not None:
            now = self._clock()
            self.ages.evicted(kind, now - payload.since, now - node.last_used)

    # ---- holding -----------------------------------------------------------------------------------------

    def hold(self, tokens: Tokens) -> int:
        """Keep what is known of this path, now or later, whatever else needs room; returns its number."""
        number = next(self._numbers)
        self._held[number] = tokens
        return number

    def release(self, number: int) -> bool:
        """Undo a `hold`; False where there is none of this number."""
        return self._held.pop(number, None) is not None

    def release_all(self) -> None:
        """Undo every `hold`."""
        self._held.clear()

    def holds(self) -> dict[int, Tokens]:
        """The paths that are held, by number."""
        return dict(self._held)

    def held_nodes(self) -> set[PayloadNode]:
        """All nodes on paths that are held."""
        return {node for tokens in self._held.values() for node in self.trie.match(tokens).nodes}

    # ---- dropping ----------------------------------------------------------------------------------------

    def drop_segment(self, node: PayloadNode, reason: str) -> None:
        """Take off the segment of `node`, on which no other one builds."""
        payload = node.segment
        assert payload is not None
        self._loose.extend(self.trie.detach(node))
        self._drop(payload, reason)

    def drop_below(self, node: PayloadNode, reason: str) -> None:
        """Take off the segment of `node` and all that build on it."""
        stack = [node]
        while stack:
            below = stack.pop()
            stack.extend(below.children.values())
            if below.segment is not None:
                self.drop_segment(below, reason)

    def drop_checkpoint(self, node: PayloadNode, reason: str) -> None:
        """Take off the checkpoint of `node`."""
        payload = node.checkpoint
        assert payload is not None
        node.checkpoint = None
        self._loose.append(node)
        self._drop(payload, reason)

    def tidy(self) -> None:
        """Remove nodes that are not needed any more.  Nodes that the caller knows may be gone afterwards."""
        for node in self._loose:
            self.trie.prune(node)
        self._loose.clear()

    # ---- segments ----------------------------------------------------------------------------------------

    def end_segment(self, tokens: Tokens) -> bool:
        """Make the last segment that serves `tokens` end where it stops to do so, by cutting it in two.

        False where that cannot be done.
        """
        chain = self.trie.coverage(tokens)
        if not chain or chain[-1][0].covers_end == reach(chain):
            return True
        node, k = chain[-1][0], reach(chain) - chain[-1][0].begin
        whole, before, covers = node.segment, node.parent, node.covers
        assert whole is not None
        assert before is not None
        try:
            halves = self.store.split(whole, k, self.make_room)
        except CorruptPiece as error:
            log.error("the prompt cache loses a segment and what builds on it: %s", error)
            self.drop_below(node, "corrupt")
            return False
        if halves is None:
            return False
        self.trie.detach(node)
        middle = self.trie.attach(before, covers[:k], halves[0])
        self.trie.attach(middle, covers[k:], halves[1])
        self.store.drop(whole)
        return True

    def add_segment(self, tokens: Tokens, begin: int, payload: Payload) -> PayloadNode | None:
        """Put the segment of tokens [begin, len(tokens)) into the trie, or what of it is not there yet.

        Returns the node at its end; None where it cannot be used, because all of it is there, what it follows on is
        gone, or there is no room to cut: it is dropped then.
        """
        at = reach(self.trie.coverage(tokens))
        if not begin <= at < len(tokens) or not self.end_segment(tokens):
            self.store.drop(payload)
            return None
        if at > begin:  # a path that has the front part in common with this one came first
            rest = self._rest(tokens, payload, at - begin)
            self.store.drop(payload)
            if rest is None:
                return None
            payload = rest
        return self.trie.attach(self.trie.insert(tokens[:at]), tokens[at:], payload)

    def _rest(self, tokens: Tokens, payload: Payload, k: int) -> Payload | None:
        """A new payload without the first `k` items of `payload`, which follows on what is covered of `tokens`."""
        with self.store.pinned(self.trie.coverage(tokens)[-1][0].segment):
            try:
                halves = self.store.split(payload, k, self.make_room)
            except CorruptPiece as error:
                log.error("a segment that was just saved is not taken into the prompt cache: %s", error)
                return None
        if halves is None:
            return None
        self.store.drop(halves[0])
        return halves[1]

    # ---- checking ----------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raise IntegrityError unless the trie is sound and every byte in use belongs to one payload or reservation."""
        self.trie.check_integrity()
        held = [payload for node in self.trie.nodes() for payload in (node.segment, node.checkpoint) if payload]
        if any(payload.pins < 0 or payload.dropped for payload in held):
            raise IntegrityError("a payload was unpinned too often, or is still offered after it was dropped")
        if any(payload.pins < 1 or not payload.dropped for payload in self.store.lingering):
            raise IntegrityError("a payload lingers that is not pinned, or is still offered")
        extents = [piece.extent for payload in [*held, *self.store.lingering] for piece in payload.parts.values()]
        end = used = 0
        for extent in sorted([*extents, *self.store.reserved], key=lambda extent: extent.offset):
            if extent.offset < end:
                raise IntegrityError(f"{extent} overlaps another one")
            end = extent.offset + extent.size
            used += -(-extent.size // ALIGNMENT) * ALIGNMENT
        for kind, amount in self.store.held.items():
            sizes = [payload.bytes for payload in held if payload.kind == kind]
            if (amount.count, amount.bytes) != (len(sizes), sum(sizes)):
                raise IntegrityError(f"there are {len(sizes)} {kind}s of {sum(sizes)} bytes, not {amount}")
        arena = self.store.arena
        if used != arena.used or used > arena.size:
            raise IntegrityError(f"{arena.used} bytes of {arena.size} are in use, {used} are accounted for")

    def _drop(self, payload: Payload, reason: str) -> None:
        self.dropped[payload.kind, reason] += 1
        self.store.drop(payload)
