"""The disk tier: what comes into RAM is written behind, what is on disk comes back to RAM when a prompt wants it.

    state       when                                            what works
    -----       ----                                            ----------
    waiting     until the model is loaded                       nothing
    opening     the index is being read                         nothing; what comes in waits to be written
    ok          from then on                                    everything
    degraded    the disk is full, read-only, in use by          reading, if it ever was ok; RAM as ever.  Tried again
                another daemon, or fails                        after a while, then after twice as long, ...

Files are only written and removed by one task, the *writer*, in one thread.  Reading has another thread.  Nothing here
raises because of what is on the disk.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from lcpd.cache.cache import PromptCache
from lcpd.cache.catalogue import Entry, blocks
from lcpd.cache.figures import Amount, DiskCounts, DiskStats, Limits, Purged, State
from lcpd.cache.fingerprint import Fingerprint
from lcpd.cache.pending import PendingPaths
from lcpd.cache.promotion import Promoter
from lcpd.cache.recent import Used
from lcpd.cache.record import BadFile
from lcpd.cache.shelf import Shelf
from lcpd.cache.space import Space
from lcpd.cache.stock import take_stock
from lcpd.cache.store import BlobStore, StoreError
from lcpd.cache.writing import Writer
from lcpd.daemon_thread import DaemonThread
from lcpd.engine.protocol import Tokens

log = logging.getLogger(__name__)

_QUEUE = 256
"""Paths that may wait to be written."""
_HOUSEKEEPING = 60.0
"""Seconds between two looks at what has expired."""
_LONGEST_RETRY = 600.0
"""Seconds."""
_FLUSH_POLL = 0.01
ANSWER_WITHIN = 5.0
"""Seconds for which a planned stop waits for a disk that does not answer, after it should have been through."""


class DiskTier:
    """Owner of the catalogue, of what waits to be written, and of the store.  All methods belong to the event loop."""

    def __init__(
        self,
        store: BlobStore,
        cache: PromptCache,
        limits: Limits,
        busy: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`busy`: whether replies run.  `wall`: unix seconds."""
        self._store = store
        self._cache = cache
        self._limits = limits
        self._clock = clock
        self._wall = wall
        self._wake = asyncio.Event()
        self._thread = DaemonThread("lcpd-disk-write")
        self._shelf = Shelf(store)
        self._promoter = Promoter(self._shelf, cache, self._condemn)
        self._space = Space(self._shelf, cache, limits.size, self._thread, self._wake.set)
        self._writer = Writer(
            self._shelf,
            self._space,
            cache,
            limits,
            self._thread,
            reading=self._promoter.reading,
            busy=busy,
            wall=wall,
            on_written=self._recovered,
        )
        self._pending = PendingPaths(_QUEUE)
        self._state: State = "waiting"
        self._trouble: StoreError | None = None
        self._is_open = False
        self._budget_known = False
        """Whether what earlier daemons wrote is counted."""
        self._touched: dict[str, None] = {}
        """Keys whose use the store does not know of."""
        self._idle = asyncio.Event()
        self._looked = asyncio.Event()
        """The index has been read, or cannot be."""
        self._task: asyncio.Task[None] | None = None
        cache.observer = self

    # ---- beginning and end -----------------------------------------------------------------------------

    def start(self, fingerprint: Fingerprint, rolls_back: bool, needs_segments: bool = True) -> None:
        """The model is loaded: read the index in the background.

        `rolls_back`: sequences go on from anywhere.  `needs_segments`: a sequence's state is more than its checkpoint.
        """
        if self._task is not None:
            return
        self._shelf.fingerprint = fingerprint
        self._shelf.rolls_back = rolls_back
        self._shelf.catalogue.needs_segments = needs_segments
        self._state = "opening"
        self._task = asyncio.create_task(self._run())

    async def finish(self, within: float) -> None:
        """Write what waits, as far as `within` seconds allow, and stop.

        What the disk then leaves undone for ANSWER_WITHIN more, because it hangs, is given up.
        """
        if self._task is not None:
            why = ""
            try:
                async with asyncio.timeout(within):
                    await self.flush()
            except TimeoutError:
                why = f"there was no time for that within {within:g} s"
            under_way = self._state == "ok" and not self._idle.is_set()
            if left := len(self._pending) + under_way:
                log.warning("%d conversations were not written to disk: %s", left, self._trouble or why)
            self._task.cancel()
        # It is closed there because SQLite's connections belong to the thread that they were made in.
        threads = {
            "writing": self._thread.stop(ANSWER_WITHIN, self._store.close),
            "reading": self._promoter.stop(ANSWER_WITHIN),
        }
        answers = await asyncio.gather(*threads.values())
        hanging = [what for what, answered in zip(threads, answers, strict=True) if not answered]
        if hanging:
            what = " and ".join(hanging)
            log.error("the disk of the prompt cache does not answer: %s was given up after %g s", what, ANSWER_WITHIN)
        if self._task is not None:
            with suppress(asyncio.CancelledError):
                await self._task

    async def flush(self) -> None:
        """Wait until all that is in RAM now is written, or cannot be."""
        self._pending.all_due()
        while self._state in ("opening", "ok") and (len(self._pending) or not self._idle.is_set()):
            self._pending.all_due()
            self._wake.set()
            await asyncio.sleep(_FLUSH_POLL)

    def stats(self) -> DiskStats:
        """How it does."""
        counts = self._shelf.counts
        skipped = {**counts.skipped, "queue": self._pending.dropped}
        return DiskStats(
            state=self._state,
            reason=f"{self._trouble.trouble}: {self._trouble}" if self._trouble else "",
            size=self._limits.size,
            used=self._space.used,
            files=len(self._shelf.catalogue),
            held={kind: Amount(held.count, held.bytes) for kind, held in self._shelf.catalogue.held.items()},
            queue=len(self._pending),
            lag=self._pending.lag(self._clock()),
            written_today=self._writer.budget.spent(self._wall()),
            budget=self._limits.budget,
            counts=DiskCounts(counts.written, counts.read, counts.read_seconds, dict(counts.removed), skipped),
        )

    # ---- what the prompt cache tells (Observer) --------------------------------------------------------

    def kept(self, tokens: Tokens) -> None:
        """See `Observer`: an interval's worth of state is written at once, the end of a path once it rests."""
        tokens = tokens[: self._cache.resumable(tokens, self._shelf.rolls_back)]
        if not len(tokens):
            return  # a checkpoint that came before the segments below it, which are still to come
        new = len(tokens) - self._shelf.catalogue.reach(tokens)
        self._pending.note(tokens, self._clock(), at_once=new >= self._limits.interval // 2)
        self._wake.set()

    def used(self, tokens: Tokens) -> None:
        """See `Observer`."""
        for entry in self._shelf.catalogue.used(tokens, self._wall(), hits=1):
            self._touched[entry.key] = None

    # ---- the writer ------------------------------------------------------------------------------------

    async def _run(self) -> None:
        delay = self._limits.retry
        while True:
            try:
                if not self._is_open:
                    await self._open()
                self._looked.set()
                await self._work()  # goes on for ever
            except StoreError as error:
                trouble = error
            except Exception as error:
                log.exception("the disk tier of the prompt cache failed")
                trouble = StoreError("index", f"the disk tier failed: {error!r}")
            if self._state == "ok":
                delay = self._limits.retry
            level = logging.DEBUG if self._state == "degraded" else logging.WARNING
            log.log(level, "the prompt cache goes on in RAM alone: %s; tried again in %g s", trouble, delay)
            self._state, self._trouble = "degraded", trouble
            self._looked.set()
            if trouble.trouble in ("index", "i/o"):
                self._is_open = False  # what is there has to be looked at again
            self._idle.set()
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_RETRY)

    async def _work(self) -> None:
        housekeeping = self._clock()
        while True:
            self._idle.clear()
            await self._space.remove()
            if self._clock() >= housekeeping:
                await self._keep_house()
                housekeeping = self._clock() + _HOUSEKEEPING
            tokens = self._pending.take(self._clock())
            if tokens is not None:
                try:
                    await self._writer.write_path(tokens)
                except StoreError:
                    self._pending.note(tokens, self._clock(), at_once=True)
                    raise
                continue
            if self._state != "ok":
                await self._probe()
            self._idle.set()
            self._wake.clear()
            due = self._pending.next_due()
            moment = min(housekeeping, due if due is not None else housekeeping)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, moment - self._clock())):
                    await self._wake.wait()

    async def _probe(self) -> None:
        """Whether the disk works again.  Raises StoreError."""
        await self._space.look()
        self._recovered()

    def _recovered(self) -> None:
        if self._state == "degraded":
            log.warning("the prompt cache uses the disk again")
        self._state, self._trouble = "ok", None

    async def _keep_house(self) -> None:
        touched = list(self._touched)
        self._touched.clear()
        now = self._wall()
        await self._thread.call(lambda: self._store.mark_used(touched, now))
        if self._limits.ttl:
            for entry in self._shelf.catalogue.expired(now - self._limits.ttl):
                if entry.key in self._shelf.catalogue:
                    self._space.forget(entry, "expired")
            await self._space.remove()
        await self._space.look()

    # ---- what was there before -------------------------------------------------------------------------

    async def _open(self) -> None:
        begun = time.monotonic()
        needs = self._shelf.catalogue.needs_segments
        found = await self._thread.call(lambda: take_stock(self._store.open(), self._shelf.fingerprint, needs))
        self._is_open = True
        self._shelf.catalogue, self._touched = found.catalogue, {}
        self._space.found({key: blocks(length) for key, length in found.doomed.items()})
        self._shelf.counts.removed.update(found.refused)
        for payload in self._cache.payloads():
            payload.on_disk = False  # until the writer finds it in the new catalogue
        day = self._wall() - 86400
        for written, length in sorted(found.written):
            if written > day and not self._budget_known:
                self._writer.budget.note(length, min(written, day + 86400))
        self._budget_known = True
        for tokens in found.lost:
            self._cache.remember(tokens, len(tokens))
            self._cache.lose(tokens, 0, "fingerprint changed", found.changed)
        await self._space.look()
        self._recovered()
        log.info(
            "the prompt cache has %d files on disk (%d MiB); their index was read in %.2f s",
            len(self._shelf.catalogue),
            self._shelf.catalogue.size >> 20,
            time.monotonic() - begun,
        )
        if found.refused:
            told = ", ".join(f"{count} {reason}" for reason, count in sorted(found.refused.items()))
            changed = f"; fingerprint changed: {found.changed}" if found.changed else ""
            log.warning("files of the prompt cache on disk that cannot be used are removed: %s%s", told, changed)
        for tokens in self._cache.ends():  # what came in meanwhile, and what an earlier daemon left in RAM
            if end := self._cache.resumable(tokens, self._shelf.rolls_back):
                self._pending.note(tokens[:end], self._clock(), at_once=False)

    # ---- back to RAM -----------------------------------------------------------------------------------

    def wants(self, tokens: Tokens, begin: int) -> int:
        """See `Promoter`.  While the index is being read for the first time, anything may be there."""
        if self._state == "opening":
            return len(tokens) - 1 if len(tokens) - 1 > begin else 0
        return self._promoter.wants(tokens, begin)

    async def promote(self, tokens: Tokens, modest: bool = False) -> int:
        """See `Promoter`; waits for the index."""
        await self._looked.wait()
        return await self._promoter.promote(tokens, modest)

    async def recent(self, most: int) -> list[Used]:
        """The paths that were used last, at most `most`; waits for the index."""
        await self._looked.wait()
        now = self._wall()
        return [Used(entry.path, now - entry.last_used) for entry in self._shelf.catalogue.ends(most)]

    def _condemn(self, entry: Entry, error: BadFile) -> None:
        log.warning("a file of the prompt cache on disk is not used and removed (%s): %s", error.problem, error)
        path = entry.path
        self._cache.remember(path, len(path))
        self._cache.lose(path, 0 if entry.kind == "checkpoint" else entry.begin, "damaged")
        self._space.forget(entry, error.problem)

    # ---- purging ---------------------------------------------------------------------------------------

    async def purge(self) -> Purged:
        """Remove everything from the disk, the index too.  Raises StoreError where that cannot be done now."""
        if self._state == "opening":
            await self._looked.wait()  # what is being read now would be known again
        purged = Purged(len(self._shelf.catalogue), self._space.used)
        self._pending.clear()
        self._space.forget_all()
        self._touched.clear()
        if self._is_open:
            await self._thread.call(self._store.clear)
        elif self._trouble is not None:
            raise self._trouble
        else:  # the model is still being loaded, so nothing was looked at
            purged = await self._thread.call(self._purge_unopened)
        self._shelf.counts.removed["purged"] += purged.files
        return purged

    def _purge_unopened(self) -> Purged:
        rows = self._store.open().rows
        self._store.clear()
        return Purged(len(rows), sum(blocks(row.size) for row in rows))
