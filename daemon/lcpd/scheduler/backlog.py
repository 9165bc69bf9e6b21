"""Events that wait for a slow consumer: those that say the same kind of thing become one."""

from __future__ import annotations

from itertools import chain

from lcpd.scheduler.events import Event, Progress, Text


class Backlog:
    """Events in order; consecutive Text events are joined, of consecutive Progress events the last one counts."""

    def __init__(self) -> None:
        self._runs: list[list[Event]] = []
        """Text events that are to be joined are one run; so that joining costs once, it is done by `take`."""
        self._error: Exception | None = None

    def __len__(self) -> int:
        return len(self._runs) + (self._error is not None)

    def add(self, event: Event | Exception) -> None:
        """Append an event, or the error that comes after all of them."""
        if isinstance(event, Exception):
            self._error = event
        elif isinstance(event, Text) and self._runs and isinstance(self._runs[-1][-1], Text):
            self._runs[-1].append(event)
        elif isinstance(event, Progress) and self._runs and isinstance(self._runs[-1][-1], Progress):
            self._runs[-1] = [event]
        else:
            self._runs.append([event])

    def take(self) -> tuple[list[Event], Exception | None]:
        """All events, and the error; the backlog is empty then."""
        runs, self._runs = self._runs, []
        return [_join(run) for run in runs], self._error


def _join(run: list[Event]) -> Event:
    texts = [event for event in run if isinstance(event, Text)]
    if len(texts) < 2:
        return run[0]
    return Text(
        tuple(chain.from_iterable(event.tokens for event in texts)),
        "".join(event.text for event in texts),
        tuple(chain.from_iterable(event.probs for event in texts)),
    )
