"""Bringing back to RAM what a prompt wants and only the disk has.

Files are read one after the other, each in a thread, while the event loop goes on; their state goes straight into the
arena where all of it is wanted.  What proves not to be what was stored is given to `condemn`, and what is left is used.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from lcpd.cache import loading
from lcpd.cache.arena import checksum
from lcpd.cache.blob import BlobError
from lcpd.cache.cache import PromptCache
from lcpd.cache.catalogue import Entry
from lcpd.cache.loading import Step
from lcpd.cache.record import BadFile, Record
from lcpd.cache.shelf import Shelf, call_to_the_end
from lcpd.daemon_thread import DaemonThread
from lcpd.engine.protocol import Cut, Extent, Piece, Segment, Tokens, pack

log = logging.getLogger(__name__)
_READ_SPEED = 500e6
"""Bytes a second, until it is measured."""


class Promoter:
    """Reads.  For one event loop."""

    def __init__(self, shelf: Shelf, cache: PromptCache, condemn: Callable[[Entry, BadFile], None]) -> None:
        """`condemn`: a file is bad; it is no longer in the catalogue when this returns."""
        self._shelf = shelf
        self._cache = cache
        self._condemn = condemn
        self.reading: Counter[Entry] = Counter()
        """Files that are about to be read."""
        self._read_speed = _READ_SPEED
        self._loading = asyncio.Lock()
        self._urgent = 0
        """Promotions that somebody waits for, under way or next."""
        self._reader = DaemonThread("lcpd-disk-read")

    async def stop(self, within: float) -> bool:
        """See `DaemonThread.stop`."""
        return await self._reader.stop(within)

    def wants(self, tokens: Tokens, begin: int) -> int:
        """The position to which the disk could bring this prompt, which can go on from `begin` without it; 0: none.

        0 as well where reading would take longer than computing.  Changes nothing.
        """
        if not len(self._shelf.catalogue):
            return 0
        covered, held = self._in_ram(tokens)
        upto = loading.goal(self._shelf.catalogue, tokens, covered, held, self._shelf.rolls_back)
        if upto <= begin:
            return 0
        size = sum(step.entry.state for step in loading.steps(self._shelf.catalogue, tokens, covered, held, upto))
        seconds = size / self._read_speed
        return upto if size and seconds < (upto - begin) * self._cache.economics.seconds_per_token else 0

    async def promote(self, tokens: Tokens, modest: bool = False) -> int:
        """Bring to RAM what the disk has of a prompt; returns the position that it can go on from thanks to that, or 0.

        Files that prove not to be what was stored are removed, with what builds on them, and what is left is used.
        `modest`: nothing in RAM is given up for it, and it ends after the file that is being read when another one
        comes that is not modest.
        """
        self._urgent += not modest
        try:
            async with self._loading:
                return await self._promote(tokens, modest)
        finally:
            self._urgent -= not modest

    async def _promote(self, tokens: Tokens, modest: bool) -> int:
        room = self._cache.free if modest else self._cache.size
        while True:
            covered, held = self._in_ram(tokens)
            upto = loading.goal(self._shelf.catalogue, tokens, covered, held, self._shelf.rolls_back)
            plan = loading.steps(self._shelf.catalogue, tokens, covered, held, upto)
            if not plan:
                return upto
            if sum(step.entry.state for step in plan) > room:
                return 0
            self.reading.update(step.entry for step in plan)
            try:
                bad = await self._load(plan, modest)
            finally:
                self.reading.subtract(step.entry for step in plan)
                self.reading += Counter()  # without zeros
            if not bad:
                return self._arrived(tokens, upto)

    def _arrived(self, tokens: Tokens, upto: int) -> int:
        covered, held = self._in_ram(tokens)
        there = covered >= upto if self._shelf.rolls_back else upto in held and covered >= upto
        return upto if there else 0

    def _in_ram(self, tokens: Tokens) -> tuple[int, list[int]]:
        return self._cache.covered(tokens), self._cache.checkpoints_on(tokens)

    async def _load(self, plan: Sequence[Step], modest: bool) -> bool:
        """Read the steps of a plan as far as there is room; returns whether one of them was bad."""
        for step in plan:
            if modest and self._urgent:
                return False
            if not self._shelf.catalogue.holds(step.entry):
                return True
            begun = time.monotonic()
            try:
                done = await (self._load_whole if step.whole else self._load_part)(step, modest)
            except BadFile as error:
                if self._shelf.catalogue.holds(step.entry):  # otherwise it was removed meanwhile
                    self._condemn(step.entry, error)
                return True
            if not done:
                return False
            seconds = time.monotonic() - begun
            self._shelf.counts.read += step.entry.state
            self._shelf.counts.read_seconds += seconds
            if seconds > 0:
                self._read_speed += 0.2 * (step.entry.state / seconds - self._read_speed)
        return False

    async def _load_whole(self, step: Step, modest: bool) -> bool:
        """The state goes straight into the arena; False where there is no room."""
        extent = self._cache.reserve(step.path[: step.begin], step.entry.state, evict=not modest)
        if extent is None:
            return False
        try:
            await self._read(step, self._cache.room(extent))
        except BaseException:
            self._cache.give_back(extent)
            raise
        self._keep(step, extent, Piece(extent, step.entry.checksum))
        return True

    async def _load_part(self, step: Step, modest: bool) -> bool:
        """Of a segment that is cut elsewhere in RAM, or that paths turn off from, a part."""
        state = memoryview(bytearray(step.entry.state))
        await self._read(step, state)
        first = step.entry.begin
        try:
            part = await self._reader.call(lambda: loading.cut(state, step.begin - first, step.end - first))
        except BlobError as error:
            log.warning("a segment on disk cannot be cut: %s", error)
            return False
        extent = self._cache.reserve(step.path[: step.begin], len(part), evict=not modest)
        if extent is None:
            return False
        self._cache.room(extent)[:] = part
        self._keep(step, extent, Piece(extent, checksum(part)))
        return True

    def _keep(self, step: Step, extent: Extent, piece: Piece) -> None:
        if step.entry.kind == "checkpoint":
            self._cache.add_checkpoint(step.path, extent, piece)
        else:
            cut, segment = Cut(step.begin, step.end, extent), Segment(step.begin, step.end, piece)
            self._cache.add_segments(step.path, [cut], [segment])

    async def _read(self, step: Step, target: memoryview) -> None:
        entry = step.entry
        expected = Record(
            fingerprint=self._shelf.fingerprint,
            kind=entry.kind,
            parent=entry.parent.key if entry.parent is not None else "",
            begin=entry.begin,
            tokens=pack(entry.tokens),
            checksum=entry.checksum,
        )
        store = self._shelf.store
        await call_to_the_end(self._reader, lambda: loading.read(store, entry, expected, target))
        if not self._shelf.catalogue.holds(entry):
            raise BadFile("missing", "it was removed while it was read")  # purged, for instance: it is not to come back
