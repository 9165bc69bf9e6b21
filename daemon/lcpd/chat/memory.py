"""Memory that the chat process has freed, given back to the system.

glibc gives back by itself only what lies at the end of its heap.  Rendering tools of 5 MB takes 550 MB for a moment, in
small pieces, and some small piece that stays (a remembered prompt) lies behind all of them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

IDLE = 1.0
"""Seconds without a call after which memory is given back: it takes up to 50 ms, for which nobody shall wait."""
SPARE = 64 << 20
"""Bytes beyond those after the start that may stay, to be used again without asking the system."""


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def trim() -> None:
    """Give back what is free; does nothing with a libc other than glibc."""
    if release := getattr(ctypes.CDLL(None), "malloc_trim", None):
        release(0)


class Spare:
    """What this process may keep."""

    def __init__(self, resident: Callable[[], int] = resident, trim: Callable[[], None] = trim) -> None:
        self._resident = resident
        self._trim = trim
        self._usual = resident()

    def give_back(self) -> None:
        """Give back what is free where more than `SPARE` has come to what there was when this was made."""
        if self._resident() > self._usual + SPARE:
            self._trim()
