"""Commands that change sequences, carried out in the order in which they came, piece by piece."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator

Pieces = Generator[None, None, None]
"""Work that yields before each of its pieces: that which takes long, and cannot be divided."""


class CommandQueue:
    """Light work is done as soon as it is at the head of the queue, pieces are done when :meth:`advance` allows."""

    def __init__(self) -> None:
        self._waiting: deque[Pieces] = deque()
        self._at_piece = False
        """Whether the first one stands before a piece."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, work: Pieces) -> None:
        """Put work at the end, and do at once what is light and has nothing before it."""
        self._waiting.append(work)
        self.advance(pieces=0)

    def advance(self, pieces: int, seconds: float = 0.0) -> None:
        """Do up to `pieces` pieces, of which none but the first begins after `seconds`; with 0, light work only."""
        until = time.monotonic() + seconds
        done = 0
        while self._waiting:
            if self._at_piece:
                if done >= pieces or (done and time.monotonic() >= until):
                    return
                done += 1
            try:
                next(self._waiting[0])
                self._at_piece = True
            except StopIteration:
                self._waiting.popleft()
                self._at_piece = False
