"""The histories of a trace's sessions, as tokens: texts whose continuation depends on what stands far back."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from differential.trace import HEAD_LINES, HEADS, Ask
from lcpd.scheduler.generation import Prompt
from lcpd.scheduler.slots import Span
from oracle.tables import table

_SAMPLING = b'{"temperature": 0, "ignore_eos": true}'


@dataclass(frozen=True)
class Turn:
    """What was said, what was asked with it, and what was replied."""

    lines: tuple[str, ...]
    text: tuple[int, ...]
    opener: tuple[int, ...] = ()
    """Two lines from further up, behind which the reply begins."""
    reply: tuple[int, ...] = ()


@dataclass
class Session:
    """One conversation: its head is the first turn."""

    turns: list[Turn] = field(default_factory=list)


class Sessions:
    """All conversations of a trace.  `tokenize` gives the tokens of a text."""

    def __init__(self, tokenize: Callable[[str], Sequence[int]], limit: int) -> None:
        """`limit`: tokens of the longest prompt with its reply; a session that would outgrow it begins anew."""
        self._tokenize = tokenize
        self._special = len(tokenize(""))
        """Tokens that the model wants in front of a text, and that do not belong within one."""
        self._limit = limit
        self._sessions: dict[int, Session] = {}

    def prompt(self, ask: Ask) -> tuple[Prompt, Session]:
        """The request's prompt, and the session as it will be with it; nothing is changed yet."""
        session = self._changed(ask)
        if _size(session) + ask.length > self._limit:
            session = self._changed(replace(ask, change="new"))
        return _prompt(session, ask), session

    def commit(self, ask: Ask, session: Session, reply: Sequence[int]) -> None:
        """The request is over: this is the session now."""
        if ask.keep:
            session.turns[-1] = replace(session.turns[-1], reply=tuple(reply))
        self._sessions[ask.session] = session

    def _changed(self, ask: Ask) -> Session:
        draw = random.Random(ask.seed)
        own = self._sessions.get(ask.session)
        match ask.change:
            case "branch":
                turns = list(self._sessions.get(ask.other, own or Session()).turns)
            case "edit":
                turns = list(own.turns[:-1]) if own else []
            case "rewind":
                turns = list(own.turns[:2]) if own else []
            case "again" if own and own.turns[1:]:
                turns = list(own.turns)
                turns[-1] = replace(turns[-1], reply=())
                return Session(turns)
            case "append" | "again":
                turns = list(own.turns) if own else []
            case _:
                turns = []
        if not turns:
            head = table(draw.randrange(HEADS), HEAD_LINES).splitlines()[:HEAD_LINES]
            turns = [Turn(tuple(head), tuple(self._tokenize("\n".join(head) + "\n")))]
        if ask.change == "new" or ask.lines or len(turns) == 1:
            turns.append(
                self._turn(table(draw.randrange(1 << 30), max(ask.lines, 2)).splitlines()[: max(ask.lines, 2)])
            )
        known = [line for turn in turns for line in turn.lines]
        at = draw.randrange(len(known) - 2)
        opener = self._tokens(f"\n{known[at]}\n{known[at + 1]}")
        turns[-1] = replace(turns[-1], opener=opener, reply=())
        return Session(turns)

    def _turn(self, lines: Sequence[str]) -> Turn:
        return Turn(tuple(lines), self._tokens("\n" + "\n".join(lines) + "\n"))

    def _tokens(self, text: str) -> tuple[int, ...]:
        """Of a text that goes on behind others."""
        return tuple(self._tokenize(text)[self._special :])


def _size(session: Session) -> int:
    return sum(len(turn.text) + len(turn.opener) + len(turn.reply) for turn in session.turns)


def _prompt(session: Session, ask: Ask) -> Prompt:
    tokens: list[int] = []
    spans: list[Span] = []
    for number, turn in enumerate(session.turns):
        for role, part in (("user" if number else "system", turn.text), ("assistant", turn.opener + turn.reply)):
            if part:
                spans.append(Span(role, len(tokens), len(part)))
                tokens += part
    return Prompt(
        np.array(tokens, np.int32),
        tuple(spans),
        _SAMPLING,
        ask.length,
        priority="background" if ask.background else "interactive",
        client=str(ask.session % 3),
    )
