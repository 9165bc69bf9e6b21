"""Brings the conversations that were active last back to slots before their next turn comes (`cache.prewarm`).

    when                                   what
    ----                                   ----
    the engine is up: after a start,       wait for the index of the disk, and until nothing runs or waits
    a crash, a sleep
    then, the latest conversation first    what only the disk has comes to RAM, into room that is free; what RAM has
                                           goes to an empty slot
    a request comes meanwhile              it stops this at once, see `decide`; begun again when it is over, some times
    there is no empty slot, or no cells    that was all

Nothing is computed: a conversation is restored as far as it is stored and can be resumed.  It goes to the engine as a
prompt of kind "prefill", which runs only while nobody else wants anything, gives up nothing that slots hold, and is
never run again if the engine dies with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Literal

import numpy as np

from lcpd.cache.cache import PromptCache
from lcpd.cache.recent import Used, in_order, in_ram, is_part_of
from lcpd.cache.tier import DiskTier
from lcpd.engine import protocol as p
from lcpd.metrics import Metrics
from lcpd.scheduler.dispatcher import Dispatcher
from lcpd.scheduler.generation import (
    Begun,
    EngineFailed,
    Generation,
    GenerationFailed,
    GenerationRefused,
    Prompt,
    Quarantined,
    QueueFull,
)
from lcpd.scheduler.slots import Tokens

log = logging.getLogger(__name__)
_TRIES = 3
"""How often it is begun after a start of the engine."""
_PATHS = 64
"""Paths that are looked at, of RAM and of the disk each."""
_DEATHS = 2
"""Deaths of the engine while it restored something, after which nothing is restored any more."""
_POLL = 0.1
_STOP_WITHIN = 1.0
"""Seconds."""
_BEHIND = np.array([-1], np.int32)
"""Any item behind a path: what is promoted is what a prompt that goes on from it could use."""

Outcome = Literal["restored", "useless", "no room", "disturbed"]


class Prewarmer:
    """For one event loop."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        cache: PromptCache,
        disk: DiskTier | None,
        metrics: Metrics,
        count: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`count`: conversations.  `clock`: that of the prompt cache."""
        self._dispatcher = dispatcher
        self._cache = cache
        self._disk = disk
        self._metrics = metrics
        self._count = count
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._deaths = 0
        """Of the engine, while it restored something."""

    @property
    def working(self) -> bool:
        """Whether something is being restored, or going to be."""
        return self._task is not None and not self._task.done()

    def begin(self, info: p.ModelInfo) -> None:
        """The engine comes up with all slots empty."""
        if self._task is not None:
            self._task.cancel()
        if self._deaths >= _DEATHS:
            log.warning("no conversation is restored ahead any more: the engine died of it %d times", self._deaths)
            return
        self._task = asyncio.create_task(self._run(info))

    async def stop(self) -> None:
        """End what is under way; what waits for a disk that hangs ends with the disk tier."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_STOP_WITHIN)

    async def _run(self, info: p.ModelInfo) -> None:
        try:
            for _ in range(_TRIES):
                while not self._idle:  # noqa: ASYNC110
                    await asyncio.sleep(_POLL)
                if await self._restore_all(info):
                    return
        except Exception:
            # There is nobody to tell, and conversations go on without this.
            log.exception("restoring the last conversations failed")

    @property
    def _idle(self) -> bool:
        return not self._dispatcher.running and not self._dispatcher.waiting

    async def _restore_all(self, info: p.ModelInfo) -> bool:
        """False where a request came in between."""
        there: list[Tokens] = []
        for path in in_order(await self._paths()):
            if len(there) == self._count:
                break
            if is_part_of(path, there):
                continue
            if is_part_of(path, [slot.tokens for slot in self._dispatcher.slots]):
                there.append(path)
                continue
            match await self._restore(path, info):
                case "restored":
                    there.append(path)
                case "useless":
                    continue
                case "no room":
                    return True
                case "disturbed":
                    return False
        return True

    async def _paths(self) -> list[Used]:
        on_disk = await self._disk.recent(_PATHS) if self._disk is not None else []
        return [*on_disk, *in_ram(self._cache.trie, self._clock(), _PATHS)]

    async def _restore(self, path: Tokens, info: p.ModelInfo) -> Outcome:
        begun = time.monotonic()
        if self._disk is not None:
            await self._disk.promote(np.concatenate([path, _BEHIND]), modest=True)
        tokens = path[: self._cache.resumable(path, info.rolls_back)]
        if not len(tokens) or len(tokens) > info.n_ctx:
            return "useless"
        if not self._idle:
            return "disturbed"
        try:
            generation = self._dispatcher.submit(Prompt(tokens, (), b"{}", 0, priority="background", kind="prefill"))
        except Quarantined:
            return "useless"
        except (EngineFailed, QueueFull):
            return "no room"
        if generation.over:
            return "no room"
        if not await self._is_restored(generation):
            return "useless" if self._idle else "disturbed"
        seconds = time.monotonic() - begun
        self._metrics.tokens.prewarmed.inc(len(tokens))
        log.info("restored the %d tokens of an earlier conversation to a slot in %.2f s", len(tokens), seconds)
        return "restored"

    async def _is_restored(self, generation: Generation) -> bool:
        """Wait until a slot holds all of a prompt; False where that did not come about without computing."""
        begun: Begun | None = None
        try:
            async for events in generation.batches():
                begun = next((event for event in events if isinstance(event, Begun)), begun)
                if begun is None:
                    self._deaths += 1  # it is over, and the engine has not answered
                elif begun.cached < len(generation.prompt.tokens):
                    break  # what is missing would be computed
        except (EngineFailed, GenerationFailed, GenerationRefused) as error:
            log.warning("an earlier conversation cannot be restored: %s", error)
        finally:
            generation.close()
        return begun is not None and begun.cached == len(generation.prompt.tokens)
