"""What the parts of the disk tier share: what is on the disk, what happened, and how its threads are asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from lcpd.cache.catalogue import Catalogue
from lcpd.cache.fingerprint import Fingerprint
from lcpd.cache.store import BlobStore
from lcpd.daemon_thread import DaemonThread

T = TypeVar("T")


@dataclass
class Counts:
    """See `DiskCounts`."""

    written: int = 0
    read: int = 0
    read_seconds: float = 0.0
    removed: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)


@dataclass
class Shelf:
    """What the parts of the disk tier share; changed by the tier, but for the counts."""

    store: BlobStore
    catalogue: Catalogue = field(default_factory=Catalogue)
    fingerprint: Fingerprint = field(default_factory=dict)
    rolls_back: bool = True
    """Whether sequences go on from anywhere."""
    counts: Counts = field(default_factory=Counts)


async def to_the_end(calling: asyncio.Future[T]) -> None:
    """Wait until a call is over or was given up, also while the caller is being cancelled."""
    while not calling.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({calling})
    if not calling.cancelled():
        calling.exception()  # whoever is cancelled has no use for it


async def call_to_the_end(thread: DaemonThread, call: Callable[[], T]) -> T:
    """What a call returns; where the caller is cancelled it goes on only when the thread is through with its memory."""
    calling = asyncio.ensure_future(thread.call(call))
    try:
        await asyncio.wait({calling})
    finally:
        await to_the_end(calling)
    return calling.result()
