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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from lcpd.cache import loading
from lcpd.cache.arena import checksum
from lcpd.cache.blob import BlobError
from lcpd.cache.cache import PromptCache, Resident
from lcpd.cache.catalogue import Entry, Found, blocks
from lcpd.cache.figures import DiskCounts, DiskStats, Purged, State
from lcpd.cache.fingerprint import Fingerprint
from lcpd.cache.pending import PendingPaths, WriteBudget, worth_writing
from lcpd.cache.promotion import Promoter, Shelf, in_thread
from lcpd.cache.record import BadFile, Record, encode
from lcpd.cache.stock import take_stock
from lcpd.cache.store import BlobStore, StoreError
from lcpd.engine.protocol import Tokens, pack

log = logging.getLogger(__name__)

_QUEUE = 256
"""Paths that may wait to be written."""
_CHOSEN = ("room", "expired")
"""Reasons for which files are removed that could be used."""
_PART = 4 << 20
"""Bytes that are written between two rests."""
_REST = 3
"""While replies run, writing rests for so many times as long as it works."""
_LOOK = 0.05
"""Seconds between two looks at whether replies run, while something is written."""
_HOUSEKEEPING = 60.0
"""Seconds between two looks at what has expired."""
_LONGEST_RETRY = 600.0
"""Seconds."""
_FLUSH_POLL = 0.01


@dataclass(frozen=True)
class Limits:
    """What the settings say.  Sizes in bytes, times in seconds; 0 = no limit, except for `size` and `floor`."""

    size: int
    floor: int = 0
    """Bytes that stay free on the file system."""
    budget: int = 0
    """Written in 24 hours."""
    ttl: float = 0.0
    """Since the last use."""
    interval: int = 8192
    """Tokens between the checkpoints of a long prompt."""
    retry: float = 5.0
    """Until a disk that failed is tried again the first time."""


class _Pace:
    """How hard the writer may write; read by its thread."""

    def __init__(self) -> None:
        self.busy = False
        """Whether replies run."""

    def parts(self, data: memoryview) -> Iterator[memoryview]:
        for begin in range(0, len(data), _PART):
            begun = time.monotonic()
            yield data[begin : begin + _PART]
            if self.busy:
                time.sleep(_REST * (time.monotonic() - begun))


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
        self._busy = busy
        self._clock = clock
        self._wall = wall
        self._shelf = Shelf(store)
        self._promoter = Promoter(self._shelf, cache, self._condemn)
        self._pending = PendingPaths(_QUEUE)
        self._budget = WriteBudget(limits.budget)
        self._needs_segments = True
        self._state: State = "waiting"
        self._trouble: StoreError | None = None
        self._is_open = False
        self._budget_known = False
        """Whether what earlier daemons wrote is counted."""
        self._doomed: dict[str, int] = {}
        """Keys of files that are not known any more but still there, with the bytes that they take up."""
        self._touched: dict[str, None] = {}
        """Keys whose use the store does not know of."""
        self._overhead = 0
        self._purges = 0
        self._pace = _Pace()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._looked = asyncio.Event()
        """The index has been read, or cannot be."""
        self._task: asyncio.Task[None] | None = None
        self._writer = ThreadPoolExecutor(1, "lcpd-disk-write")
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
        self._needs_segments = self._shelf.catalogue.needs_segments = needs_segments
        self._state = "opening"
        self._task = asyncio.create_task(self._run())

    async def finish(self, within: float) -> None:
        """Write what waits, as far as `within` seconds allow, and stop."""
        if self._task is not None:
            try:
                async with asyncio.timeout(within):
                    await self.flush()
            except TimeoutError:
                log.warning("not all of the prompt cache was written to disk within %g s", within)
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await asyncio.to_thread(self._writer.shutdown)
        await self._promoter.stop()
        self._store.close()

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
        counts.skipped["queue"] = self._pending.dropped
        return DiskStats(
            state=self._state,
            reason=f"{self._trouble.trouble}: {self._trouble}" if self._trouble else "",
            size=self._limits.size,
            used=self._used(),
            files=len(self._shelf.catalogue),
            queue=len(self._pending),
            lag=self._pending.lag(self._clock()),
            written_today=self._budget.spent(self._wall()),
            counts=DiskCounts(
                counts.written, counts.read, counts.read_seconds, dict(counts.removed), dict(counts.skipped)
            ),
        )

    # ---- what the prompt cache tells (Observer) --------------------------------------------------------

    def kept(self, tokens: Tokens) -> None:
        """See `Observer`: an interval's worth of state is written at once, the end of a path once it rests."""
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
            await self._remove_doomed()
            if self._clock() >= housekeeping:
                await self._keep_house()
                housekeeping = self._clock() + _HOUSEKEEPING
            tokens = self._pending.take(self._clock())
            if tokens is not None:
                try:
                    await self._write_path(tokens)
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
        await self._look_at_space()
        self._recovered()

    def _recovered(self) -> None:
        if self._state == "degraded":
            log.warning("the prompt cache uses the disk again")
        self._state, self._trouble = "ok", None

    async def _write_path(self, tokens: Tokens) -> None:
        """Write what of a path is in RAM and not on disk, as far as limits allow."""
        residents = self._cache.residents(tokens)
        checkpoints = [one for one in residents if one.kind == "checkpoint"]
        chosen = worth_writing(
            [(one.end, one.forks) for one in checkpoints],
            list(self._shelf.catalogue.checkpoints(tokens)),
            self._limits.interval // 4,
        )
        upto = len(tokens) if self._shelf.rolls_back else max(chosen, default=0)
        for one in residents:
            if one.kind == "segment" and one.begin < upto and not await self._write_segment(one):
                return
            if one.kind == "checkpoint" and one.end in chosen and not await self._write_checkpoint(one):
                return

    async def _write_segment(self, one: Resident) -> bool:
        """False: what follows on it cannot be written either."""
        reach = self._shelf.catalogue.reach(one.tokens)
        if reach >= one.end:
            return True
        if one.begin > reach:
            self._shelf.counts.skipped["gone"] += 1
            return False
        parent = self._shelf.catalogue.parent_of(one.tokens[:reach])
        return await self._write(one, reach, parent)

    async def _write_checkpoint(self, one: Resident) -> bool:
        if not self._shelf.catalogue.needs_segments:
            return await self._write(one, 0, None)
        if self._shelf.catalogue.reach(one.tokens) < one.end:
            self._shelf.counts.skipped["gone"] += 1
            return True
        return await self._write(one, one.end - 1, self._shelf.catalogue.parent_of(one.tokens))

    async def _write(self, one: Resident, begin: int, parent: Entry | None) -> bool:
        """Write items [begin, end) of a segment, or a checkpoint; False where that cannot be."""
        payload = one.payload
        if payload.dropped:
            self._shelf.counts.skipped["gone"] += 1
            return False
        with self._cache.pinned(payload):
            state, hashed = self._cache.view(payload), payload.piece.checksum
            if one.kind == "segment" and begin > one.begin:
                rest = await self._rest(state, begin - one.begin, one.end - one.begin)
                if rest is None:
                    return False
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
            purges = self._purges
            if not await self._admits(length, parent):
                return False
            await self._put(record.key, header, state)
        self._shelf.counts.written += length
        self._budget.note(length, self._wall())
        self._recovered()
        found = Found(record.key, record, len(state), length, self._wall())
        if purges != self._purges or not self._shelf.catalogue.add(found):
            # What it builds on is gone by now.
            self._doomed[record.key] = blocks(length)
            return False
        return True

    async def _rest(self, state: memoryview, begin: int, end: int) -> tuple[memoryview, bytes] | None:
        """A segment without its first items, and the checksum; None where it cannot be cut there."""

        def cut() -> tuple[memoryview, bytes]:
            rest = loading.cut(state, begin, end)
            return rest, checksum(rest)

        try:
            return await in_thread(self._writer, cut)
        except BlobError as error:
            log.warning("a segment in the prompt cache cannot be cut for the disk: %s", error)
            return None

    async def _put(self, key: str, header: bytes, state: memoryview) -> None:
        writing = asyncio.ensure_future(
            in_thread(self._writer, lambda: self._store.put(key, header, self._pace.parts(state)))
        )
        try:
            while not writing.done():
                self._pace.busy = self._busy()
                await asyncio.wait({writing}, timeout=_LOOK)
        finally:
            # The bytes stay pinned until the thread is through with them, also when this task is cancelled.
            self._pace.busy = False
            while not writing.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({writing})
        writing.result()

    async def _admits(self, length: int, parent: Entry | None) -> bool:
        """Whether so many bytes may be written, for which what is worth least is removed.  Raises StoreError."""
        if not self._budget.allows(length, self._wall()):
            self._shelf.counts.skipped["budget"] += 1
            return False
        await self._make_room(blocks(length), parent)
        if self._used() + blocks(length) > self._limits.size:
            self._shelf.counts.skipped["size"] += 1
            return False
        if await self._look_at_space() - length < self._limits.floor:
            self._shelf.counts.skipped["floor"] += 1
            return False
        return True

    async def _make_room(self, size: int, parent: Entry | None) -> None:
        lacking = self._used() + size - self._limits.size
        if lacking <= 0:
            return
        keep = [*self._promoter.reading, *([parent] if parent is not None else [])]
        victims = self._shelf.catalogue.victims(
            lacking, self._wall(), self._cache.economics, self._shelf.rolls_back, keep
        )
        for entry in victims:
            self._forget(entry, "room")
        await self._remove_doomed()

    async def _look_at_space(self) -> int:
        """Bytes that are free on the file system.  Raises StoreError."""
        free, self._overhead = await in_thread(self._writer, lambda: (self._store.free(), self._store.overhead()))
        return free

    def _used(self) -> int:
        return self._shelf.catalogue.size + sum(self._doomed.values()) + self._overhead

    def _forget(self, entry: Entry, reason: str) -> None:
        """A file and what builds on it are not used any more, and removed when it is the writer's turn."""
        for index, one in enumerate(self._shelf.catalogue.remove(entry)):
            self._shelf.counts.removed[reason if not index or reason in _CHOSEN else "unlinked"] += 1
            self._doomed[one.key] = one.size
            self._touched.pop(one.key, None)
        self._wake.set()

    async def _remove_doomed(self) -> None:
        keys = list(self._doomed)
        if not keys:
            return
        await in_thread(self._writer, lambda: self._store.remove(keys))
        for key in keys:
            if key not in self._shelf.catalogue:
                self._doomed.pop(key, None)

    async def _keep_house(self) -> None:
        touched = list(self._touched)
        self._touched.clear()
        now = self._wall()
        await in_thread(self._writer, lambda: self._store.mark_used(touched, now))
        if self._limits.ttl:
            for entry in self._shelf.catalogue.expired(now - self._limits.ttl):
                if entry.key in self._shelf.catalogue:
                    self._forget(entry, "expired")
            await self._remove_doomed()
        await self._look_at_space()

    # ---- what was there before -------------------------------------------------------------------------

    async def _open(self) -> None:
        begun = time.monotonic()
        needs = self._needs_segments
        found = await in_thread(self._writer, lambda: take_stock(self._store.open(), self._shelf.fingerprint, needs))
        self._is_open = True
        self._shelf.catalogue, self._touched = found.catalogue, {}
        self._doomed = {key: blocks(length) for key, length in found.doomed.items()}
        self._shelf.counts.removed.update(found.refused)
        day = self._wall() - 86400
        for written, length in sorted(found.written):
            if written > day and not self._budget_known:
                self._budget.note(length, written)
        self._budget_known = True
        for tokens in found.lost:
            self._cache.remember(tokens, len(tokens))
            self._cache.lose(tokens, 0, "fingerprint changed", found.changed)
        await self._look_at_space()
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
            self._pending.note(tokens, self._clock(), at_once=False)

    # ---- back to RAM -----------------------------------------------------------------------------------

    def wants(self, tokens: Tokens, begin: int) -> int:
        """See `Promoter`.  While the index is being read for the first time, anything may be there."""
        if self._state == "opening":
            return len(tokens) - 1 if len(tokens) - 1 > begin else 0
        return self._promoter.wants(tokens, begin)

    async def promote(self, tokens: Tokens) -> int:
        """See `Promoter`; waits for the index."""
        await self._looked.wait()
        return await self._promoter.promote(tokens)

    def _condemn(self, entry: Entry, error: BadFile) -> None:
        log.warning("a file of the prompt cache on disk is not used and removed (%s): %s", error.problem, error)
        path = entry.path
        self._cache.remember(path, len(path))
        self._cache.lose(path, 0 if entry.kind == "checkpoint" else entry.begin, "damaged")
        self._forget(entry, error.problem)

    # ---- purging ---------------------------------------------------------------------------------------

    async def purge(self) -> Purged:
        """Remove everything from the disk, the index too.  Raises StoreError where that cannot be done now."""
        purged = Purged(len(self._shelf.catalogue), self._used())
        self._pending.clear()
        self._shelf.catalogue.clear()
        self._doomed.clear()
        self._touched.clear()
        self._purges += 1
        if self._is_open:
            await in_thread(self._writer, self._store.clear)
            self._shelf.counts.removed["purged"] += purged.files
        elif self._trouble is not None:
            raise self._trouble
        return purged
