"""What memory this machine has to offer now."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from lcpd.build.machine import read_cpu
from lcpd.build.record import Build
from lcpd.metrics.nvml import Nvml
from lcpd.planning.plan import Machine
from lcpd.room import SPARE, available, fitting

_INDEX = re.compile(r"\s*([0-9]+)")


def machine_for(build: Build | None, gpu_layers: int | None, split: Sequence[float] = ()) -> Machine:
    """Where a model would run with this build, so many layers on the GPU (None: all) and this `model.tensor_split`."""
    if build is not None and gpu_layers != 0:
        if build.backend == "cuda" and (free := _free_on_cards()):
            return Machine(gpu=True, device_bytes=usable(free, split))
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


def usable(free: Sequence[int], split: Sequence[float]) -> int:
    """Bytes that a model can take of cards with so much free, if each gets its share; no shares: as they have room."""
    shares = [*split[: len(free)], *[0.0] * (len(free) - len(split))]
    total = sum(shares)
    if not total:
        return sum(free)
    return int(min(room * total / share for room, share in zip(free, shares, strict=True) if share))


def visible(listed: str | None, uuids: Sequence[str]) -> list[int]:
    """Which of these cards CUDA shows to a process, in its order; `listed`: CUDA_VISIBLE_DEVICES, None if not set.

    An entry is an index or the beginning of the UUID of one card.  One that is neither ends the list, and with one that
    comes twice nothing is shown.  Indexes are taken to be NVML's, by the PCI bus: CUDA counts the fastest card first
    unless CUDA_DEVICE_ORDER says PCI_BUS_ID, which makes no difference among equal ones.
    """
    if listed is None:
        return list(range(len(uuids)))
    found: list[int] = []
    for entry in listed.split(","):
        card = _named(entry, uuids)
        if card is None:
            break
        if card in found:
            return []
        found.append(card)
    return found


def _named(entry: str, uuids: Sequence[str]) -> int | None:
    """The card that an entry of CUDA_VISIBLE_DEVICES names, if there is just one."""
    if number := _INDEX.match(entry):
        index = int(number[1])
        return index if index < len(uuids) else None
    beginning = entry.strip()
    cards = [card for card, uuid in enumerate(uuids) if beginning and uuid.startswith(beginning)]
    return cards[0] if len(cards) == 1 else None


def _free_on_cards() -> list[int]:
    """Bytes, of each NVIDIA card that CUDA shows and whose driver answers."""
    readings = Nvml().read(None)
    shown = visible(os.environ.get("CUDA_VISIBLE_DEVICES"), [reading.uuid for reading in readings])
    return [
        reading.memory_total - reading.memory_used
        for reading in (readings[card] for card in shown)
        if reading.memory_total is not None and reading.memory_used is not None
    ]
