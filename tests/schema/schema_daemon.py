"""The daemon that the tests of this folder send bodies to: a real one, whose limits are near."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.servers import Equal, Server, run_lcpd

from lcpd.models import resolve
from lcpd.paths import dirs

ADMIN_KEY = "sk-admin-of-the-schema-tests"
MAX_BODY = 16 * 2**20
"""Bytes."""
CLIENT_TIMEOUT = 2
"""Seconds that a body may take."""


def daemon(folder: Path) -> AbstractContextManager[Server]:
    """With the tiny hybrid, and short replies."""
    equal = Equal(
        model=resolve("demo:hybrid", dirs()),
        threads=1,
        ctx=4096,
        batch=512,
        ubatch=512,
        flash_attn="off",
        slots=2,
        cache_ram=64,
        environment={
            "LCPD_ADMIN_KEYS": f"root {ADMIN_KEY}",
            "LCPD_SERVER__MAX_TOKENS": "4",
            "LCPD_SERVER__MAX_BODY": str(MAX_BODY),
            "LCPD_SERVER__CLIENT_TIMEOUT": str(CLIENT_TIMEOUT),
            "LCPD_CHAT__CALL_TIMEOUT": "10",
            "LCPD_CHAT__MEMORY_LIMIT": "1GiB",
            "OMP_NUM_THREADS": "1",
        },
    )
    return run_lcpd(equal, folder)


def peak_memory(server: Server) -> int:
    """Bytes that the daemon's own process has held at most."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
