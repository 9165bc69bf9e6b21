"""Builds that daemons run from are not removed: a daemon holds a shared lock on the manifest of its build."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from lcpd.build.record import MANIFEST, Build


def hold(build: Build) -> int:
    """Mark a build as in use until the returned descriptor is closed, or this process ends.  Raises OSError."""
    descriptor = os.open(build.path / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_in_use(folder: Path) -> bool:
    """Whether a process holds the build in this folder."""
    descriptor = os.open(folder / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
