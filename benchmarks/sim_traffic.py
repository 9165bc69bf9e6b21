"""A day of synthetic agent traffic: what coding agents of several projects send, as token ids.

Shapes follow what agentic command-line clients really send: a long head (system text and tools) that a project's
sessions share, tool loops that append to the conversation, thinking that templates strip from the history, title and
memory requests with prompts of their own, sub-agents at once, compaction, rewinds, and returns after hours.

A client is a generator: it yields what it does next and is resumed when that is over.  What it says depends on its
seed alone, never on time, so every policy that is simulated sees the same conversations.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
Kind = Literal["main", "sub-agent", "title", "memory", "compaction"]

USER = np.array([1, 2, 3], np.int32)
ASSISTANT = np.array([1, 4, 3], np.int32)
"""Also the generation prompt."""
THINK = np.array([5], np.int32)
THOUGHT = np.array([6], np.int32)
END = np.array([7], np.int32)
_FIRST_WORD, _LAST_WORD = 1000, 150_000
COMPACT_AT = 110_000
"""Tokens of a conversation from which on a client compacts it."""


@dataclass(frozen=True)
class Span:
    """One message of a prompt: tokens [begin, begin + length)."""

    role: str
    begin: int
    length: int


@dataclass(frozen=True, eq=False)
class Request:
    """A prompt and the reply that the model will give, both as token ids."""

    client: str
    kind: Kind
    tokens: Tokens
    spans: tuple[Span, ...]
    """As the bridge reports them: the system text has no span of its own, tool results are user messages."""
    reply: Tokens


@dataclass(frozen=True)
class Pause:
    """Do nothing for so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Spawn:
    """Let other clients run beside this one; it goes on when they are through, where `join` says so, else at once."""

    clients: tuple[Client, ...]
    join: bool


Action = Request | Pause | Spawn
Client = Generator[Action, None, None]


@dataclass(frozen=True)
class Project:
    """What the sessions of one project have in common."""

    name: str
    head: Tokens
    sub_head: Tokens
    """The head of its sub-agents: begins like `head`, but has other tools."""
    memory: Tokens
    """What stands in the first user message of every session."""
    tail: int
    """Last tokens of the head that differ from session to session (git status, date); 0: none."""
    strips: bool
    """Whether the template strips thinking before the last user message from the history."""
    reserialises: bool
    """Whether the client writes a tool call's arguments differently in the history."""
    appends_compaction: bool
    """Whether compaction is asked for at the end of the conversation; else with a prompt of its own."""


@dataclass
class Message:
    """A message as it is rendered: in the current exchange, and in the history."""

    role: str
    now: Tokens
    later: Tokens
    asked: bool = False
    """Written by the user, not a tool's result."""


@dataclass
class Conversation:
    """A head and the messages after it."""

    head: Tokens
    messages: list[Message] = field(default_factory=list)

    def render(self) -> tuple[Tokens, tuple[Span, ...]]:
        """The prompt, generation prompt included, and its spans."""
        asked = max((i for i, message in enumerate(self.messages) if message.asked), default=0)
        parts, spans, at = [self.head], [], len(self.head)
        for i, message in enumerate(self.messages):
            part = message.later if i < asked else message.now
            parts.append(part)
            spans.append(Span(message.role, at, len(part)))
            at += len(part)
        spans.append(Span("assistant", at, len(ASSISTANT)))
        return np.concatenate([*parts, ASSISTANT]), tuple(spans)


def words(rng: np.random.Generator, count: int) -> Tokens:
    """Text that nobody else writes."""
    return rng.integers(_FIRST_WORD, _LAST_WORD, max(count, 1), np.int32)


def around(rng: np.random.Generator, median: float, spread: float, most: int) -> int:
    """A log-normal size: two in three lie within a factor of e^spread of the median."""
    return int(min(median * np.exp(rng.normal(0, spread)), most))


def project(seed: int, number: int) -> Project:
    """One of the day's projects."""
    rng = np.random.default_rng([seed, number])
    head = words(rng, int(rng.integers(20_000, 30_000)))
    shared = int(len(head) * (0.67 if number % 2 else 0.95))
    return Project(
        name=f"project-{number}",
        head=head,
        sub_head=np.concatenate([head[:shared], words(rng, int(rng.integers(500, 4000)))]),
        memory=words(rng, int(rng.integers(500, 3000))),
        tail=int(rng.integers(200, 800)) if number % 3 == 0 else 0,
        strips=number % 2 == 0,
        reserialises=number % 3 == 1,
        appends_compaction=number % 2 == 0,
    )


def day(seed: int, projects: int, sessions: int, mapped: bool = False) -> list[Client]:
    """The clients of a day: for each project one or two people, each with `sessions` sessions one after the other.

    `mapped`: the server puts the tokens that it generated in the place of tool calls that a client wrote differently.
    """
    clients = []
    for number in range(projects):
        one = project(seed, number)
        one = replace(one, reserialises=one.reserialises and not mapped)
        for person in range(1 + number % 2):
            clients.append(_person(one, [seed, number, person], sessions))
    return clients


def _person(one: Project, seed: Sequence[int], sessions: int) -> Client:
    rng = np.random.default_rng([*seed, 0])
    yield Pause(float(rng.uniform(0, 5400)))
    for number in range(sessions):
        yield from _session(one, f"{one.name}/{seed[-1]}/{number}", np.random.default_rng([*seed, 1 + number]))
        yield Pause(around(rng, 600, 0.8, 7200))


def _session(one: Project, name: str, rng: np.random.Generator) -> Client:
    head = one.head
    if one.tail:
        head = np.concatenate([head[: -one.tail], words(rng, one.tail)])
    talk = Conversation(head)
    first = np.concatenate([one.memory, words(rng, around(rng, 300, 1.0, 4000))])
    yield Spawn((_side(name, "title", words(rng, around(rng, 500, 0.3, 1500)), 30),), join=False)
    yield Pause(float(rng.uniform(0.2, 2)))
    for turn in range(int(rng.integers(3, 11))):
        if turn:
            first = words(rng, around(rng, 120, 1.0, 4000))
            # The user thinks, is away for lunch or a meeting, or comes back hours later.
            yield Pause(around(rng, 5400, 0.7, 18_000) if rng.random() < 0.12 else around(rng, 80, 1.0, 1800))
            if rng.random() < 0.12:
                _rewind(talk, int(rng.integers(1, 4)))
        _say(talk, first, asked=True)
        yield from _exchange(one, name, talk, rng, steps=int(min(rng.geometric(1 / 9), 40)), helpers=True)
        if rng.random() < 0.2:
            yield Spawn((_side(name, "memory", words(rng, around(rng, 2500, 0.5, 8000)), 150),), join=False)


def _exchange(
    one: Project, name: str, talk: Conversation, rng: np.random.Generator, steps: int, helpers: bool
) -> Client:
    """Tool calls until the model answers."""
    for step in range(steps):
        last = step == steps - 1
        request, message = _reply(one, name, "main" if helpers else "sub-agent", talk, rng, last)
        yield request
        talk.messages.append(message)
        if last:
            return
        if helpers and rng.random() < 0.04:
            seeds = [int(s) for s in rng.integers(0, 2**31, int(rng.integers(2, 5)))]
            yield Spawn(tuple(_helper(one, name, seed) for seed in seeds), join=True)
            result = words(rng, 500 * len(seeds))
        else:
            yield Pause(around(rng, 2, 1.2, 120))
            result = words(rng, around(rng, 500, 1.2, 12_000))
        _say(talk, result, asked=False)
        if helpers and len(talk.head) + sum(len(m.now) for m in talk.messages) > COMPACT_AT:
            yield from _compact(one, name, talk, rng)


def _helper(one: Project, name: str, seed: int) -> Client:
    rng = np.random.default_rng(seed)
    talk = Conversation(one.sub_head)
    _say(talk, words(rng, around(rng, 500, 0.5, 3000)), asked=True)
    yield from _exchange(one, f"{name}/{seed}", talk, rng, steps=int(rng.integers(3, 9)), helpers=False)


def _compact(one: Project, name: str, talk: Conversation, rng: np.random.Generator) -> Client:
    summary = words(rng, around(rng, 2500, 0.3, 6000))
    order = words(rng, 400)
    if one.appends_compaction:
        asked = Conversation(talk.head, list(talk.messages))
        _say(asked, order, asked=False)
    else:
        size = sum(len(message.now) for message in talk.messages)
        asked = Conversation(words(rng, 800))
        _say(asked, words(rng, int(0.7 * size)), asked=True)
    tokens, spans = asked.render()
    yield Request(name, "compaction", tokens, spans, np.concatenate([summary, END]))
    talk.messages.clear()
    _say(talk, np.concatenate([one.memory, summary]), asked=True)


def _side(name: str, kind: Kind, text: Tokens, answer: int) -> Client:
    """A request with a prompt of its own; its system text is the same for all."""
    talk = Conversation(np.arange(10, 310, dtype=np.int32) + (0 if kind == "title" else 300))
    _say(talk, text, asked=True)
    tokens, spans = talk.render()
    yield Request(f"{name}/{kind}", kind, tokens, spans, np.concatenate([text[:answer] + 1, END]))


def _reply(
    one: Project, name: str, kind: Kind, talk: Conversation, rng: np.random.Generator, last: bool
) -> tuple[Request, Message]:
    """The request for the next reply, and the reply as a message."""
    tokens, spans = talk.render()
    thought = np.concatenate([THINK, words(rng, around(rng, 150, 0.9, 2000)), THOUGHT])
    said = words(rng, around(rng, 300, 0.7, 2000) if last else around(rng, 120, 0.8, 3000))
    shown = said
    if one.reserialises and not last:
        shown = said.copy()
        shown[len(said) // 4] += 1
    now = np.concatenate([ASSISTANT, thought, shown, END])
    later = np.concatenate([ASSISTANT, shown, END]) if one.strips else now
    return Request(name, kind, tokens, spans, np.concatenate([thought, said, END])), Message("assistant", now, later)


def _say(talk: Conversation, text: Tokens, asked: bool) -> None:
    part = np.concatenate([USER, text, END])
    talk.messages.append(Message("user", part, part, asked))


def _rewind(talk: Conversation, turns: int) -> None:
    """Back to before the last user message but `turns` - 1; never past the first one."""
    asked = [i for i, message in enumerate(talk.messages) if message.asked]
    if len(asked) > 1:
        del talk.messages[asked[max(len(asked) - turns, 1)] :]
