"""The prompt cache outlives the daemon: the service manager keeps the arena, the arena keeps the list of its contents.

    when                                what
    ----                                ----
    start                               the arena that was passed is adopted, or a new one made; the service manager
                                        is asked to keep it
    the model is loaded                 the list is read; contents of the same fingerprint are taken over
    then, in the background             the bytes of all that was taken over are compared with their checksums, once
    from time to time, on changes       the list is written: for a daemon that is killed
    planned stop, requests being over   what slots hold goes into the arena; the list is written

Without a service manager nothing of this happens.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

from lcpd.cache.arena import Arena, ArenaError, checksum
from lcpd.cache.cache import PromptCache
from lcpd.cache.fingerprint import Fingerprint, difference, digest
from lcpd.cache.index import Index, IndexArea, IndexRefused, collect, decode, encode, front_size, paths, restore
from lcpd.cache.payloads import Payload
from lcpd.engine import protocol as p
from lcpd.engine.supervisor import Listener
from lcpd.fdstore import ServiceManager
from lcpd.room import fitting
from lcpd.scheduler.slots import Slot

log = logging.getLogger(__name__)

NAME = "lcpd-arena"
"""Of the arena in the service manager's file-descriptor store."""
LIST_INTERVAL = 5.0
"""Seconds between two looks at whether the list is to be written."""
BUSY_INTERVAL = 60.0
"""Seconds for which requests that run are spared the writing, which holds up the event loop: 1 ms for 100 nodes."""
STOP_WITHIN = 20.0
"""Seconds that a planned stop may take to bring into the arena what slots hold."""
_POLL = 0.01
_BLOCK = 512
"""Bytes; the unit of `st_blocks`."""
_LOST_PATHS = 32
"""Conversations of which cache reports tell that a changed fingerprint is why they are computed again."""
_VERIFY_REST = 3
"""Comparing checksums in the background rests for so many times as long as it works."""


class Slots(Protocol):
    """The dispatcher, as far as it is needed here."""

    @property
    def slots(self) -> list[Slot]:
        """What each slot holds."""

    @property
    def running(self) -> int:
        """Generations that hold a slot."""

    @property
    def exporting(self) -> bool:
        """Whether state is on its way into the arena."""

    def save(self, seq: int) -> None:
        """Begin to bring into the arena what an idle slot holds, as far as it is not there."""


def open_arena(manager: ServiceManager, wanted: int, room: int = sys.maxsize) -> tuple[Arena, bool]:
    """The arena of `wanted` bytes (`cache.ram`), and whether it is one that an earlier daemon has used.

    It is smaller where `room`, the bytes that are available, with those that the earlier one has taken up, is not
    enough.  Raises ArenaError where memory cannot be had; never because of what the service manager passed.
    """
    passed = manager.take(NAME)
    taken = os.fstat(passed).st_blocks * _BLOCK if passed is not None else 0
    size = fitting(wanted, room + taken)
    if size < wanted:
        log.warning(
            "cache.ram: %d MiB do not fit into the %d MiB that are available beside the model: it has %d MiB",
            wanted >> 20,
            max(0, room + taken) >> 20,
            size >> 20,
        )
    front = front_size(size) if manager.address else 0
    if passed is not None:
        try:
            return Arena.adopt(passed, size, front), True
        except ArenaError as error:
            log.warning("the prompt cache of the daemon before this one is lost: %s", error)
            manager.forget(NAME)
    return Arena(size, front), False


def is_due(changed: bool, busy: bool, since: float) -> bool:
    """Whether the list is to be written now, `since` seconds after the last time."""
    return changed and (not busy or since >= BUSY_INTERVAL)


class CarryOver:
    """Owner of the list in the arena's front.  For an arena that has one."""

    def __init__(
        self, arena: Arena, cache: PromptCache, fingerprint: Callable[[p.ModelInfo], Fingerprint], adopted: bool
    ) -> None:
        """`adopted`: there may be a list of an earlier daemon.  `fingerprint` is asked when the model is loaded."""
        self._arena = arena
        self._cache = cache
        self._area = IndexArea(arena.front)
        self._make_fingerprint = fingerprint
        self._adopted = adopted
        self._fingerprint: Fingerprint | None = None
        """None until the model is loaded: before, the list is not touched."""
        self._known = asyncio.Event()
        self._written = (-1, 0.0)
        """Changes of the cache up to the last list, or to the last try to write one, and when that was."""
        self._tasks: list[asyncio.Task[None]] = []

    # ---- the earlier daemon's --------------------------------------------------------------------------

    def on_model(self, info: p.ModelInfo) -> None:
        """The model is loaded, and nothing is in the cache yet: take over what the earlier daemon left."""
        if self._fingerprint is not None:
            return
        self._fingerprint = self._make_fingerprint(info)
        log.debug("the fingerprint of this daemon's state is %s: %s", digest(self._fingerprint), self._fingerprint)
        if self._adopted:
            try:
                self._take_over(decode(self._area.read()), self._fingerprint)
            except IndexRefused as refused:
                log.warning("the list of the prompt cache that was kept is not used: %s", refused)
        self.write()
        self._known.set()

    def _take_over(self, index: Index, ours: Fingerprint) -> None:
        if changed := difference(index.fingerprint, ours):
            known = paths(index.entries, _LOST_PATHS)[::-1]
            for tokens in known:
                self._cache.remember(tokens, len(tokens))
            for tokens in known:
                self._cache.lose(tokens, 0, "fingerprint changed", changed)
            raise IndexRefused(f"fingerprint changed: {changed}")
        restored = restore(self._arena, index.entries, time.monotonic())
        self._cache.install(restored.trie)
        stats = self._cache.stats()
        log.info(
            "the prompt cache was kept: %d tokens in %d segments, %d checkpoints; %d pieces were dropped",
            stats.tokens,
            stats.segments,
            stats.checkpoints,
            restored.dropped,
        )

    async def _verify(self) -> None:
        """Compare the bytes of all that was taken over with their checksums; what differs is dropped."""
        damaged = 0
        for payload in self._cache.payloads():
            if payload.dropped:
                continue
            begun = time.monotonic()
            with self._cache.pinned(payload):
                intact = await asyncio.to_thread(self._is_intact, payload)
            if not intact:
                damaged += 1
                self._cache.condemn(payload)
            await asyncio.sleep(_VERIFY_REST * (time.monotonic() - begun))
        if damaged:
            log.warning("%d pieces of the prompt cache that was kept were damaged or outdated, and dropped", damaged)

    def _is_intact(self, payload: Payload) -> bool:
        return all(checksum(self._arena.view(piece.extent)) == piece.checksum for piece in payload.parts.values())

    # ---- for the next one ------------------------------------------------------------------------------

    def write(self) -> None:
        """Write the list."""
        assert self._fingerprint is not None, "the list is written once the model is loaded"
        begun = time.monotonic()
        entries, left_out = collect(self._cache.trie, self._area.capacity - _overhead(self._fingerprint))
        self._area.write(encode(Index(self._fingerprint, entries)))
        self._written = self._cache.changes, time.monotonic()
        log.debug(
            "listed %d nodes of the prompt cache in %.1f ms, without %d for which there was no room",
            len(entries),
            1000 * (time.monotonic() - begun),
            left_out,
        )

    def start(self, slots: Slots) -> None:
        """From now on verify and write in the background; `finish` ends it."""
        self._tasks.append(asyncio.create_task(self._keep_listed(slots)))

    async def _keep_listed(self, slots: Slots) -> None:
        await self._known.wait()
        try:
            await self._verify()
        except Exception:
            log.exception("not all of the prompt cache that was kept was compared with its checksums")
        while True:
            changes, written = self._written
            if is_due(self._cache.changes != changes, slots.running > 0, time.monotonic() - written):
                try:
                    self.write()
                except Exception:
                    log.exception("the list of the prompt cache could not be written; the next change is the next try")
                    self._written = self._cache.changes, time.monotonic()
            await asyncio.sleep(LIST_INTERVAL)

    async def finish(self, slots: Slots) -> None:
        """A planned stop, while the engine still lives: nothing that slots hold is to be lost."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._fingerprint is None:
            return
        await save_slots(slots)
        self.write()


async def save_slots(slots: Slots) -> None:
    """A planned stop, while the engine still lives: bring into the arena what slots hold, once no request runs."""
    try:
        async with asyncio.timeout(STOP_WITHIN):
            await _until(lambda: not slots.running)
            # Where room lacks, those used last push out the others.
            for slot in sorted(slots.slots, key=lambda slot: slot.last_used):
                slots.save(slot.seq)
                await _until(lambda: not slots.exporting)
    except TimeoutError:
        log.warning("not all that slots held was brought into the prompt cache within %g s", STOP_WITHIN)


async def _until(true: Callable[[], bool]) -> None:
    while True:
        if true():
            return
        await asyncio.sleep(_POLL)


def _overhead(fingerprint: Fingerprint) -> int:
    """Bytes of the list besides its entries, at most."""
    return 64 + sum(16 + len(name.encode()) + len(value.encode()) for name, value in fingerprint.items())


class FirstWord:
    """A listener of the supervisor's that lets somebody else hear first that the model is loaded."""

    def __init__(self, listener: Listener, on_model: Callable[[p.ModelInfo], None]) -> None:
        self._listener = listener
        self._on_model = on_model

    def on_up(self, info: p.ModelInfo) -> None:
        """See `Listener`."""
        self._on_model(info)
        self._listener.on_up(info)

    def on_message(self, message: p.FromWorker) -> None:
        """See `Listener`."""
        self._listener.on_message(message)

    def on_down(self, reason: str, cause: str) -> None:
        """See `Listener`."""
        self._listener.on_down(reason, cause)

    def on_failed(self, reason: str) -> None:
        """See `Listener`."""
        self._listener.on_failed(reason)
