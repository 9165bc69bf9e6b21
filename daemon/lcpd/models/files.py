"""Putting a verified file in place: a lock, a part file, a checksum, an atomic rename."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BLOCK = 1 << 20


class PullError(Exception):
    """A model could not be fetched; the message names the cause and the remedy."""


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def part_of(target: Path, sha256: str) -> Path:
    """Where the unfinished ``target`` is collected.

    The checksum is in its name, so that a download is never continued with the bytes of another version.
    """
    return target.with_name(f"{target.name}.{sha256[:16]}.part")


def finish(target: Path, sha256: str) -> None:
    """Check the part file of ``target`` and rename it to ``target``; other part files of it are removed.

    A part file with the wrong content is removed too: ``PullError``.
    """
    part = part_of(target, sha256)
    actual = sha256_of(part)
    if actual != sha256:
        part.unlink()
        raise PullError(f"{target.name}: the checksum is wrong (SHA-256 {actual}, not {sha256}); try again")
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(target)
    for left_over in target.parent.iterdir():
        if left_over.name.startswith(f"{target.name}.") and left_over.suffix == ".part":
            left_over.unlink()


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Create ``folder`` and hold it against other pulls into it.  Raises ``PullError`` if one is at work."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PullError(f"another lcpd pull is at work in {folder}; wait for it to end") from None
        yield


def need_space(folder: Path, size: int) -> None:
    """Raise ``PullError`` unless ``size`` more bytes fit the disk of ``folder``."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise PullError(
            f"not enough disk space in {folder}: {size / 1e9:.2f} GB are needed, {free / 1e9:.2f} GB are free"
        )
