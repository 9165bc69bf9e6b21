"""A plan beside what libllama allocated."""

from __future__ import annotations

from dataclasses import dataclass

from lcpd.planning.loglines import Logged
from lcpd.planning.plan import MIB, MemoryPlan

_LOG_STEP = MIB / 100
"""Bytes: the log rounds each size to a hundredth of a MiB."""


@dataclass(frozen=True)
class Row:
    """One kind of memory, on all devices together.  Sizes in bytes, `loaded` as the log rounded it."""

    name: str
    planned: int
    loaded: int
    buffers: int
    """How many sizes were added up, each of them rounded."""

    @property
    def equal(self) -> bool:
        """Whether they are the same as far as the log can tell."""
        return abs(self.planned - self.loaded) <= self.buffers * _LOG_STEP / 2 + 1


def compare(plan: MemoryPlan, logged: Logged) -> list[Row]:
    """Weights, KV, state, compute and output, and at the end their sum."""
    parts: dict[str, int] = {"model": 0, "KV": 0, "RS": 0, "compute": 0, "output": 0}
    for part in plan.parts:
        if kind := _kind(part.name):
            parts[kind] += part.device + part.host
    names = {"model": "weights", "RS": "recurrent state"}
    rows = [
        Row(names.get(kind, kind), planned, round(logged.total(kind) * MIB), len(logged.buffers.get(kind, ())))
        for kind, planned in parts.items()
        if planned or logged.total(kind)
    ]
    buffers = sum(row.buffers for row in rows)
    return [*rows, Row("sum", sum(row.planned for row in rows), sum(row.loaded for row in rows), buffers)]


def _kind(part: str) -> str | None:
    """What libllama calls it; None for what it does not allocate itself."""
    if part.startswith("weights"):
        return "model"
    if part.startswith("KV"):
        return "KV"
    if part.startswith("compute"):
        return "compute"
    return {"recurrent state": "RS", "output": "output"}.get(part)
