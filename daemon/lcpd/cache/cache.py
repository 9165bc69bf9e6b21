"""The prompt cache: what is known of token paths, and the state bytes in the arena that go with it.

Nothing here fails for want of room: it answers with less.  Segments are cut in two only when somebody wants to save
what follows on a part of one; until then a path that turns off within a segment uses its front part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from lcpd.cache.arena import Arena
from lcpd.cache.eviction import PayloadNode
from lcpd.cache.figures import Ages, RamFigures
from lcpd.cache.history import TRIVIAL, History, LossReason, Past, went_on
from lcpd.cache.holdings import Holdings, reach
from lcpd.cache.payloads import Payload
from lcpd.cache.retention import Economics, Kind
from lcpd.cache.stats import CacheStats, figures_of, stats_of
from lcpd.cache.tree import Tree, draw
from lcpd.cache.trie import Match, Trie
from lcpd.engine.protocol import Cut, Extent, Piece, Segment, Tokens


@dataclass(eq=False)
class Pin:
    """What a command in flight names; made by `PromptCache.pin`."""

    tokens: Tokens
    end: int
    payloads: list[Payload] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Resident:
    """A piece of state in the arena."""

    kind: Kind
    begin: int
    """First item of a segment; of a checkpoint its position."""
    tokens: Tokens
    """The path up to its end; it may go on from the path that was asked for in another way."""
    payload: Payload
    forks: bool
    """Of a checkpoint: whether paths part there."""

    @property
    def end(self) -> int:
        """Position after its last item."""
        return len(self.tokens)


class Observer(Protocol):
    """Who wants to know what comes into the prompt cache, and is called from within its methods."""

    def kept(self, tokens: Tokens) -> None:
        """The state at the end of this path is in the arena now."""

    def used(self, tokens: Tokens) -> None:
        """A request came along this path."""


class PromptCache:
    """Owner of the trie and of all that lies in the arena.  For one thread."""

    def __init__(self, arena: Arena, segment_chunk: int = 2048, clock: Callable[[], float] = time.monotonic) -> None:
        """`segment_chunk`: tokens of the longest segment that `plan_save` makes."""
        self._holdings = Holdings(arena, clock)
        self._store = self._holdings.store
        self._trie = self._holdings.trie
        self._history = History(clock=clock)
        self._chunk = segment_chunk
        self._clock = clock
        self._segment_bytes = (0, 0)
        self._checkpoint_bytes = 0
        self.observer: Observer | None = None
        """Set by whoever wants to be told."""

    def configure(self, *, segment_bytes: tuple[int, int], checkpoint_bytes: int) -> None:
        """Take the bounds from ModelInfo.  Nothing is reserved for a kind of state whose bound is 0, as at first."""
        self._segment_bytes = segment_bytes
        self._checkpoint_bytes = checkpoint_bytes

    def measured(self, seconds_per_token: float) -> None:
        """What computing a token takes on this machine: the measure of what keeping it is worth."""
        self._holdings.economics = replace(self._holdings.economics, seconds_per_token=seconds_per_token)

    @property
    def economics(self) -> Economics:
        """What computing costs on this machine."""
        return self._holdings.economics

    @property
    def needs_segments(self) -> bool:
        """Whether a sequence's state is more than its checkpoint; not so on pure recurrent models."""
        return self._segment_bytes != (0, 0) or not self._checkpoint_bytes

    # ---- what is there -----------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes of the arena."""
        return self._store.arena.size

    @property
    def free(self) -> int:
        """Bytes of the arena for which nothing has to be given up."""
        return self._store.free_bytes

    def checkpoints_on(self, tokens: Tokens) -> list[int]:
        """Positions of the checkpoints along this path, ascending; the last may be len(tokens)."""
        return [node.end for node in _checkpoint_nodes(self._trie.match(tokens))]

    def checkpoint(self, tokens: Tokens, position: int) -> Piece | None:
        """The state after exactly tokens[:position]."""
        node = self._trie.find(tokens[:position])
        return node.checkpoint.piece if node is not None and node.checkpoint is not None else None

    def covered(self, tokens: Tokens) -> int:
        """Tokens from 0 on whose segments are in the arena, without a gap.

        Where there is no need of segments: up to the last checkpoint.
        """
        if not self.needs_segments:
            return max(self.checkpoints_on(tokens), default=0)
        return reach(self._trie.coverage(tokens))

    def resumable(self, tokens: Tokens, rolls_back: bool) -> int:
        """How far a path can be restored from the arena alone.  `rolls_back`: no checkpoint is needed to go on."""
        covered = self.covered(tokens)
        return covered if rolls_back else max((at for at in self.checkpoints_on(tokens) if at <= covered), default=0)

    def segments(self, tokens: Tokens, begin: int, end: int) -> list[Segment]:
        """Those that cover [begin, end), ascending, each beginning where the one before ends.

        The first may begin below `begin`, the last may end above `end`.  ValueError where `end` > covered(tokens).
        """
        if not self.needs_segments:
            return []
        chain = self._trie.coverage(tokens[:end])
        if reach(chain) < end:
            raise ValueError(f"tokens up to {end} were asked for, but only {reach(chain)} are in the prompt cache")
        return [
            Segment(node.begin, node.covers_end, node.segment.piece)
            for node, upto in chain
            if upto > begin and node.segment is not None
        ]

    def pieces(self) -> Iterator[Piece]:
        """All that is offered, in no particular order."""
        for node in self._trie.nodes():
            for payload in (node.segment, node.checkpoint):
                if payload is not None:
                    yield payload.piece

    def tree(self, slots: Iterable[Tokens] = (), limit: int = 200) -> Tree:
        """What is known and where it is, as plain data; `slots`: the tokens that each slot holds."""
        return draw(self._trie, list(slots), self._holdings.held_nodes(), self._clock(), limit)

    def stats(self) -> CacheStats:
        """Walks over all nodes."""
        return stats_of(self._holdings, self._history)

    def figures(self) -> RamFigures:
        """The same for the metrics, at a cost that does not grow with what is there."""
        return figures_of(self._holdings)

    def tell_ages(self, ages: Ages) -> None:
        """Tell `ages` from now on."""
        self._holdings.ages = ages

    # ---- what there was ----------------------------------------------------------------------------------

    def past(self, tokens: Tokens) -> Past:
        """What is remembered of a prompt, whether or not anything is left of its state.  Changes nothing."""
        past = self._history.past(tokens)
        match = self._trie.match(tokens)  # knows more where the arena outlived the daemon
        return replace(past, length=match.length, went_on=went_on(match)) if match.length > past.length else past

    def branches_on(self, tokens: Tokens) -> list[int]:
        """Positions at which earlier prompts parted from this one, ascending; see `History.branches_on`."""
        return self._history.branches_on(tokens)

    def remember(self, tokens: Tokens, prompt: int) -> None:
        """These tokens were computed, of which the first `prompt` were a prompt and the rest its reply."""
        self._history.remember(tokens, prompt)

    def lose(self, tokens: Tokens, begin: int, reason: LossReason, detail: str = "") -> None:
        """The state of tokens from `begin` on was lost, and not for want of room: cache reports are to say so."""
        self._history.lose(tokens, begin, reason, detail)

    # ---- holding -----------------------------------------------------------------------------------------

    def hold(self, tokens: Tokens) -> int:
        """Never give up for want of room what is known of this path, now or later; returns what `release` takes.

        What is held goes on counting against the arena's size: too much of it leaves no room for anything else.
        """
        return self._holdings.hold(tokens)

    def release(self, number: int) -> bool:
        """Undo a `hold`; False where there is none of this number."""
        return self._holdings.release(number)

    def holds(self) -> dict[int, Tokens]:
        """The paths that are held, by number."""
        return self._holdings.holds()

    # ---- using it ----------------------------------------------------------------------------------------

    def touch(self, tokens: Tokens) -> None:
        """A request came along this path: counts for retention."""
        match = self._trie.match(tokens)
        if match.length >= TRIVIAL and self._holdings.ages is not None:
            self._holdings.ages.used_again(self._clock() - match.nodes[-1].last_used)
        self._mark_used(match, 1)
        if self.observer is not None:
            self.observer.used(tokens)

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
        self._history.lose(pin.tokens[: pin.end], begin, "damaged")
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
        new = node.checkpoint is None
        if new:
            node.checkpoint = self._store.keep(extent, piece, "checkpoint")
        else:
            self._store.give_back(extent)
        self._mark_used(self._trie.match(tokens), 0)
        if new and self.observer is not None:
            self.observer.kept(tokens)

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
            payload = self._store.keep(cut.extent, piece, "segment")
            if last is not None and last.end == cut.begin:  # what was just added is the end of what is covered
                last = self._trie.attach(last, tokens[cut.begin : cut.end], payload)
            else:
                last = self._holdings.add_segment(tokens[: cut.end], cut.begin, payload)
        end = last.end if last is not None else 0
        self._mark_used(self._trie.match(tokens[:end]), 0)
        self._holdings.tidy()
        if end and self.observer is not None:
            self.observer.kept(tokens[:end])

    def reserve(self, tokens: Tokens, size: int, evict: bool = True) -> Extent | None:
        """Room for `size` bytes of state that goes on from this path, which stays until they are kept or given back.

        What is worth least is evicted for it, unless nothing is to be; None where there is none.
        """
        chain = self._trie.coverage(tokens)
        anchor = chain[-1][0].segment if chain else None
        with self._store.pinned(anchor):  # or it might go for the room of what goes on from it
            extent = self._holdings.make_room(size, anchor) if evict else self._store.reserve(size, anchor)
        self._holdings.tidy()
        return extent

    def give_back(self, extent: Extent) -> None:
        """A reserved extent will not be written to any more.  ValueError where it is not reserved."""
        self._store.give_back(extent)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless the trie is sound and every byte in use belongs to one payload or reservation."""
        self._holdings.check_integrity()

    # ---- copying it, or getting rid of it ----------------------------------------------------------------

    def residents(self, tokens: Tokens) -> list[Resident]:
        """What the arena holds along a path: the segments that cover it from 0 on without a gap, then checkpoints."""
        found: list[Resident] = []
        for node, upto in self._trie.coverage(tokens):
            assert node.segment is not None
            path = np.concatenate([tokens[: node.begin], node.covers]) if node.covers_end > upto else tokens[:upto]
            found.append(Resident("segment", node.begin, path, node.segment, forks=False))
        for node in _checkpoint_nodes(self._trie.match(tokens)):
            assert node.checkpoint is not None
            forks = len(node.children) > 1
            found.append(Resident("checkpoint", node.end, tokens[: node.end], node.checkpoint, forks))
        return found

    def view(self, payload: Payload) -> memoryview:
        """The bytes of a payload that is pinned, or of one that nothing has happened to meanwhile."""
        return self._store.arena.view(payload.piece.extent)

    def room(self, extent: Extent) -> memoryview:
        """The writable bytes of a reserved extent."""
        return self._store.arena.view(extent)

    def ends(self) -> list[Tokens]:
        """The paths that nothing goes on from."""
        return [node.path for node in self._trie.nodes() if not node.children]

    def purge(self) -> int:
        """Drop everything that is offered, pinned conversations too, and forget all prompts; returns the bytes.

        What commands in flight read or write goes on being theirs.
        """
        self._holdings.release_all()
        size = 0
        for node in list(self._trie.nodes())[::-1]:
            for payload in (node.segment, node.checkpoint):
                size += payload.bytes if payload is not None else 0
            if node.segment is not None:
                self._holdings.drop_segment(node, "purged")
            if node.checkpoint is not None:
                self._holdings.drop_checkpoint(node, "purged")
        self._holdings.tidy()
        self._history = History(clock=self._clock)
        return size

    # ---- carrying it over to the next daemon -------------------------------------------------------------

    @property
    def trie(self) -> Trie[Payload]:
        """All that is known; not to be changed."""
        return self._trie

    @property
    def changes(self) -> int:
        """Payloads that came or went so far."""
        return self._store.changes

    def install(self, trie: Trie[Payload]) -> None:
        """Take over a trie whose payloads lie in the arena.  ValueError unless nothing was kept so far."""
        if self._trie.root.children:
            raise ValueError("the prompt cache is in use already")
        for node in trie.nodes():
            if node.segment is not None:
                self._store.take_in(node.segment, "segment")
            if node.checkpoint is not None:
                self._store.take_in(node.checkpoint, "checkpoint")
        self._trie.take_over(trie)

    def payloads(self) -> list[Payload]:
        """All that are offered now."""
        return [payload for node in self._trie.nodes() for payload in (node.segment, node.checkpoint) if payload]

    def pinned(self, payload: Payload) -> AbstractContextManager[None]:
        """Keep the bytes of a payload for the time being."""
        return self._store.pinned(payload)

    def condemn(self, payload: Payload) -> None:
        """Its bytes proved not to be those that were stored: it is offered no more, nor are segments that build on it.

        Nothing happens to one that is not offered.
        """
        for node in list(self._trie.nodes()):
            if node.segment is payload:
                tokens = np.concatenate([node.path[: node.begin], node.covers])
                self._history.remember(tokens, len(tokens))
                self._history.lose(tokens, node.begin, "damaged")
                self._holdings.drop_below(node, "corrupt")
            elif node.checkpoint is payload:
                self._holdings.drop_checkpoint(node, "corrupt")
        self._holdings.tidy()

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

    def _mark_used(self, match: Match[Payload], hits: int) -> None:
        now = self._clock()
        for node in match.nodes:
            node.last_used = now
            node.hits += hits


def _checkpoint_nodes(match: Match[Payload]) -> list[PayloadNode]:
    """Those on the path that end with a checkpoint."""
    return [node for node in match.nodes if node.checkpoint is not None and node.end <= match.length]
