"""Where to take checkpoints while a prompt is computed: pure functions over positions.

Only models that cannot be truncated anywhere (sliding windows, recurrent layers) need them.  A checkpoint costs the
time of a copy and bytes in the arena that could hold other state instead, so each one needs a reason:

1. the end of the last message before the generation prompt: the last position that the next turn still shares,
   because templates render a reply in the history differently from the beginning of a reply;
2. the end of the head (the system text with its tools), which every session of a project shares;
3. branch points: where earlier prompts parted from this one's path, another is likely to part;
4. the start of the last user message, where an edit or a second try of it resumes;
5. one in every `interval` tokens of a long stretch, at a message boundary where there is one.

The fifth is a promise (what a crash costs), so neither a limit nor what a copy costs has a say in it.

Lengths and positions count tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Protocol

INTERVAL = 8192
"""Tokens between two checkpoints of a long stretch, at most: what a crash or a rewind may cost."""
ODDS = 0.025
"""How likely a checkpoint is used, of those close to another one: with this the simulated day (benchmarks/simulate.py)
copies a fifth less than with 0.05 and computes as little; with 0.0125 it computes more."""
LIMIT = 32
"""Checkpoints that one prompt takes at most, besides those of the interval."""


class Span(Protocol):
    """One message of a prompt: tokens [begin, begin + length)."""

    @property
    def role(self) -> str: ...
    @property
    def begin(self) -> int: ...
    @property
    def length(self) -> int: ...


def head_end(spans: Sequence[Span]) -> int | None:
    """Where the system text with its tools ends; None where the prompt has none.

    Templates whose system text has no delimiter of its own leave it in front of the first span.
    """
    if not spans:
        return None
    first = spans[0]
    end = first.begin + first.length if first.role == "system" else first.begin
    return end or None


def stable_end(spans: Sequence[Span]) -> int | None:
    """The end of the last message before the generation prompt, which is an assistant span of its own."""
    if not spans:
        return None
    last = spans[-1]
    return last.begin if last.role == "assistant" else last.begin + last.length


def last_user_start(spans: Sequence[Span]) -> int | None:
    """Where the last user message begins."""
    return max((span.begin for span in spans if span.role == "user"), default=None)


def minimum_gap(checkpoint_bytes: int, copy_speed: float, prefill_speed: float, odds: float = ODDS) -> int:
    """The distance from the resume point before it from which a checkpoint is worth taking, in tokens; at least 1.

    Taking one costs its copy (`copy_speed` in bytes per second); where it is used, which happens with probability
    `odds`, it saves computing that distance (`prefill_speed` in tokens per second).
    """
    return max(1, int(checkpoint_bytes / copy_speed * prefill_speed / odds))


def plan(
    spans: Sequence[Span],
    begin: int,
    length: int,
    *,
    interval: int = INTERVAL,
    alignment: int = 1,
    limit: int = LIMIT,
    known: Collection[int] = (),
    branches: Collection[int] = (),
    gap: int = 1,
) -> list[int]:
    """Where to take checkpoints while prompt tokens [begin, length) are computed; ascending, each in (begin, length).

    `known`: positions of this prompt that have one already.  `branches`: positions at which earlier prompts parted
    from this one.  Positions are rounded down to a multiple of `alignment`.  Of two closer than `gap` the known one
    stays, else the one whose reason comes first in the module's list.  Where `limit` is too low the reasons that
    come last are left out, the shallower branch points before the deeper ones.  Whatever `gap` and `limit` are, no
    stretch between `begin`, the known ones, those chosen and `length` is longer than `interval` (or `alignment`).
    """
    reasons = [stable_end(spans), head_end(spans), *sorted(branches, reverse=True), last_user_start(spans)]
    taken = sorted(known)
    chosen: list[int] = []
    for wanted in reasons:
        position = _aligned(wanted, alignment)
        if len(chosen) < limit and begin < position < length and _far(position, taken, gap):
            chosen.append(position)
            taken.append(position)
    boundaries = [_aligned(span.begin, alignment) for span in spans]
    stops = sorted({begin, length, *(position for position in taken if begin < position < length)})
    return sorted([*chosen, *_filled(stops, max(interval, alignment), boundaries, alignment)])


def _aligned(position: int | None, alignment: int) -> int:
    return 0 if position is None else position - position % alignment


def _far(position: int, others: Iterable[int], gap: int) -> bool:
    return all(abs(position - other) >= gap for other in others)


def _filled(stops: Sequence[int], interval: int, boundaries: Sequence[int], alignment: int) -> list[int]:
    """Positions that leave no stretch between neighbouring `stops` longer than `interval`.

    Each is the last message boundary in the second half of the interval, or the interval's end where there is none.
    """
    found = []
    for start, end in pairwise(stops):
        at = start
        while end - at > interval:
            fitting = [b for b in boundaries if at + interval // 2 < b <= at + interval]
            at = max(fitting, default=_aligned(at + interval, alignment))
            found.append(at)
    return found
