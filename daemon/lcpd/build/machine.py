"""What of this machine a native build depends on, and what it can afford."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from lcpd.build.hashing import value_sha256

GIB = 1 << 30


@dataclass(frozen=True)
class Cpu:
    machine: str
    model: str
    features: tuple[str, ...]
    """Sorted CPUID or HWCAP names, as the kernel reports them."""

    @property
    def has_amx(self) -> bool:
        return "amx_tile" in self.features

    @property
    def fingerprint(self) -> str:
        """Equal where code compiled with ``-march=native`` may be exchanged."""
        return value_sha256([self.machine, self.model, self.features])[:16]


def parse_cpuinfo(text: str, machine: str) -> Cpu:
    """The first processor in the text of ``/proc/cpuinfo``."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip().lower(), value.strip())
    model = fields.get("model name") or fields.get("cpu part") or "unknown"
    flags = fields.get("flags") or fields.get("features") or ""
    return Cpu(machine, model, tuple(sorted(set(flags.split()))))


def read_cpu() -> Cpu:
    return parse_cpuinfo(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"), platform.machine())


def default_jobs(cpus: int, available_bytes: int, backend: str) -> int:
    """Compilers at once: one a CPU, but not more than fit into memory (the largest files take 1 GiB, CUDA's 2)."""
    per_job = (2 if backend == "cuda" else 1) * GIB
    return max(1, min(cpus, available_bytes // per_job))


def usable_cpus() -> int:
    return len(os.sched_getaffinity(0))


def available_memory() -> int:
    """Bytes that can be allocated without swapping."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def required_disk(backend: str, architectures: int, has_source: bool, needs_wheels: bool) -> int:
    """Bytes to have free before a build starts, with a margin: measured sizes are in docs/build.md."""
    size = GIB // 4
    if not has_source:
        size += GIB // 4
    if backend == "cuda":
        size += GIB // 2 * max(1, architectures)
    if backend == "vulkan":
        size += GIB // 2
    if needs_wheels:
        size += 2 * GIB
    return size
