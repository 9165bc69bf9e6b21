"""What the slots hold and where a prompt goes: pure functions over plain data.

Nothing here changes its arguments; times and lengths are plain numbers that come in from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
EMPTY: Tokens = np.empty(0, np.int32)


@dataclass(frozen=True)
class Checkpoint:
    """Recurrent or sliding-window state after exactly `position` tokens."""

    id: int
    position: int


@dataclass(frozen=True)
class Slot:
    """A live sequence and what it holds."""

    seq: int
    tokens: Tokens = field(default_factory=lambda: EMPTY)
    """The tokens whose state the sequence holds."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """Ascending by position; all of them lie on `tokens`."""
    busy: bool = False
    last_used: float = 0.0


@dataclass(frozen=True)
class Resume:
    """Where a sequence goes on: it keeps [0, begin), rolled back with `restore` where that is not None."""

    begin: int
    restore: Checkpoint | None = None


@dataclass(frozen=True)
class Placement:
    """A slot for a prompt, and where computing begins on it."""

    slot: Slot
    resume: Resume


@dataclass(frozen=True)
class Span:
    """One message of a prompt: tokens [begin, begin + length)."""

    role: str
    begin: int
    length: int


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Length of the longest common prefix (LCP)."""
    size = min(len(a), len(b))
    different = np.flatnonzero(a[:size] != b[:size])
    return int(different[0]) if len(different) else size


def resume_point(slot: Slot, prompt: Tokens, rolls_back: bool) -> Resume:
    """The best place on this slot to go on from.

    `rolls_back`: a sequence can be truncated anywhere (pure attention).  Otherwise only its live end and its
    checkpoints are resume points.  At least the last prompt token is computed again, because logits are not part of
    a sequence's state.
    """
    usable = min(common_prefix(slot.tokens, prompt), len(prompt) - 1)
    if rolls_back or usable == len(slot.tokens):
        return Resume(usable)
    best = max((c for c in slot.checkpoints if c.position <= usable), key=lambda c: c.position, default=None)
    return Resume(best.position, best) if best else Resume(0)


def place(slots: Sequence[Slot], prompt: Tokens, rolls_back: bool) -> Placement | None:
    """The idle slot on which the prompt costs least, or None when all are busy.

    The cost is the tokens to compute now plus the tokens that the slot holds beyond the resume point: those would
    have to be computed again when their conversation returns.  Among equals the one used longest ago is taken.
    """
    idle = [Placement(slot, resume_point(slot, prompt, rolls_back)) for slot in slots if not slot.busy]

    def cost(placement: Placement) -> tuple[int, float]:
        begin = placement.resume.begin
        return (len(prompt) - begin) + (len(placement.slot.tokens) - begin), placement.slot.last_used

    return min(idle, key=cost, default=None)


def rewound(slot: Slot, resume: Resume) -> Slot:
    """The slot once it has been rolled back: what lies beyond the resume point is gone."""
    return replace(
        slot,
        tokens=slot.tokens[: resume.begin],
        checkpoints=tuple(c for c in slot.checkpoints if c.position <= resume.begin),
    )


def checkpoint_positions(spans: Sequence[Span], begin: int, length: int) -> list[int]:
    """Where to take checkpoints while prompt tokens [begin, length) are computed; ascending.

    The end of the head (the system text with its tools), the start of the last user message, and the end of the last
    message before the generation prompt: the last position that the next turn still shares, because templates render
    a reply in the history differently from the beginning of a reply.
    """
    wanted = set()
    if spans and spans[0].role == "system":
        wanted.add(spans[0].begin + spans[0].length)
    users = [span.begin for span in spans if span.role == "user"]
    if users:
        wanted.add(users[-1])
    if spans:
        last = spans[-1]
        wanted.add(last.begin if last.role == "assistant" else last.begin + last.length)
    return sorted(at for at in wanted if begin < at < length)


def thin(checkpoints: Sequence[Checkpoint], limit: int) -> tuple[tuple[Checkpoint, ...], list[Checkpoint]]:
    """At most `limit` checkpoints (kept, dropped): the first, which is the head, and the latest ones."""
    ordered = sorted(checkpoints, key=lambda c: c.position)
    if len(ordered) <= limit:
        return tuple(ordered), []
    kept = [*ordered[:1], *ordered[len(ordered) - limit + 1 :]] if limit > 1 else ordered[len(ordered) - limit :]
    return tuple(kept), [c for c in ordered if c not in kept]
