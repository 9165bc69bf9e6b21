"""A thread for calls that may never return, and that nobody has to wait for then.

A disk that hangs (a network file system without its server, a dying device) does not answer, nor does NVML where the
driver of a GPU hangs, and nothing can end a thread from outside.  So this one is a daemon thread, which the end of the
process does not wait for, and what it was asked for can be given up: who awaits it goes on with an error.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Unanswered(RuntimeError):
    """A call has not returned and was given up."""


class _Call(NamedTuple):
    future: Future[Any]
    run: Callable[[], Any]


class DaemonThread:
    """Carries calls out one after the other; it begins with the first of them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._news = threading.Condition()
        """Guards the rest."""
        self._calls: deque[_Call] = deque()
        self._current: _Call | None = None
        self._over = False

    def submit(self, run: Callable[[], T]) -> Future[T]:
        """Have it called in the thread.  Raises RuntimeError after `stop`."""
        future: Future[T] = Future()
        with self._news:
            if self._over:
                raise RuntimeError(f"the thread {self._name} was stopped")
            self._calls.append(_Call(future, run))
            self._news.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        return future

    async def call(self, run: Callable[[], T]) -> T:
        """What a call returns.  Where the caller is cancelled, a call that has begun goes on nevertheless."""
        return await asyncio.wrap_future(self.submit(run))

    async def stop(self, within: float, last: Callable[[], None] = lambda: None) -> bool:
        """End the thread when it has carried out what was submitted, and then `last`; a second time does nothing.

        False where that is left undone for `within` seconds: then it is given up, those who await it get
        Unanswered, and the thread ends with the process at the latest.
        """
        if self._over:
            return True
        ending = asyncio.wrap_future(self.submit(last))
        await asyncio.wait({ending}, timeout=within)
        answered = ending.done()
        ending.cancel()
        self._give_up()
        return answered

    def _give_up(self) -> None:
        with self._news:
            self._over = True
            left, self._calls = [*([self._current] if self._current else []), *self._calls], deque()
            self._news.notify()
        for call in left:
            with suppress(InvalidStateError):  # it has just ended
                call.future.set_exception(Unanswered(f"a call in the thread {self._name} did not return"))

    def _work(self) -> None:
        while (call := self._next()) is not None:
            if not call.future.set_running_or_notify_cancel():
                continue
            try:
                result = call.run()
            except BaseException as error:
                with suppress(InvalidStateError):  # it was given up
                    call.future.set_exception(error)
            else:
                with suppress(InvalidStateError):
                    call.future.set_result(result)

    def _next(self) -> _Call | None:
        with self._news:
            self._current = None
            while not self._calls and not self._over:
                self._news.wait()
            self._current = self._calls.popleft() if self._calls else None
            return self._current
