"""A disk that fails on command: the real store, with errors of the system where it writes or reads."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from lcpd.cache.arena import Buffer
from lcpd.cache.store import DiskStore, Listing


class FailingStore(DiskStore):
    """In place of :class:`DiskStore`; what fails is said on the class, because the daemon makes its own object."""

    writing: int | None = None
    """The errno with which writing a file fails, after a part of it was written; None: it works."""
    reading: int | None = None
    """The same for reading."""
    opening: int | None = None
    """The same for opening the store."""
    failures = 0

    @classmethod
    def works(cls) -> None:
        """From now on."""
        cls.writing = cls.reading = cls.opening = None

    def open(self) -> Listing:
        if self.opening is not None:
            _count()
            raise self._error(_os_error(self.opening))
        return super().open()

    def put(self, key: str, header: bytes, state: Iterable[Buffer]) -> None:
        super().put(key, header, self._parts(state))

    def _parts(self, state: Iterable[Buffer]) -> Iterator[Buffer]:
        for number, part in enumerate(state):
            if self.writing is not None:
                if number == 0:
                    yield memoryview(part)[: len(part) // 2]
                _count()
                raise _os_error(self.writing)
            yield part

    def read(self, key: str) -> BinaryIO:
        if self.reading is not None:
            _count()
            raise _os_error(self.reading)
        return super().read(key)


def _count() -> None:
    FailingStore.failures += 1


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


KINDS = {"full": errno.ENOSPC, "over quota": errno.EDQUOT, "i/o": errno.EIO, "read-only": errno.EROFS}
