"""What is asked, and when: random, and the same for the same seed.

A trace is a list of rounds.  The requests of a round are sent at once, the next round begins when all are over.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Literal

Change = Literal["new", "append", "edit", "rewind", "branch", "again"]
HEADS = 2
"""Different beginnings that sessions share."""
HEAD_LINES = 14
_CHANGES: dict[Change, int] = {"new": 2, "append": 9, "edit": 3, "rewind": 2, "branch": 4, "again": 1}
"""How often each is drawn, relative to the others."""


@dataclass(frozen=True)
class Ask:
    """One request, as a change of a session's history and what is asked then."""

    session: int
    change: Change
    """new: only a head; append: one turn more; edit: another last turn; rewind: another turn in place of all but the
    first; branch: a copy of session `other` with one turn more; again: the same request."""
    other: int
    seed: int
    """Of the new turn's text, and of which of the lines so far it asks for."""
    lines: int
    """Lines of text in the new turn; about 7 tokens each."""
    length: int
    """Tokens of the reply."""
    keep: bool
    """Whether the reply becomes a part of the history."""
    background: bool
    cancel: int | None = None
    """Events after which it is closed; 0: as soon as it is queued."""


@dataclass(frozen=True)
class Setup:
    """The daemon that a trace runs on.  Lengths in tokens."""

    kind: str
    slots: int
    ctx: int
    batch: int
    ram: int
    """Bytes of the arena."""
    interval: int
    follow_min: int
    kv: str = "f16"
    flash_attn: str = "off"

    @property
    def longest(self) -> int:
        """Prompt and reply of one request at most: more than the window of the model that has one."""
        return min(int(0.6 * self.ctx), 900)

    def sections(self) -> dict[str, dict[str, Any]]:
        """As settings."""
        return {
            "model": {
                "slots": self.slots,
                "ctx": self.ctx,
                "batch": self.batch,
                "kv": self.kv,
                "flash_attn": self.flash_attn,
            },
            "cache": {"ram": self.ram, "checkpoint_interval": self.interval},
            "scheduler": {"follow_min": self.follow_min, "max_stall_ms": 20},
            "engine": {"emit_interval": 0},
        }


@dataclass(frozen=True)
class Trace:
    """A daemon and what is asked of it."""

    seed: int
    setup: Setup
    rounds: tuple[tuple[Ask, ...], ...] = field(repr=False)

    def text(self) -> str:
        """All of it, one request a line."""
        lines = [repr(self)]
        for number, asks in enumerate(self.rounds):
            lines += [f"  round {number}: {ask}" for ask in asks]
        return "\n".join(lines)


SIZES = {
    "hybrid": (3 << 20, 10 << 20),
    "recurrent": (200 << 10, 2 << 20),
    "attention": (4 << 20, 40 << 20),
    "swa": (9 << 20, 60 << 20),
}
"""Bytes of the smallest and largest arenas: a few checkpoints, a few hundred tokens."""


def make(seed: int, kind: str, rounds: int, vary_kv: bool = False) -> Trace:
    """A trace of so many rounds; `vary_kv`: on any type of KV cache, with flash attention or without."""
    draw = random.Random(f"{kind} {seed}")
    kv, flash_attn = "f16", "off"
    if vary_kv and kind != "recurrent":
        kv, flash_attn = draw.choice([("f16", "off"), ("f16", "on"), ("q8_0", "on"), ("q4_0", "on")])
    setup = Setup(
        kind=kind,
        slots=draw.randint(1, 4),
        ctx=draw.choice([512, 1024, 3072] if kind == "swa" else [512, 768, 1024]),
        batch=draw.choice([32, 64, 256]),
        ram=int(draw.triangular(*SIZES[kind])),
        interval=draw.choice([64, 128, 8192]),
        follow_min=draw.choice([16, 64]),
        kv=kv,
        flash_attn=flash_attn,
    )
    sessions = draw.randint(2, 7)
    return Trace(seed, setup, tuple(_round(draw, sessions) for _ in range(rounds)))


def _round(draw: random.Random, sessions: int) -> tuple[Ask, ...]:
    at_once = draw.choice([1, 1, 1, 2, 3, 6])
    changes, weights = list(_CHANGES), list(_CHANGES.values())
    return tuple(
        Ask(
            session=draw.randrange(sessions),
            change=draw.choices(changes, weights)[0],
            other=draw.randrange(sessions),
            seed=draw.randrange(1 << 30),
            lines=draw.choice([0, 1, 2, 4, 10]),
            length=draw.choice([1, 2, 4, 8, 8, 12, 24]),
            keep=draw.random() < 0.8,
            background=draw.random() < 0.25,
            cancel=draw.randrange(7) if draw.random() < 0.2 else None,
        )
        for _ in range(at_once)
    )
