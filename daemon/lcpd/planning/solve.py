"""The largest setting that fits: context, slots, or the most exact KV type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from lcpd.config.settings import KvType
from lcpd.inspect.shape import ModelShape
from lcpd.planning.context import Wanted
from lcpd.planning.kv import types_that_work
from lcpd.planning.plan import MemoryPlan

Goal = Literal["ctx", "slots", "kv"]
Planner = Callable[[Wanted], MemoryPlan]
"""Plans settings for one model and one machine."""

STEP = 256
"""Tokens: contexts are its multiples (llama-context.cpp)."""
MOST_SLOTS = 64
"""model.slots goes up to that."""
_NOT_CHOSEN: tuple[KvType, ...] = ("f32", "bf16")
"""Larger than f16 without being better in effect, or as large and slower on most cards."""


def solve(goal: Goal, shape: ModelShape, wanted: Wanted, planner: Planner) -> Wanted | None:
    """The settings with the one of `goal` as large as fits; None where nothing of it fits."""
    if goal == "ctx":
        ctx = largest_ctx(shape, wanted, planner)
        return replace(wanted, ctx=ctx) if ctx else None
    if goal == "slots":
        slots = largest_slots(wanted, planner)
        return replace(wanted, slots=slots) if slots else None
    kv = most_exact_kv(shape, wanted, planner)
    return replace(wanted, kv=kv) if kv else None


def largest_ctx(shape: ModelShape, wanted: Wanted, planner: Planner) -> int:
    """Tokens, at most the model's own limit; 0 where not even the shortest context fits."""
    steps = shape.n_ctx_train // STEP
    return STEP * _largest(steps, lambda n: planner(replace(wanted, ctx=n * STEP)).fits)


def largest_slots(wanted: Wanted, planner: Planner) -> int:
    """0 where not even one fits."""
    return _largest(MOST_SLOTS, lambda n: planner(replace(wanted, slots=n)).fits)


def most_exact_kv(shape: ModelShape, wanted: Wanted, planner: Planner) -> KvType | None:
    """The first type from f16 on that fits; None where none does."""
    kinds = [kind for kind in types_that_work(shape, wanted.flash_attn) if kind not in _NOT_CHOSEN]
    return next((kind for kind in kinds if planner(replace(wanted, kv=kind)).fits), None)


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number from 1 to `most` that fits, where each fits if a larger one does; 0 if none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
