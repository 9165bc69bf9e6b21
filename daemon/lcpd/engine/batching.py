"""What one step prefills: pure decisions over item counts.

A step decodes one token of every running reply in one call, then the chunks that :func:`plan` gives, each in a call of
its own, so that where a sequence's batches are cut depends on itself and the budget alone.

    the step's budget        is                                                   a chunk that is cut short
    -----------------        --                                                   -------------------------
    replies are running      what fits max_stall beside the decode call           is a multiple of the unit, 8
    none is running          n_batch, or less on machines that need too long      is a multiple of the unit, n_ubatch
                             for it
    cuts change logits       as above, but at least one unit                      ends at a multiple of the unit,
    (aligned)                                                                     n_ubatch, counted from item 0

Chunks always end exactly at the checkpoints and edges that a sequence asked for, and one unit is always prefilled,
however small the budget: nobody waits for ever.  Lower priority numbers come first, equal ones take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

UNIT = 8
"""Tokens.  Chunks are multiples of it beside running replies, and a shorter chunk is charged as much.  One is always
done: on two busy cores with 8,000 tokens in the KV cache 16 took longer than max_stall (benchmarks/stall.py)."""


@dataclass(frozen=True)
class Prefill:
    """A sequence that has items [begin, stop) to prefill, before it must be cut."""

    request: int
    priority: int
    turn: int
    """When it was last served."""
    begin: int
    stop: int


@dataclass(frozen=True)
class Budget:
    """What one step may prefill.  All in items."""

    items: int
    """Over all chunks."""
    n_batch: int
    """In one chunk."""
    unit: int
    aligned: bool = False
    """Whether chunks end at multiples of the unit counted from item 0, instead of from where they begin."""


@dataclass(frozen=True)
class Chunk:
    """Items [begin, end) of a request, to be decoded in one call."""

    request: int
    begin: int
    end: int


def plan(waiting: Sequence[Prefill], budget: Budget) -> list[Chunk]:
    """The chunks of the next step, in order; at most one of each sequence, and at least one if any waits."""
    chunks: list[Chunk] = []
    left = max(budget.items, budget.unit)
    for prefill in sorted(waiting, key=lambda w: (w.priority, w.turn)):
        if chunks and left < budget.unit:
            break
        end = _chunk_end(prefill.begin, prefill.stop, min(left, budget.n_batch), budget)
        chunks.append(Chunk(prefill.request, prefill.begin, end))
        left -= max(end - prefill.begin, min(UNIT, budget.unit))
    return chunks


def _chunk_end(begin: int, stop: int, room: int, budget: Budget) -> int:
    """Where a chunk of at most `room` items ends; `room` holds one unit at least, or is the whole `n_batch`."""
    unit = budget.unit
    if budget.aligned and (off := begin % unit):
        return min(begin + unit - off, begin + room, stop)
    if begin + room >= stop:
        return stop
    return begin + max(room - room % unit, min(room, unit))
