"""Conversations to ask a server for: they grow, share their heads, begin anew; the same for the same seed.

A prompt is a list whose last lines begin to repeat earlier ones, so that the reply depends on what stands far back:
with the state of another conversation it is a different one (tests/faults/test_judging.py).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from benchmarks.harm.load import Ask

_HEADS = 2
"""Different beginnings that conversations share."""
_WORDS = (
    *("harbour", "lantern", "meadow", "copper", "saddle", "pepper", "violin", "anchor", "basket", "candle"),
    *("desert", "falcon", "ginger", "hammer", "jacket", "kettle", "ladder", "marble", "needle", "orange"),
    *("pencil", "rabbit", "silver", "tunnel", "velvet", "walnut", "yellow", "bottle", "cotton", "dragon"),
)
_OPENING = 2
"""Lines that are repeated at the end of a prompt."""


@dataclass(frozen=True)
class Shape:
    """How long things are.  Lines have about 9 tokens."""

    head_lines: int = 12
    turn_lines: tuple[int, int] = (2, 50)
    """The least and most lines of a new turn."""
    reply: tuple[int, int] = (50, 400)
    """The least and most tokens of a reply."""
    most_lines: int = 150
    """A conversation that would become longer begins anew."""


USUAL = Shape()


@dataclass
class _Conversation:
    text: str = ""
    lines: list[str] = field(default_factory=list)


class Talk:
    """One client's conversations, one request after the other."""

    def __init__(self, seed: str, shape: Shape = USUAL, conversations: int = 3) -> None:
        self._random = random.Random(seed)
        self._shape = shape
        self._all = [_Conversation() for _ in range(conversations)]
        self._asked = self._all[0]

    def next(self) -> Ask:
        """The next request: a turn more of one of the conversations."""
        draw, shape = self._random, self._shape
        self._asked = draw.choice(self._all)
        wanted = draw.randint(*shape.turn_lines)
        if not self._asked.text or len(self._asked.lines) + wanted > shape.most_lines:
            self._asked.lines = _lines(random.Random(f"head {draw.randrange(_HEADS)}"), shape.head_lines)
            self._asked.text = "\n".join(self._asked.lines)
        lines = _lines(draw, wanted)
        self._asked.lines += lines
        at = draw.randrange(len(self._asked.lines) - _OPENING)
        opening = self._asked.lines[at : at + _OPENING]
        self._asked.text += "\n" + "\n".join([*lines, "", *opening]) + "\n"
        return Ask(self._asked.text, draw.randint(*shape.reply))

    def answered(self, text: str) -> None:
        """The reply to the last request becomes a part of its conversation."""
        self._asked.text += text


def _lines(draw: random.Random, count: int) -> list[str]:
    return [f"{draw.choice(_WORDS)} {draw.choice(_WORDS)}: {draw.randrange(10, 100)}" for _ in range(count)]
