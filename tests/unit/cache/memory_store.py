"""A disk tier's store in memory, which fails as it is told to."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from lcpd.cache.store import Listing, Row, StoreError, Trouble


class MemoryStore:
    """A `BlobStore`; what it holds outlives `close`, as a disk's contents outlive a daemon."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.headers: dict[str, bytes] = {}
        self.used: dict[str, float] = {}
        self.written: dict[str, float] = {}
        self.space = 1 << 40
        self.trouble: Trouble | None = None
        """What every call that writes ends with from now on."""
        self.opened = self.reads = self.puts = 0
        self.now = 0.0

    def _check(self) -> None:
        if self.trouble is not None:
            raise StoreError(self.trouble, "the memory (cache.dir) cannot be used: it was told to fail")

    def open(self) -> Listing:
        self._check()
        self.opened += 1
        rows = [
            Row(key, header, len(self.files[key]), self.used.get(key, 0.0), self.written.get(key, 0.0))
            for key, header in self.headers.items()
            if key in self.files
        ]
        return Listing(rows, missing=len(self.headers) - len(rows))

    def put(self, key: str, header: bytes, state: Iterable[bytes | memoryview]) -> None:
        self._check()
        self.puts += 1
        data = b"".join([header, *map(bytes, state)])
        self.space -= len(data)
        self.files[key], self.headers[key] = data, header
        self.used[key] = self.written[key] = self.now

    def read(self, key: str) -> BinaryIO:
        self.reads += 1
        if key not in self.files:
            raise FileNotFoundError(key)
        return io.BytesIO(self.files[key])

    def remove(self, keys: Sequence[str]) -> None:
        self._check()
        for key in keys:
            self.space += len(self.files.pop(key, b""))
            self.headers.pop(key, None)

    growth = 0

    def mark_used(self, keys: Sequence[str], used: float) -> None:
        self.used.update(dict.fromkeys(keys, used))

    def clear(self) -> None:
        self._check()
        self.files.clear()
        self.headers.clear()

    def free(self) -> int:
        self._check()
        return self.space

    def overhead(self) -> int:
        return 0

    def close(self) -> None:
        pass
