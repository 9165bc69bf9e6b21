"""What libllama's log tells about the memory of a model and its context.

Source of the lines: `load_tensors` (llama-model.cpp), the constructors in llama-kv-cache.cpp and
llama-memory-recurrent.cpp, `llama_context::llama_context` and `sched_reserve` (llama-context.cpp).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_BUFFER = re.compile(r"(?P<where>\S+) +(?P<what>model|KV|RS|compute|output) buffer size = +(?P<mib>[\d.]+) MiB")
_CACHE = re.compile(
    r"llama_kv_cache: size = +(?P<mib>[\d.]+) MiB \( *(?P<cells>\d+) cells, +(?P<layers>\d+) layers,.*"
    r"K \((?P<type>\w+)\): +(?P<k>[\d.]+) MiB, V \(\w+\): +(?P<v>[\d.]+) MiB"
)
_RECURRENT = re.compile(
    r"llama_memory_recurrent: size = +(?P<mib>[\d.]+) MiB \( *(?P<cells>\d+) cells,.*"
    r"R \(\w+\): +(?P<r>[\d.]+) MiB, S \(\w+\): +(?P<s>[\d.]+) MiB"
)


@dataclass(frozen=True)
class CacheLine:
    """One KV cache; sizes in MiB as they were logged, to two digits."""

    mib: float
    cells: int
    layers: int
    type: str
    k_mib: float
    v_mib: float


@dataclass(frozen=True)
class RecurrentLine:
    """The recurrent state of all sequences; sizes in MiB as they were logged, to two digits."""

    mib: float
    cells: int
    r_mib: float
    s_mib: float


@dataclass
class Logged:
    """The sizes that were found, in MiB."""

    buffers: dict[str, dict[str, float]] = field(default_factory=dict)
    """What it is for (`model`, `KV`, `RS`, `compute`, `output`) -> device -> MiB."""
    caches: list[CacheLine] = field(default_factory=list)
    """In the order of the log: the one without a window first."""
    recurrent: RecurrentLine | None = None

    def total(self, what: str) -> float:
        """MiB on all devices; 0 where the log says nothing."""
        return sum(self.buffers.get(what, {}).values())


def read(lines: Iterable[str]) -> Logged:
    """Take the sizes out of lines of the log of one model and one context."""
    logged = Logged()
    for line in lines:
        if match := _BUFFER.search(line):
            devices = logged.buffers.setdefault(match["what"], {})
            # A graph that is laid out again, and a larger output, take the place of the one before.
            before = 0.0 if match["what"] in ("compute", "output") else devices.get(match["where"], 0.0)
            devices[match["where"]] = before + float(match["mib"])
        elif match := _CACHE.search(line):
            logged.caches.append(
                CacheLine(
                    float(match["mib"]),
                    int(match["cells"]),
                    int(match["layers"]),
                    match["type"],
                    float(match["k"]),
                    float(match["v"]),
                )
            )
        elif match := _RECURRENT.search(line):
            logged.recurrent = RecurrentLine(
                float(match["mib"]), int(match["cells"]), float(match["r"]), float(match["s"])
            )
    return logged
