"""How many threads to compute with: the physical cores that this process may use.

Two threads on the hyper-threads of one core, or more threads than free cores, make llama.cpp slower: its threads wait
for each other by spinning.
"""

from __future__ import annotations

import os
from pathlib import Path


def free_cores() -> int:
    """Physical cores within the CPU affinity and the cgroup's quota; at least 1."""
    cpus = os.sched_getaffinity(0)
    cores = len({_core(cpu) for cpu in cpus})
    quota = _cgroup_quota(Path("/sys/fs/cgroup/cpu.max"))
    return max(1, cores if quota is None else min(cores, int(quota)))


def _core(cpu: int) -> str:
    """What names the physical core of a logical CPU; the CPU itself where the kernel does not tell."""
    siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return siblings.read_text().strip()
    except OSError:
        return str(cpu)


def _cgroup_quota(path: Path) -> float | None:
    """CPUs that a cgroup v2 quota allows (kernel docs, cgroup-v2, cpu.max); None without one."""
    try:
        limit, period = path.read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return None
