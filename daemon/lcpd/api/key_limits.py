"""How much each API key may ask for: requests at once, and requests in a time."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from lcpd.keys import Key, Rate

_WHEN_ONE_ENDS = 5
"""Seconds; a guess, because nobody knows how long a reply becomes."""


@dataclass
class LimitExceeded(Exception):
    """A key has used up what it may; something may be left after `retry_after` seconds."""

    what: Literal["concurrency", "rate"]
    message: str
    retry_after: int


def refilled(level: float, elapsed: float, rate: Rate) -> float:
    """Requests that are left after `elapsed` seconds without any, when `level` were left before."""
    return min(float(rate.count), level + elapsed * rate.count / rate.seconds)


class KeyLimits:
    """What the keys have used."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: Counter[str] = Counter()
        self._left: dict[str, tuple[float, float]] = {}
        """Requests that were left, and when."""

    @contextmanager
    def admitted(self, key: Key) -> Iterator[None]:
        """Around a request of the key.  Raises LimitExceeded, which uses nothing up."""
        if key.concurrency and self._running[key.digest] >= key.concurrency:
            raise LimitExceeded(
                "concurrency",
                f"The API key {key.name} has {key.concurrency} requests under way, which is as many as it may have.",
                _WHEN_ONE_ENDS,
            )
        if key.rate:
            self._take(key, key.rate)
        self._running[key.digest] += 1
        try:
            yield
        finally:
            self._running[key.digest] -= 1

    def _take(self, key: Key, rate: Rate) -> None:
        now = self._clock()
        level, at = self._left.get(key.digest, (float(rate.count), now))
        level = refilled(level, now - at, rate)
        if level < 1:
            raise LimitExceeded(
                "rate",
                f"The API key {key.name} may send {rate.count} requests in {rate.seconds} s, and has sent them.",
                max(1, math.ceil((1 - level) * rate.seconds / rate.count)),
            )
        self._left[key.digest] = level - 1, now
