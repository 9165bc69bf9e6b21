"""Cells of the unified KV cache, counted as a union: a cell that several slots share counts once.

A slot's cells are a tuple of runs.  A run is born when a slot computes (or restores) tokens; other slots can hold the
same front part of it, because sharing copies prefixes only.  Lengths count cells, which are as many as tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """The first `length` cells of run `id`."""

    id: int
    length: int


Runs = tuple[Run, ...]


def size(runs: Runs) -> int:
    """Cells that a slot holds, shared or not."""
    return sum(run.length for run in runs)


def front(runs: Runs, length: int) -> Runs:
    """The first `length` cells, or all where there are fewer."""
    kept = []
    for run in runs:
        if length <= 0:
            break
        kept.append(Run(run.id, min(run.length, length)))
        length -= run.length
    return tuple(kept)


def resized(runs: Runs, length: int) -> Runs:
    """The same cells with the last run grown or shrunk so that they are `length`.

    Only for a slot whose last run is its own: nobody else holds the cells that come or go.
    """
    if length <= 0:
        return ()
    kept = front(runs, length)
    missing = length - size(kept)
    return (*kept[:-1], Run(kept[-1].id, kept[-1].length + missing)) if missing else kept


def extended(kept: Runs, id: int, length: int, others: Iterable[Runs]) -> Runs:
    """`kept`, and behind it a new run `id`, `length` cells in all (more than `kept` has).

    Runs at the end of `kept` that none of the `others` holds are merged with the new one, so that a slot which serves
    a long conversation does not gather runs.
    """
    held = {run.id for runs in others for run in runs}
    kept = tuple(kept)
    while kept and kept[-1].id not in held:
        kept = kept[:-1]
    return (*kept, Run(id, length - size(kept)))


def union(many: Iterable[Runs]) -> int:
    """Cells that slots hold together."""
    return sum(_longest(many).values())


def exclusive(runs: Runs, others: Iterable[Runs]) -> int:
    """How many of a slot's cells none of the others holds: what clearing it would free."""
    held = _longest(others)
    return sum(max(0, run.length - held.get(run.id, 0)) for run in runs)


def _longest(many: Iterable[Sequence[Run]]) -> dict[int, int]:
    longest: dict[int, int] = {}
    for runs in many:
        for run in runs:
            longest[run.id] = max(run.length, longest.get(run.id, 0))
    return longest
