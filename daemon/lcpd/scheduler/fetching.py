"""Requests wait while what they can go on from is brought from disk to RAM."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from lcpd.scheduler.request import Request
from lcpd.scheduler.slots import Slot, Tokens, resumes
from lcpd.scheduler.state import State

log = logging.getLogger(__name__)
WITHIN = 30.0
"""Seconds that a request waits for the disk at most; then it computes what has not come."""


class Disk(Protocol):
    """The disk tier."""

    def wants(self, tokens: Tokens, begin: int) -> int:
        """How far it could bring a prompt that can go on from `begin` without it; 0: no further."""

    async def promote(self, tokens: Tokens) -> int:
        """Bring to RAM what it has of a prompt; how far that brings it."""


class Fetching:
    """Asks the disk for each request that comes in.  For one event loop."""

    def __init__(self, state: State, pump: Callable[[], None]) -> None:
        """`pump` is called when a request need not wait any longer."""
        self._state = state
        self._pump = pump
        self._tasks: set[asyncio.Task[None]] = set()
        self._late: set[asyncio.Future[int]] = set()
        """What was given up and still holds on to the disk: nobody else waits for it meanwhile."""
        self.disk: Disk | None = None
        """None: there is none."""

    def begin(self, request: Request) -> None:
        """A request came in, or an engine came up for one: it waits where the disk can bring it further than slots and
        RAM can."""
        if self.disk is None or self._late or request.anticipates or request.fetching:
            return
        if not self.disk.wants(request.tokens, self._reachable(request.tokens)):
            return
        request.fetching = True
        task = asyncio.create_task(self._fetch(self.disk, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _reachable(self, tokens: Tokens) -> int:
        keeper = self._state.keeper
        known = keeper.known(tokens)
        sources: list[Slot | None] = [None, *self._state.table]
        return max(
            resume.begin
            for source in sources
            for resume in resumes(tokens, source, own=True, known=known, rolls_back=keeper.rolls_back)
        )

    async def _fetch(self, disk: Disk, request: Request) -> None:
        keeper = self._state.keeper
        before = keeper.covered(request.tokens)
        promoting = asyncio.ensure_future(disk.promote(request.tokens))
        # To cancel it would not be enough: it goes on until the system is through with what is being read.
        await asyncio.wait({promoting}, timeout=WITHIN)
        if not promoting.done():
            log.warning("the disk took more than %g s to bring back a prompt, which is computed instead", WITHIN)
            promoting.cancel()
            self._late.add(promoting)
            promoting.add_done_callback(self._is_through)
        elif not promoting.cancelled() and (error := promoting.exception()) is not None:
            # The request can do without: it computes what it lacks.
            log.error("reading a prompt back from disk failed", exc_info=error)
        request.fetched = (before, keeper.covered(request.tokens))
        request.fetching = False
        self._pump()

    def _is_through(self, promoting: asyncio.Future[int]) -> None:
        self._late.discard(promoting)
        if not promoting.cancelled() and (error := promoting.exception()) is not None:
            log.error("reading a prompt back from disk failed after it was given up", exc_info=error)
