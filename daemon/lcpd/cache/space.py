"""What the disk tier takes up, and what goes to make room.

A file that goes is forgotten at once and removed when it is the writer's turn; until then its space counts.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection

from lcpd.cache.cache import PromptCache
from lcpd.cache.catalogue import Entry
from lcpd.cache.ranking import Ranking, with_all_below
from lcpd.cache.retention import Economics
from lcpd.cache.shelf import Shelf
from lcpd.daemon_thread import DaemonThread

_RANK_EVERY = 60.0
"""Seconds for which the order in which files go is good enough."""
_CHOSEN = ("room", "expired")
"""Reasons for which files are removed that could be used."""


class Space:
    """Owner of what waits to be removed.  For one event loop; all that is awaited here raises StoreError."""

    def __init__(
        self, shelf: Shelf, cache: PromptCache, size: int, thread: DaemonThread, wake: Callable[[], None]
    ) -> None:
        """`size`: bytes that may be taken up.  `thread`: the one that writes.  `wake`: something is to be removed."""
        self._shelf = shelf
        self._cache = cache
        self._size = size
        self._thread = thread
        self._wake = wake
        self._doomed: dict[str, int] = {}
        """Keys of files that are not known any more but still there, with the bytes that they take up."""
        self.free = 0
        """Bytes that were free on the file system at the last look."""
        self._overhead = 0
        self._ranking = Ranking(shelf.catalogue, shelf.rolls_back)
        self._ranked_at = -math.inf
        """Unix seconds."""
        self.purges = 0
        """How often everything was removed."""

    @property
    def used(self) -> int:
        """Bytes that are taken up, the index too."""
        return self._shelf.catalogue.size + sum(self._doomed.values()) + self._overhead

    def forget(self, entry: Entry, reason: str) -> None:
        """A file and what builds on it are not used any more."""
        for index, one in enumerate(self._shelf.catalogue.remove(entry)):
            self._shelf.counts.removed[reason if not index or reason in _CHOSEN else "unlinked"] += 1
            self._doomed[one.key] = one.size
            for resident in self._cache.residents(one.path):
                if resident.kind == one.kind and resident.end > one.begin:
                    resident.payload.on_disk = False
        self._wake()

    def forget_all(self) -> None:
        """Nothing that is there is used any more; it is the caller who removes it."""
        self._shelf.catalogue.clear()
        self._doomed.clear()
        self.purges += 1

    def found(self, doomed: dict[str, int]) -> None:
        """What is there was looked at: these files, with the bytes that they take up, are to be removed."""
        self._doomed = dict(doomed)

    def condemn(self, key: str, size: int) -> None:
        """A file that is not in the catalogue is to be removed."""
        self._doomed[key] = size

    async def remove(self) -> None:
        """Remove what is to be removed."""
        keys = list(self._doomed)
        if not keys:
            return
        await self._thread.call(lambda: self._shelf.store.remove(keys))
        for key in keys:
            if key not in self._shelf.catalogue:
                self._doomed.pop(key, None)

    async def make_room(
        self, size: int, keep: Callable[[], Collection[Entry]], now: float, economics: Economics
    ) -> bool:
        """Remove what is worth least, so that `size` bytes may be taken up; False where that is not enough.

        Nothing is removed where all would not be enough.  What `keep` names when it is asked stays, and what that
        builds on.  `now`: unix seconds.
        """
        size += self._shelf.store.growth
        await self.look()
        while (lacking := self.used + size - self._size) > 0:
            staying = sum(entry.size for entry in with_all_below(keep()))
            if self._shelf.catalogue.size - staying < lacking:
                return False
            if not await self._forget(lacking, keep, now, economics):
                return False
            await self.remove()
            await self.look()  # the index's log is longer now
        return True

    async def _forget(
        self, lacking: int, keep: Callable[[], Collection[Entry]], now: float, economics: Economics
    ) -> bool:
        """Forget what is worth least, `lacking` bytes of it; False where there is not so much."""
        fresh = False
        while lacking > 0:
            if not fresh and not self._is_ranked(now):
                await self._rank(now, economics)
                fresh = True
            entry = self._ranking.next(with_all_below(keep()), now, economics)
            if entry is not None:
                self.forget(entry, "room")
                lacking -= entry.size
            elif fresh:
                return False
            else:
                self._ranked_at = -math.inf  # what was written since then is to be looked at too
        return True

    def _is_ranked(self, now: float) -> bool:
        return self._ranking.catalogue is self._shelf.catalogue and abs(now - self._ranked_at) < _RANK_EVERY

    async def _rank(self, now: float, economics: Economics) -> None:
        self._ranking = Ranking(self._shelf.catalogue, self._shelf.rolls_back)
        for _ in self._ranking.look(now, economics):
            await asyncio.sleep(0)
        self._ranked_at = now

    async def look(self) -> None:
        """Ask the file system how much is free, and how much the index takes up."""
        store = self._shelf.store
        self.free, self._overhead = await self._thread.call(lambda: (store.free(), store.overhead()))
