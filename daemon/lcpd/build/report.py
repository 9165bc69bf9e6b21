"""What the user sees of a build: sentences, and a bar from ninja's step count."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

Update = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""

PLAIN_INTERVAL_S = 10.0


class Reporter(Protocol):
    def say(self, text: str) -> None:
        """One line for the user."""

    def progress(self, what: str) -> AbstractContextManager[Update]:
        """Shows the progress of one long step while the context is open."""


class PlainReporter:
    """For logs and pipes: a line at most every `PLAIN_INTERVAL_S` seconds, none of them rewritten."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    @contextmanager
    def progress(self, what: str) -> Iterator[Update]:
        start = self._clock()
        last = start

        def update(done: int, total: int) -> None:
            nonlocal last
            now = self._clock()
            if now - last >= PLAIN_INTERVAL_S:
                last = now
                self.say(f"{what}: {done}/{total} steps, {now - start:.0f} s")

        yield update
        self.say(f"{what}: finished after {self._clock() - start:.0f} s")


class TerminalReporter:
    """For people: a bar with elapsed time."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def progress(self, what: str) -> Iterator[Update]:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)


def reporter_for(out: TextIO) -> Reporter:
    return TerminalReporter() if out.isatty() else PlainReporter(out)
