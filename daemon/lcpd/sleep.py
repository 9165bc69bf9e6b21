"""Puts the engine to sleep, which frees its memory and keeps the prompt cache, and wakes it.

state      leaves it when                                                then
-----      --------------                                                ----
awake      `sleep`; nothing ran or waited for `engine.sleep_after`       dozing
dozing     nothing runs or waits, and what slots hold is in RAM          asleep: the worker is stopped
dozing     `wake`, or a request comes                                    awake, the worker started again if need be
asleep     `wake`, or a request comes                                    awake: the worker is started
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from lcpd.carry_over import save_slots
from lcpd.engine.supervisor import State, Supervisor
from lcpd.scheduler.dispatcher import Dispatcher
from lcpd.scheduler.embeddings import Embeddings

log = logging.getLogger(__name__)
_POLL = 0.05


class CannotSleep(RuntimeError):
    """The engine is not in a state to be put to sleep."""


class Sleeper:
    """Owns the way into sleep.  For one event loop."""

    def __init__(
        self, supervisor: Supervisor, dispatcher: Dispatcher, embeddings: Embeddings, after: float = 0.0
    ) -> None:
        """`after`: seconds without any request after which it falls asleep; 0: never."""
        self._supervisor = supervisor
        self._dispatcher = dispatcher
        self._embeddings = embeddings
        self._after = after
        self._dozing: asyncio.Task[bool] | None = None
        self._stopping = False
        """Whether the worker is being stopped, which is not called off any more."""
        self._wanted = False
        """Whether it is to be started again right after."""
        self._watching: asyncio.Task[None] | None = None
        dispatcher.on_work = self.wake

    def start(self) -> None:
        """From now on fall asleep when nothing is to be done; `stop` ends it."""
        if self._after > 0:
            self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """End what is under way; the engine stays as it is."""
        for task in (self._watching, self._dozing):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def sleep(self) -> bool:
        """Let running requests finish, and put the engine to sleep; False where a new request kept it awake.

        Raises CannotSleep where there is no engine that could be stopped.
        """
        if self._supervisor.state is State.SLEEPING:
            return True
        if self._supervisor.state not in (State.READY, State.DEGRADED):
            raise CannotSleep(f"the engine is {self._supervisor.state}, it cannot be put to sleep")
        if self._dozing is None or self._dozing.done():
            self._dozing = asyncio.create_task(self._doze())
        try:
            return await asyncio.shield(self._dozing)
        except asyncio.CancelledError:
            if self._dozing.cancelled():
                return False
            raise

    def wake(self) -> None:
        """Call off falling asleep, and start the engine if it sleeps."""
        self._wanted = True
        if self._stopping:
            return
        if self._dozing is not None:
            self._dozing.cancel()
        self._supervisor.wake()

    async def _doze(self) -> bool:
        dispatcher = self._dispatcher
        while dispatcher.running or dispatcher.waiting or self._embeddings.running:  # noqa: ASYNC110
            await asyncio.sleep(_POLL)
        await save_slots(dispatcher)
        if self._supervisor.state not in (State.READY, State.DEGRADED):
            raise CannotSleep(f"the engine is {self._supervisor.state}, it cannot be put to sleep")
        self._stopping, self._wanted = True, False
        try:
            await self._supervisor.sleep()
        finally:
            self._stopping = False
        if self._wanted:
            self._supervisor.wake()
            return False
        log.info("the engine sleeps: its memory is free, the prompt cache is kept")
        return True

    async def _watch(self) -> None:
        while True:
            idle = self._dispatcher.idle_for
            if self._supervisor.state is not State.READY:
                await asyncio.sleep(self._after)
            elif idle < self._after:
                await asyncio.sleep(self._after - idle)
            else:
                try:
                    await self.sleep()
                except CannotSleep as error:
                    log.debug("%s", error)
