"""Brings token paths from RAM to disk, piece by piece, within what may be written and how fast."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator
from typing import Literal

from lcpd.cache import loading
from lcpd.cache.arena import checksum
from lcpd.cache.blob import BlobError
from lcpd.cache.cache import PromptCache, Resident
from lcpd.cache.catalogue import Entry, Found, blocks
from lcpd.cache.figures import Limits
from lcpd.cache.pending import WriteBudget, worth_writing
from lcpd.cache.record import Record, encode
from lcpd.cache.shelf import Shelf, to_the_end
from lcpd.cache.space import Space
from lcpd.cache.store import StoreError
from lcpd.config.sizes import readable_size
from lcpd.daemon_thread import DaemonThread
from lcpd.engine.protocol import Tokens, pack

log = logging.getLogger(__name__)
_PART = 4 << 20
"""Bytes that are written between two rests."""
_REST = 3
"""While replies run, writing rests for so many times as long as it works."""
_LOOK = 0.05
"""Seconds between two looks at whether replies run, while something is written."""


Outcome = Literal["done", "stop", "changed"]
"""Of writing a piece: it is on disk; nothing of the path from it on can be; what there is of the path has changed, and
is to be looked at again."""


class Pace:
    """How hard the writer may write; read by its thread."""

    def __init__(self) -> None:
        self.busy = False
        """Whether replies run."""

    def parts(self, data: memoryview) -> Iterator[memoryview]:
        """The data in parts, with rests in between while replies run."""
        for begin in range(0, len(data), _PART):
            begun = time.monotonic()
            yield data[begin : begin + _PART]
            if self.busy:
                time.sleep(_REST * (time.monotonic() - begun))


class Writer:
    """Writes.  For one event loop."""

    def __init__(
        self,
        shelf: Shelf,
        space: Space,
        cache: PromptCache,
        limits: Limits,
        thread: DaemonThread,
        reading: Collection[Entry],
        busy: Callable[[], bool],
        wall: Callable[[], float],
        on_written: Callable[[], None],
    ) -> None:
        """`thread`: the one that writes.  `reading`: files that are about to be read, which stay.

        `busy`: whether replies run.  `wall`: unix seconds.  `on_written`: the disk works.
        """
        self._shelf = shelf
        self._space = space
        self._cache = cache
        self._limits = limits
        self._thread = thread
        self._reading = reading
        self._busy = busy
        self._wall = wall
        self._on_written = on_written
        self.pace = Pace()
        self.budget = WriteBudget(limits.budget)

    async def write_path(self, tokens: Tokens) -> None:
        """Write what of a path is in RAM and not on disk, as far as limits allow.  Raises StoreError.

        Counts a path ("gone") whose end neither RAM nor the disk has any more.
        """
        gone, purges = False, self._space.purges
        outcome: Outcome = "changed"
        while outcome == "changed" and purges == self._space.purges:
            gone = gone or self._is_gone(tokens)
            outcome = await self._write_what_is_there(tokens)
        self._shelf.counts.skipped["gone"] += gone and purges == self._space.purges

    def _is_gone(self, tokens: Tokens) -> bool:
        catalogue, end = self._shelf.catalogue, len(tokens)
        on_disk = catalogue.reach(tokens) == end if self._shelf.rolls_back else end in catalogue.checkpoints(tokens)
        return not on_disk and self._cache.resumable(tokens, self._shelf.rolls_back) < end

    async def _write_what_is_there(self, tokens: Tokens) -> Outcome:
        residents = self._cache.residents(tokens)
        there = self._shelf.catalogue.checkpoints(tokens)
        covered = self._cache.covered(tokens)
        checkpoints = [one for one in residents if one.kind == "checkpoint" and one.end <= covered]
        for one in checkpoints:
            one.payload.on_disk = one.end in there
        chosen = worth_writing(
            [(one.end, one.forks) for one in checkpoints],
            list(there),
            self._limits.interval // 4,
        )
        upto = len(tokens) if self._shelf.rolls_back else max(chosen, default=0)
        for one in residents:
            outcome: Outcome = "done"
            if one.kind == "segment" and one.begin < upto:
                outcome = await self._write_segment(one)
            elif one.kind == "checkpoint" and one.end in chosen:
                outcome = await self._write_checkpoint(one)
            if outcome != "done":
                return outcome
        return "done"

    async def _write_segment(self, one: Resident) -> Outcome:
        reach = self._shelf.catalogue.reach(one.tokens)
        one.payload.on_disk = reach >= one.end
        if one.payload.on_disk:
            return "done"
        if one.begin > reach:
            return "changed"  # what it follows on went from the disk while this path was written
        parent = self._shelf.catalogue.parent_of(one.tokens[:reach])
        return await self._write(one, reach, parent)

    async def _write_checkpoint(self, one: Resident) -> Outcome:
        if not self._shelf.catalogue.needs_segments:
            return await self._write(one, 0, None)
        if self._shelf.catalogue.reach(one.tokens) < one.end:
            return "changed"  # as above
        return await self._write(one, one.end - 1, self._shelf.catalogue.parent_of(one.tokens))

    async def _write(self, one: Resident, begin: int, parent: Entry | None) -> Outcome:
        """Write items [begin, end) of a segment, or a checkpoint."""
        payload = one.payload
        if payload.dropped:
            return "changed"
        with self._cache.pinned(payload):
            state, hashed = self._cache.view(payload), payload.piece.checksum
            if one.kind == "segment" and begin > one.begin:
                rest = await self._rest(state, begin - one.begin, one.end - one.begin)
                if rest is None:
                    return "stop"
                state, hashed = rest
            record = Record(
                fingerprint=self._shelf.fingerprint,
                kind=one.kind,
                parent=parent.key if parent is not None else "",
                begin=begin,
                tokens=pack(one.tokens[begin:]),
                checksum=hashed,
            )
            header = encode(record, len(state))
            length = len(header) + len(state)
            purges = self._space.purges
            if not await self._admits(length, parent):
                return "stop"
            await self._put(record.key, header, state)
        self._shelf.counts.written += length
        self.budget.note(length, self._wall())
        self._on_written()
        found = Found(record.key, record, len(state), length, self._wall())
        if purges != self._space.purges or not self._shelf.catalogue.add(found):
            # What it builds on is gone by now.
            self._space.condemn(record.key, blocks(length))
            return "stop"
        payload.on_disk = True
        return "done"

    async def _rest(self, state: memoryview, begin: int, end: int) -> tuple[memoryview, bytes] | None:
        """A segment without its first items, and the checksum; None where it cannot be cut there."""

        def cut() -> tuple[memoryview, bytes]:
            rest = loading.cut(state, begin, end)
            return rest, checksum(rest)

        try:
            return await self._thread.call(cut)
        except BlobError as error:
            log.warning("a segment in the prompt cache cannot be cut for the disk: %s", error)
            return None

    async def _put(self, key: str, header: bytes, state: memoryview) -> None:
        writing = asyncio.ensure_future(
            self._thread.call(lambda: self._shelf.store.put(key, header, self.pace.parts(state)))
        )
        try:
            while not writing.done():
                self.pace.busy = self._busy()
                await asyncio.wait({writing}, timeout=_LOOK)
        finally:
            # The bytes stay pinned until the thread is through with them, also when this task is cancelled.
            self.pace.busy = False
            await to_the_end(writing)
        writing.result()

    async def _admits(self, length: int, parent: Entry | None) -> bool:
        """Whether so many bytes may be written, for which what is worth least is removed.  Raises StoreError."""
        if not self.budget.allows(length, self._wall()):
            self._shelf.counts.skipped["budget"] += 1
            return False

        def keep() -> list[Entry]:
            return [*self._reading, *([parent] if parent is not None else [])]

        if not await self._space.make_room(blocks(length), keep, self._wall(), self._cache.economics):
            self._shelf.counts.skipped["size"] += 1
            return False
        free = self._space.free  # just looked at
        if free - length < self._limits.floor:
            self._shelf.counts.skipped["floor"] += 1
            raise StoreError(
                "full",
                f"the file system has {readable_size(free)} left, where {readable_size(length)} are to be written and"
                f" {readable_size(self._limits.floor)} are to stay free (cache.disk_floor)",
            )
        return True
