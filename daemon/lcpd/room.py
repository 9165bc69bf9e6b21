"""How much memory there is for the prompt cache: `cache.ram` is halved until it fits into what is available.

Memory is taken up as the prompt cache fills, so that too large a one would only be noticed hours later, when the kernel
ends some process.  Halved, so that a restart beside other programs comes to the same size, and what the daemon before
has left (:mod:`lcpd.carry_over`) can be used again.
"""

from __future__ import annotations

from pathlib import Path

from lcpd.build.machine import available_memory

SPARE = 1 << 30
"""Bytes that are left for the model's context, the processes, and everybody else."""
LEAST = 64 << 20
"""Bytes that a prompt cache has however little is available."""
_PROC = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


def fitting(wanted: int, available: int) -> int:
    """`wanted` bytes, or the largest half, quarter, ... of it that `available` has room for; not less than LEAST."""
    size = wanted
    while size > max(available, LEAST) and size // 2 >= LEAST:
        size //= 2
    return size


def available() -> int:
    """Bytes that this process can still take: what the machine has, or what a cgroup's limit leaves, if less."""
    return min([available_memory(), *limits_left(_PROC, _CGROUPS)])


def limits_left(proc: Path, cgroups: Path) -> list[int]:
    """What the memory limits of the process's cgroup (version 2), and those around it, leave.

    Page cache counts as free: it goes first.
    """
    try:
        lines = proc.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    inside = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if inside is None:
        return []
    folder = cgroups / inside
    return [left for at in (folder, *folder.parents) if at.is_relative_to(cgroups) and (left := _left(at)) is not None]


def _left(cgroup: Path) -> int | None:
    """None: it has no limit."""
    try:
        limits = [(cgroup / name).read_text().strip() for name in ("memory.max", "memory.high")]
        current = int((cgroup / "memory.current").read_text())
        figures = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except OSError:
        return None
    numbers = [int(limit) for limit in limits if limit != "max"]
    cached = int(figures.get("active_file", 0)) + int(figures.get("inactive_file", 0))
    return max(0, min(numbers) - current + cached) if numbers else None
