"""The replayed traffic, pure: who asks what in which order, and how a client's history grows from turn to turn.

A trace is a list of rounds; the turns of one round are sent at once, rounds follow each other.  A session's history
holds the server's own replies, as a client's does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.agentic_text import Head, Json, Writer, head, scaled

SUB_AGENTS = 4
SESSIONS = 10
"""Of the trace for the comparison of host memory, which wants as many slots."""
STRIPPED = "new user message, thinking stripped"
PUSHED_OUT = "ten others at once"
"""After this phase of the memory trace no slot holds any of the ten sessions."""


@dataclass(frozen=True)
class Begin:
    """Open a session, or open it anew."""

    head: Head
    text: str
    strip: bool = False
    """Whether the template drops thinking from before the newest user message."""


@dataclass(frozen=True)
class Result:
    """What the tool returned that the last reply called; the user's next message where it called none."""

    text: str


@dataclass(frozen=True)
class Say:
    """The user's next message."""

    text: str


@dataclass(frozen=True)
class Redo:
    """Forget the last `back` turns, and send the one before them again with another text at its end."""

    back: int
    text: str


Action = Begin | Result | Say | Redo


@dataclass(frozen=True)
class Turn:
    """One request."""

    phase: str
    session: str
    action: Action


@dataclass(frozen=True)
class Round:
    """Requests that are sent at once, `pause` seconds after the last round."""

    turns: tuple[Turn, ...]
    pause: float = 0.0


@dataclass
class Session:
    """A client's side of a conversation."""

    tools: tuple[Json, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)
    """Of the body, in each request."""
    sent: list[list[Json]] = field(default_factory=list)
    """The messages of each request so far."""
    replies: list[Json] = field(default_factory=list)
    """The reply to each of them."""

    def send(self, action: Action) -> list[Json]:
        """The messages of the next request, which `answer` has to follow."""
        match action:
            case Begin(head, text, strip):
                self.tools, self.sent, self.replies = head.tools, [], []
                # llama.cpp keeps all thinking where the template can, unless told otherwise.
                self.fields = {"chat_template_kwargs": {"preserve_reasoning": False}} if strip else {}
                messages = [{"role": "system", "content": head.system}, {"role": "user", "content": text}]
            case Result(text):
                messages = [*self.sent[-1], self.replies[-1], *_results(self.replies[-1], text)]
            case Say(text):
                messages = [*self.sent[-1], self.replies[-1], {"role": "user", "content": text}]
            case Redo(back, text):
                kept = len(self.sent) - back
                if kept < 1:
                    raise ValueError(f"a session of {len(self.sent)} turns has none left after forgetting {back}")
                messages = [*self.sent[kept - 1][:-1], {**self.sent[kept - 1][-1], "content": text}]
                self.sent, self.replies = self.sent[: kept - 1], self.replies[: kept - 1]
        self.sent.append(messages)
        return messages

    def answer(self, reply: Json) -> None:
        """Note the reply to what was sent last."""
        self.replies.append(reply)


def _results(reply: Json, text: str) -> list[Json]:
    calls = reply.get("tool_calls") or []
    if not calls:
        return [{"role": "user", "content": text}]
    first = {"role": "tool", "tool_call_id": calls[0]["id"], "content": text}
    return [first, *({"role": "tool", "tool_call_id": call["id"], "content": "Done."} for call in calls[1:])]


def agentic_trace(scale: float, pause: float) -> list[Round]:
    """The traffic of a day in little.

    `scale` 1 makes a head of some 2,300 tokens; `pause` is the user's typing time in seconds before the turns whose
    thinking is stripped.
    """
    text = _Texts(scale)
    ours, helper = head("Ada", "lighthouse", scale), head("Bo", "lighthouse", scale, tools=4)
    begin = Begin(ours, text.task("main", 40))
    siblings = [Begin(ours, text.task(f"sub {n}", 25)) for n in range(SUB_AGENTS)]
    helpers = [Begin(helper, text.task(f"own {n}", 25)) for n in range(SUB_AGENTS)]
    return [
        _one("cold turn", "main", begin),
        *(_one("warm turns", "main", Result(text.result(f"main {n}"))) for n in range(6)),
        _one("new session, same head", "second", Begin(ours, text.task("second", 40))),
        _one("new session, same head", "second", Result(text.result("second"))),
        _at_once("sub-agents at once", "sub", siblings),
        _at_once("sub-agents' next turns", "sub", [Result(text.result(f"sub {n}")) for n in range(SUB_AGENTS)]),
        _one("main after the sub-agents", "main", Result(text.result("main 6"))),
        _one("title request", "title", Begin(_title(scale), begin.text)),
        _one("main after the title", "main", Result(text.result("main 7"))),
        _one("rewind and edit", "main", Redo(3, text.result("another outcome"))),
        _one("rewind and edit", "main", Result(text.result("after the rewind"))),
        _at_once("sub-agents, head of their own", "own", helpers),
        *_other_projects(text, scale),
        _one("return to the first project", "main", Result(text.result("main 8"))),
        *_dialogue(text, ours, pause),
    ]


def _other_projects(text: _Texts, scale: float) -> Iterator[Round]:
    for project in ("windmill", "orchard", "harbour"):
        there = head("Ada", project, scale)
        yield _one("three other projects", project, Begin(there, text.task(project, 40)))
        yield _one("three other projects", project, Result(text.result(project)))


def _dialogue(text: _Texts, ours: Head, pause: float) -> Iterator[Round]:
    name, phase = "dialogue", "dialogue: its tool turns"
    yield _one(phase, name, Begin(ours, text.task(name, 40), strip=True))
    for n in range(3):
        # Long, so that what is rendered anew afterwards is more than a micro-batch.
        yield _one(phase, name, Result(text.result(f"{name} {n}", lines=60)))
        yield _one(STRIPPED, name, Say(text.task(f"{name} {n}", 40)), pause=pause)


def memory_trace(scale: float) -> list[Round]:
    """Ten sessions of which four fifths are one head, then what pushes them out of the slots, then a turn of each.

    The ten come at once: one after the other llama-server would overwrite each with the next, keep one of them only and
    need no memory for the others.
    """
    text = _Texts(scale)
    ours = head("Ada", "lighthouse", scale)
    begins = [
        Begin(ours, text.task(f"session {n}", 40) + "\n" + text.result(f"session {n}", lines=32))
        for n in range(SESSIONS)
    ]
    others = [Begin(Head(f"{n} is your name.", ()), text.task(f"other {n}", 20)) for n in range(SESSIONS)]
    return [
        _at_once("ten sessions at once", "session", begins),
        _at_once(PUSHED_OUT, "other", others),
        *(_one("return to each", f"session {n}", Result(text.task(f"more {n}", 40))) for n in range(SESSIONS)),
    ]


class _Texts:
    def __init__(self, scale: float) -> None:
        self._scale = scale

    def task(self, seed: str, words: int) -> str:
        writer = Writer(f"task {seed}")
        return f"Read the file {writer.path()}. {writer.prose(scaled(words, self._scale))}"

    def result(self, seed: str, lines: int = 24) -> str:
        return Writer(f"result {seed}").source(scaled(lines, self._scale))


def _title(scale: float) -> Head:
    return Head(f"Write a title for this conversation. {Writer('title').prose(scaled(60, scale))}", ())


def _one(phase: str, session: str, action: Action, pause: float = 0.0) -> Round:
    return Round((Turn(phase, session, action),), pause)


def _at_once(phase: str, session: str, actions: Sequence[Action]) -> Round:
    return Round(tuple(Turn(phase, f"{session} {n}", action) for n, action in enumerate(actions)))
