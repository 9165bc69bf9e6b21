"""What memory this machine has to offer now."""

from __future__ import annotations

from lcpd.build.machine import read_cpu
from lcpd.build.record import Build
from lcpd.metrics.nvml import Nvml
from lcpd.planning.plan import Machine
from lcpd.room import SPARE, available, fitting


def machine_for(build: Build | None, gpu_layers: int | None) -> Machine:
    """Where a model would run with this build and so many layers on the GPU (None: all)."""
    if build is not None and gpu_layers != 0:
        if build.backend == "cuda" and (free := _free_on_cards()):
            return Machine(gpu=True, device_bytes=sum(free))
        if build.backend == "vulkan":
            return Machine(gpu=True, device_bytes=None)  # nothing tells how much is free
    return Machine(gpu=False, device_bytes=available(), cpu_flags=frozenset(read_cpu().features))


def arena_on(machine: Machine, cache_ram: int, weights: int) -> int:
    """Bytes that the daemon will give to the prompt cache: cache.ram, or less where the host has not so much.

    As lcpd.assembly.storage makes the arena; where only the GPU is known, the host is taken to have enough.
    """
    if machine.gpu or machine.device_bytes is None:
        return cache_ram
    return fitting(cache_ram, machine.device_bytes - SPARE - weights)


def _free_on_cards() -> list[int]:
    """Bytes, of each NVIDIA card whose driver answers."""
    readings = Nvml().read(None)
    return [
        reading.memory_total - reading.memory_used
        for reading in readings
        if reading.memory_total is not None and reading.memory_used is not None
    ]
