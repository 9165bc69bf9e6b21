"""Files of state on disk, and an index of their headers: the interface, and how it is done with diskcache.

diskcache keeps a SQLite table with a row for each file.  What it does not do, or not as needed here:

    diskcache                                                here
    ---------                                                ----
    pickles keys and values, unpickles what it finds         keys are str, values are streams; anything else is an
    (CVE-2025-69872)                                         error, whatever the table says
    evicts by age, a parent before its children              eviction off, culling off: retention is our own
    writes the row without fsync of file and folder          `_Files.store` writes the file itself: O_EXCL, 0600, fsync
                                                             of file and folder; the row follows, with
                                                             synchronous = FULL
    leaves the file where the row cannot be written          it is removed
    maps the table's file into memory                        off: where the disk fails to read, that is SIGBUS
    tries for ever (`retry=True`) where the table cannot be  never asked for; what SQLite said is found again behind
    written, else says Timeout                               the Timeout
    takes file names from the table as they are              only names that it makes itself are opened or removed

The row of a file holds a copy of its header.  A file without a row (a crash in between) and a row without a file are
removed when the store is opened.  One process at a time has the folder (flock).
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import diskcache
from diskcache.core import MODE_BINARY, UNKNOWN

log = logging.getLogger(__name__)

Trouble = Literal["full", "read-only", "i/o", "index", "in use"]
"""What keeps a disk from being used: no space left, or a quota; no permission to write; errors of the device; an index
that is damaged; another daemon."""

_NAME = re.compile(r"[0-9a-f]{2}/[0-9a-f]{30}\.blob")
_FOLDER = re.compile(r"[0-9a-f]{2}")
_DATABASE = "cache.db"
_BESIDE = ("-wal", "-shm", "-journal")
"""What SQLite appends to that for its other files."""
_SECTOR = 512
"""Bytes in one of `st_blocks`."""
_LOCK = "lock"
_BUSY_TIMEOUT = 5.0
"""Seconds that SQLite may wait for its lock, which nobody else should hold."""
_BATCH = 100
"""Rows that are removed in one transaction."""


class StoreError(RuntimeError):
    """The disk cannot be used now; the text names the folder."""

    def __init__(self, trouble: Trouble, message: str) -> None:
        super().__init__(message)
        self.trouble: Trouble = trouble


@dataclass(frozen=True)
class Row:
    """One file, as the index knows it."""

    key: str
    header: bytes
    size: int
    """Bytes of the file as it is now."""
    used: float
    """When it was used last, in unix seconds."""
    written: float
    """When it was written."""


@dataclass
class Listing:
    """All that is there."""

    rows: list[Row] = field(default_factory=list)
    missing: int = 0
    """Rows without a file; removed."""
    orphans: int = 0
    """Files without a row; removed."""
    reset: bool = False
    """The index was damaged; everything was removed."""


class BlobStore(Protocol):
    """Files under keys.  All calls block: they belong into threads, all but `read` and `free` into one and the same.

    All raise StoreError where the disk cannot be used.
    """

    growth: int
    """Bytes by which one more file may let the index and the folders grow."""

    def open(self) -> Listing:
        """Begin to use it, and list all that is there without reading a file."""

    def put(self, key: str, header: bytes, state: Iterable[bytes | memoryview]) -> None:
        """Store a file; what was there under this key is replaced.  It survives a power cut from the return on."""

    def read(self, key: str) -> BinaryIO:
        """A file to be read.  Raises FileNotFoundError, or OSError where it cannot be opened."""

    def remove(self, keys: Sequence[str]) -> None:
        """Remove files; those that are not there are passed over."""

    def mark_used(self, keys: Sequence[str], used: float) -> None:
        """They were used at `used` (unix seconds), for the next `open` to tell."""

    def clear(self) -> None:
        """Remove everything, the index too."""

    def free(self) -> int:
        """Bytes that may still be written to the file system."""

    def overhead(self) -> int:
        """Bytes that the index and the folders take up."""

    def close(self) -> None:
        """Give it up; nothing is removed."""


class _Blob:
    """What `put` hands to diskcache as a stream, which hands it to `_Files.store`."""

    def __init__(self, header: bytes, state: Iterable[bytes | memoryview]) -> None:
        self.header = header
        self.state = state
        self.path: Path | None = None
        """Where it was written."""


class _Files(diskcache.Disk):  # type: ignore[misc]
    """See the module's table."""

    def put(self, key: object) -> tuple[str, bool]:
        if type(key) is not str:
            raise TypeError(f"keys are str, not {type(key).__name__}")
        return key, True

    def get(self, key: object, raw: object) -> str:
        if type(key) is not str or not raw:
            raise sqlite3.DatabaseError("a key in the index is no text")
        return key

    def store(self, value: object, read: bool, key: object = UNKNOWN) -> tuple[int, int, str, bytes]:
        if not isinstance(value, _Blob) or not read:
            raise TypeError("only streams are stored")
        filename, full_path = self.filename(key, value)
        value.path = Path(full_path)
        return _write(value.path, value), MODE_BINARY, filename, value.header

    def fetch(self, mode: object, filename: object, value: object, read: bool) -> tuple[str, bytes]:
        """The file's name and its header, not its contents."""
        if mode != MODE_BINARY or type(filename) is not str or not _NAME.fullmatch(filename):
            raise sqlite3.DatabaseError("a row in the index does not name a file")
        if type(value) is not bytes:
            raise sqlite3.DatabaseError("a row in the index has no header")
        return filename, value

    def filename(self, key: object = UNKNOWN, value: object = UNKNOWN) -> tuple[str, str]:
        name = os.urandom(16).hex()
        filename = f"{name[:2]}/{name[2:]}.blob"
        return filename, str(Path(self._directory) / filename)

    def remove(self, file_path: str) -> None:
        if not _NAME.fullmatch(file_path):
            raise sqlite3.DatabaseError("a row in the index does not name a file")
        try:
            (Path(self._directory) / file_path).unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            # Its row is gone: it is removed as an orphan when the store is opened the next time.
            log.warning("a file of the prompt cache cannot be removed: %s", error)


def _write(path: Path, blob: _Blob) -> int:
    """A new file that is on the disk when this returns; nothing is left of it where that fails."""
    fresh = not path.parent.is_dir()
    path.parent.mkdir(mode=0o700, exist_ok=True)
    size = 0
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            for part in chain((blob.header,), blob.state):
                size += file.write(part)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(path.parent)
        if fresh:
            _sync_folder(path.parent.parent)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
    return size


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class DiskStore:
    """A `BlobStore` in a folder."""

    growth = 256 << 10  # a folder, and a row in SQLite's log, 200 of which are copied to the database when it is full

    def __init__(self, folder: Path) -> None:
        """Touches nothing."""
        self._folder = folder
        self._index: Any = None
        self._lock = -1
        self._names: dict[str, str] = {}
        """Key -> file name."""

    # ---- beginning and end -----------------------------------------------------------------------------

    def open(self) -> Listing:
        """See `BlobStore`."""
        try:
            return self._open()
        except (OSError, sqlite3.Error, diskcache.Timeout) as error:
            self.close()
            raise self._error(error) from error

    def _open(self) -> Listing:
        self.close()
        self._make_folder()
        self._take_lock()
        try:
            self._connect()
            listing = self._list()
        except (sqlite3.Error, ValueError, AttributeError) as error:
            # AttributeError, ValueError: diskcache's own settings, which are rows too, are damaged.
            if isinstance(error, sqlite3.Error) and _trouble(error) != "index":
                raise
            log.warning("the index of the prompt cache in %s is damaged, all of it is removed: %s", self._folder, error)
            self._reset()
            listing = Listing(reset=True)
        listing.orphans = self._sweep()
        return listing

    def _make_folder(self) -> None:
        """It is ours, and for nobody else to read."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError:
            raise StoreError("i/o", f"{self._folder} (cache.dir) is no folder; name another one") from None
        owner, us = self._folder.stat().st_uid, os.geteuid()
        if owner != us != 0:
            raise StoreError(
                "read-only",
                f"{self._folder} (cache.dir) belongs to user {owner}, lcpd runs as user {us}, and prompts rest there in"
                " clear: give it to that user, or name another folder",
            )
        self._folder.chmod(0o700)

    def _take_lock(self) -> None:
        self._lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = -1
            raise StoreError(
                "in use", f"{self._folder} (cache.dir) is in use by another daemon: give each one its own"
            ) from None

    def _connect(self) -> None:
        # SQLite gives its other files the mode of this one.
        os.close(os.open(self._folder / _DATABASE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        (self._folder / _DATABASE).chmod(0o600)
        self._index = diskcache.Cache(
            str(self._folder),
            timeout=_BUSY_TIMEOUT,
            disk=_Files,
            eviction_policy="none",
            cull_limit=0,
            statistics=0,
            tag_index=0,
            sqlite_journal_mode="wal",
            sqlite_synchronous=2,  # FULL
            sqlite_mmap_size=0,
        )

    def _list(self) -> Listing:
        listing, missing = Listing(), list[str]()
        for key in self._index:
            found = self._index.get(key)
            if found is None:
                raise sqlite3.DatabaseError("a key of the index has no row")
            self._names[key], header = found
            try:
                status = (self._folder / self._names[key]).stat()
            except FileNotFoundError:
                missing.append(key)
                continue
            used = max(status.st_atime, status.st_mtime)
            listing.rows.append(Row(key, header, status.st_size, used, status.st_mtime))
        self._remove(missing)
        listing.missing = len(missing)
        return listing

    def _sweep(self) -> int:
        """Remove files that no row speaks of."""
        known = set(self._names.values())
        orphans = 0
        for folder in self._folder.iterdir():
            if len(folder.name) != 2 or folder.is_symlink() or not folder.is_dir():
                continue
            for path in folder.iterdir():
                name = f"{folder.name}/{path.name}"
                # The folder may be one that others use as well: what is not named like ours is not ours.
                if _NAME.fullmatch(name) and name not in known and not path.is_dir():
                    path.unlink()
                    orphans += 1
        return orphans

    def _reset(self) -> None:
        """Remove everything and begin anew, with the lock held."""
        self._disconnect()
        for suffix in ("", *_BESIDE):
            (self._folder / (_DATABASE + suffix)).unlink(missing_ok=True)
        self._sweep()
        for folder in self._folder.iterdir():
            if _FOLDER.fullmatch(folder.name) and not folder.is_symlink():
                with suppress(OSError):  # something that is not ours is in it
                    folder.rmdir()
        self._connect()

    def _disconnect(self) -> None:
        self._names.clear()
        if self._index is not None:
            with suppress(sqlite3.Error):
                self._index.close()
            self._index = None

    def close(self) -> None:
        """See `BlobStore`."""
        self._disconnect()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # ---- files -----------------------------------------------------------------------------------------

    def put(self, key: str, header: bytes, state: Iterable[bytes | memoryview]) -> None:
        """See `BlobStore`."""
        blob = _Blob(header, state)
        try:
            self._index.set(key, blob, read=True)
        except (OSError, sqlite3.Error, diskcache.Timeout) as error:
            if blob.path is not None:
                with suppress(OSError):
                    blob.path.unlink()
            raise self._error(error) from error
        assert blob.path is not None
        self._names[key] = f"{blob.path.parent.name}/{blob.path.name}"

    def read(self, key: str) -> BinaryIO:
        """See `BlobStore`."""
        name = self._names.get(key)
        if name is None:
            raise FileNotFoundError(errno.ENOENT, "there is no file of this key", key)
        descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        return os.fdopen(descriptor, "rb")

    def remove(self, keys: Sequence[str]) -> None:
        """See `BlobStore`."""
        try:
            self._remove(keys)
        except (sqlite3.Error, diskcache.Timeout) as error:
            raise self._error(error) from error

    def _remove(self, keys: Sequence[str]) -> None:
        # diskcache removes the files before the transaction ends: after a crash in between there are rows without
        # files, which the next `open` removes.
        for begin in range(0, len(keys), _BATCH):
            with self._index.transact():
                for key in keys[begin : begin + _BATCH]:
                    self._index.delete(key)
                    self._names.pop(key, None)

    def mark_used(self, keys: Sequence[str], used: float) -> None:
        """See `BlobStore`: it is the time of the file's last access."""
        for key in keys:
            if (name := self._names.get(key)) is not None:
                with suppress(OSError):  # at worst it counts as used less recently
                    path = self._folder / name
                    os.utime(path, (used, path.stat().st_mtime))

    def clear(self) -> None:
        """See `BlobStore`."""
        try:
            self._reset()
        except (OSError, sqlite3.Error, diskcache.Timeout) as error:
            raise self._error(error) from error

    def free(self) -> int:
        """See `BlobStore`."""
        try:
            status = os.statvfs(self._folder)
        except OSError as error:
            raise self._error(error) from error
        return status.f_bavail * status.f_frsize

    def overhead(self) -> int:
        """See `BlobStore`."""
        size = 0
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    size += entry.stat(follow_symlinks=False).st_blocks * _SECTOR
        return size

    def _error(self, error: Exception) -> StoreError:
        cause = error
        if isinstance(error, diskcache.Timeout) and isinstance(error.__context__, Exception):
            cause = error.__context__  # what SQLite said, which diskcache leaves out
        return StoreError(_trouble(cause), f"{self._folder} (cache.dir) cannot be used: {cause}")


_FULL = (errno.ENOSPC, errno.EDQUOT)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_SQLITE: dict[int, Trouble] = {
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_READONLY: "read-only",
    sqlite3.SQLITE_PERM: "read-only",
    sqlite3.SQLITE_CANTOPEN: "i/o",
    sqlite3.SQLITE_IOERR: "i/o",
    sqlite3.SQLITE_BUSY: "in use",
    sqlite3.SQLITE_LOCKED: "in use",
}


def _trouble(error: Exception) -> Trouble:
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        return _SQLITE.get(code & 0xFF, "index")
    number = error.errno if isinstance(error, OSError) else None
    return "full" if number in _FULL else "read-only" if number in _READ_ONLY else "i/o"
