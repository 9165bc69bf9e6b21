"""The prompt cache: what is known of token paths, and the state bytes in the arena that go with it.

Nothing here fails for want of room: it answers with less.  Segments are cut in two only when somebody wants to save
what follows on a part of one; until then a path that turns off within a segment uses its front part.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from lcpd.cache.arena import Arena
from lcpd.cache.eviction import PayloadNode
from lcpd.cache.holdings import Holdings, reach
from lcpd.cache.payloads import Payload
from lcpd.cache.trie import Match
from lcpd.engine.protocol import Cut, Extent, Piece, Segment, Tokens


@dataclass(frozen=True)
class CacheStats:
    """What the cache holds now."""

    size: int
    """Bytes of the arena."""
    used: int
    """Bytes that are in use for the four kinds below, each extent rounded up to the arena's alignment."""
    segment_bytes: int
    checkpoint_bytes: int
    reserved_bytes: int
    """Promised to commands in flight."""
    lingering_bytes: int
    """No longer offered, but a command in flight still reads them."""
    segments: int
    checkpoints: int
    tokens: int
    """Covered by segments; shared ones once."""
    nodes: int
    dropped: dict[str, int]
    """Payloads that went since the start: "segment" and "checkpoint" for want of room, "discarded", "corrupt"."""


@dataclass(eq=False)
class Pin:
    """What a command in flight names; made by `PromptCache.pin`."""

    tokens: Tokens
    end: int
    payloads: list[Payload] = field(default_factory=list)


class PromptCache:
    """Owner of the trie and of all that lies in the arena.  For one thread."""

    def __init__(self, arena: Arena, segment_chunk: int = 2048, clock: Callable[[], float] = time.monotonic) -> None:
        """`segment_chunk`: tokens of the longest segment that `plan_save` makes."""
        self._holdings = Holdings(arena, clock)
        self._store = self._holdings.store
        self._trie = self._holdings.trie
        self._chunk = segment_chunk
        self._clock = clock
        self._segment_bytes = (0, 0)
        self._checkpoint_bytes = 0

    def configure(self, *, segment_bytes: tuple[int, int], checkpoint_bytes: int) -> None:
        """Take the bounds from ModelInfo.  Nothing is reserved for a kind of state whose bound is 0, as at first."""
        self._segment_bytes = segment_bytes
        self._checkpoint_bytes = checkpoint_bytes

    # ---- what is there -----------------------------------------------------------------------------------

    def checkpoints_on(self, tokens: Tokens) -> list[int]:
        """Positions of the checkpoints along this path, ascending; the last may be len(tokens)."""
        return [node.end for node in _checkpoint_nodes(self._trie.match(tokens))]

    def checkpoint(self, tokens: Tokens, position: int) -> Piece | None:
        """The state after exactly tokens[:position]."""
        node = self._trie.find(tokens[:position])
        return node.checkpoint.piece if node is not None and node.checkpoint is not None else None

    def covered(self, tokens: Tokens) -> int:
        """Tokens from 0 on whose segments are in the arena, without a gap."""
        return reach(self._trie.coverage(tokens))

    def segments(self, tokens: Tokens, begin: int, end: int) -> list[Segment]:
        """Those that cover [begin, end), ascending, each beginning where the one before ends.

        The first may begin below `begin`, the last may end above `end`.  ValueError where `end` > covered(tokens).
        """
        chain = self._trie.coverage(tokens[:end])
        if reach(chain) < end:
            raise ValueError(f"tokens up to {end} were asked for, but only {reach(chain)} are in the prompt cache")
        return [
            Segment(node.begin, node.covers_end, node.segment.piece)
            for node, upto in chain
            if upto > begin and node.segment is not None
        ]

    def stats(self) -> CacheStats:
        """Walks over all nodes."""
        nodes = list(self._trie.nodes())
        segments = [node.segment for node in nodes if node.segment is not None]
        checkpoints = [node.checkpoint for node in nodes if node.checkpoint is not None]
        return CacheStats(
            size=self._store.arena.size,
            used=self._store.arena.used,
            segment_bytes=sum(payload.bytes for payload in segments),
            checkpoint_bytes=sum(payload.bytes for payload in checkpoints),
            reserved_bytes=sum(extent.size for extent in self._store.reserved),
            lingering_bytes=sum(payload.bytes for payload in self._store.lingering),
            segments=len(segments),
            checkpoints=len(checkpoints),
            tokens=sum(len(node.covers) for node in nodes),
            nodes=len(nodes),
            dropped=dict(self._holdings.dropped),
        )

    # ---- using it ----------------------------------------------------------------------------------------

    def touch(self, tokens: Tokens) -> None:
        """A request came along this path: counts for retention."""
        self._mark_used(tokens, 1)

    def pin(self, tokens: Tokens, end: int) -> Pin:
        """Keep the bytes of what a command reads: the segments below `end` and the checkpoint at exactly `end`.

        Whatever happens to them in the cache meanwhile, their extents stay valid until `unpin`.
        """
        pin = Pin(tokens, end)
        pin.payloads.extend(node.segment for node, _ in self._trie.coverage(tokens[:end]) if node.segment is not None)
        node = self._trie.find(tokens[:end])
        if node is not None and node.checkpoint is not None:
            pin.payloads.append(node.checkpoint)
        for payload in pin.payloads:
            self._store.pin(payload)
        return pin

    def unpin(self, pin: Pin) -> None:
        """The command is over.  A second time does nothing."""
        for payload in pin.payloads:
            self._store.unpin(payload)
        pin.payloads.clear()

    def discard(self, pin: Pin, begin: int = 0) -> None:
        """What a command in flight named proved unusable: the segments of [begin, end) and the checkpoint at the end.

        They are offered no more, nor is what builds on them; their bytes are freed when nobody has them pinned.
        """
        for node, upto in self._trie.coverage(pin.tokens[: pin.end]):
            if upto > begin and node.segment in pin.payloads:
                self._holdings.drop_below(node, "discarded")
                break
        end = self._trie.find(pin.tokens[: pin.end])
        if end is not None and end.checkpoint is not None and end.checkpoint in pin.payloads:
            self._holdings.drop_checkpoint(end, "discarded")
        self._holdings.tidy()

    # ---- adding to it ------------------------------------------------------------------------------------

    def reserve_checkpoint(self) -> Extent | None:
        """Room for a checkpoint, for which what is worth least is evicted; None where there is none.

        Goes back by `add_checkpoint` or `give_back`.
        """
        if not self._checkpoint_bytes:
            return None
        extent = self._holdings.make_room(self._checkpoint_bytes)
        self._holdings.tidy()
        return extent

    def add_checkpoint(self, tokens: Tokens, extent: Extent, piece: Piece | None) -> None:
        """Keep the state after exactly `tokens`, which was written into the front of the reserved `extent`.

        Without a piece, and where there is one for this path already, the extent is given back.
        """
        if piece is None or not len(tokens):
            self._store.give_back(extent)
            return
        node = self._trie.insert(tokens)
        if node.checkpoint is None:
            node.checkpoint = self._store.keep(extent, piece)
        else:
            self._store.give_back(extent)
        self._mark_used(tokens, 0)

    def plan_save(self, tokens: Tokens, end: int) -> list[Cut]:
        """Ranges of tokens[:end] that are not in the arena, with room reserved for them.

        Ascending, without gaps, the first begins at covered(tokens[:end]); fewer than all where room lacks.  All of
        them go back by `add_segments` or `give_back`; until then what they follow on is not evicted.
        """
        if self._segment_bytes == (0, 0):
            return []
        tokens = tokens[:end]
        if self.covered(tokens) == len(tokens):
            return []
        # The new segments must not push out the checkpoint without which they are of no use.
        checkpoints = _checkpoint_nodes(self._trie.match(tokens))
        with self._store.pinned(*(node.checkpoint for node in checkpoints[-1:])):
            cuts = self._reserve_cuts(tokens) if self._holdings.end_segment(tokens) else []
        self._holdings.tidy()
        return cuts

    def add_segments(self, tokens: Tokens, cuts: list[Cut], segments: list[Segment]) -> None:
        """Keep what Saved brought for `cuts`, which `plan_save` made; room that was not needed is given back."""
        pieces = {(segment.begin, segment.end): segment.piece for segment in segments}
        last: PayloadNode | None = None
        for cut in cuts:
            piece = pieces.get((cut.begin, cut.end))
            if piece is None or cut.end > len(tokens):
                self._store.give_back(cut.extent)
                continue
            payload = self._store.keep(cut.extent, piece)
            if last is not None and last.end == cut.begin:  # what was just added is the end of what is covered
                last = self._trie.attach(last, tokens[cut.begin : cut.end], payload)
            else:
                last = self._holdings.add_segment(tokens[: cut.end], cut.begin, payload)
        if last is not None:
            self._mark_used(tokens[: last.end], 0)
        self._holdings.tidy()

    def give_back(self, extent: Extent) -> None:
        """A reserved extent will not be written to any more.  ValueError where it is not reserved."""
        self._store.give_back(extent)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless the trie is sound and every byte in use belongs to one payload or reservation."""
        self._holdings.check_integrity()

    # ---- details -----------------------------------------------------------------------------------------

    def _reserve_cuts(self, tokens: Tokens) -> list[Cut]:
        chain = self._trie.coverage(tokens)
        anchor = chain[-1][0].segment if chain else None
        fixed, per_token = self._segment_bytes
        eviction = self._holdings.eviction()
        cuts: list[Cut] = []
        begin = reach(chain)
        with self._store.pinned(anchor):
            for end in self._cut_ends(tokens, begin):
                extent = self._holdings.make_room(fixed + per_token * (end - begin), anchor, eviction)
                if extent is None:
                    break
                cuts.append(Cut(begin, end, extent))
                begin = end
        return cuts

    def _cut_ends(self, tokens: Tokens, begin: int) -> list[int]:
        """Where segments from `begin` on are to end: where other paths turn off, or are likely to."""
        match = self._trie.match(tokens)
        forks = [node.end for node in match.nodes if len(node.children) > 1 and node.end < match.length]
        checkpoints = [node.end for node in _checkpoint_nodes(match)]
        ends: list[int] = []
        for stop in sorted({*forks, *checkpoints, match.length, len(tokens)}):
            if stop > begin:
                ends.extend(range(begin + self._chunk, stop, self._chunk))
                ends.append(stop)
                begin = stop
        return ends

    def _mark_used(self, tokens: Tokens, hits: int) -> None:
        now = self._clock()
        for node in self._trie.match(tokens).nodes:
            node.last_used = now
            node.hits += hits


def _checkpoint_nodes(match: Match[Payload]) -> list[PayloadNode]:
    """Those on the path that end with a checkpoint."""
    return [node for node in match.nodes if node.checkpoint is not None and node.end <= match.length]
