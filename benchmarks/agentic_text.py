"""Synthetic text of a coding agent's traffic: the same words for the same seed, on every machine."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

_NOUNS = (
    *("parser", "queue", "index", "record", "buffer", "socket", "timer", "router", "ledger", "reader", "writer"),
    *("schema", "folder", "session", "token", "worker", "signal", "report", "counter", "handle", "segment"),
)
_VERBS = (
    *("keeps", "reads", "writes", "checks", "drops", "copies", "counts", "moves", "opens", "closes", "sorts"),
    *("merges", "splits", "names", "loads", "stores", "sends", "limits", "repeats", "repairs"),
)
_QUALITIES = ("small", "old", "shared", "empty", "plain", "late", "broken", "local", "strict", "quiet", "open")
_LINKS = ("before", "after", "because", "while", "unless", "until", "although", "whenever")
_TOOLS = (
    *("read_file", "list_files", "search", "write_file", "edit_file", "run_command", "fetch_page", "make_plan"),
    *("read_log", "move_file", "run_tests", "show_diff", "ask_user", "open_branch"),
)
_PARAMETERS = ("path", "pattern", "limit", "offset", "text", "folder", "command", "depth")


@dataclass(frozen=True)
class Head:
    """What all sessions of one agent in one project send first."""

    system: str
    tools: tuple[Json, ...]
    """As in a chat body."""


class Writer:
    """A source of text.  Two writers with the same seed write the same."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def sentence(self) -> str:
        """About twelve words."""
        return f"{self._clause().capitalize()} {self._pick(_LINKS)} {self._clause()}."

    def prose(self, words: int) -> str:
        """Sentences with about `words` words in all, at least one sentence."""
        return " ".join(self.sentence() for _ in range(max(1, round(words / 12))))

    def path(self) -> str:
        """The path of a source file."""
        return f"src/{self._pick(_NOUNS)}/{self._pick(_QUALITIES)}_{self._pick(_NOUNS)}.py"

    def source(self, lines: int) -> str:
        """The content of a source file, as a tool returns it."""
        return "\n".join(self._line() for _ in range(max(1, lines)))

    def tool(self, name: str, words: int) -> Json:
        """A tool with a description of about `words` words and three parameters."""
        names = self._random.sample(_PARAMETERS, 3)
        properties = {key: {"type": "string", "description": self.sentence()} for key in names}
        schema = {"type": "object", "properties": properties, "required": names[:1]}
        function = {"name": name, "description": self.prose(words), "parameters": schema}
        return {"type": "function", "function": function}

    def _clause(self) -> str:
        subject, target = f"{self._pick(_QUALITIES)} {self._pick(_NOUNS)}", self._pick(_NOUNS)
        return f"the {subject} {self._pick(_VERBS)} the {target}"

    def _line(self) -> str:
        left, right = self._pick(_NOUNS), self._pick(_NOUNS)
        return f"{left}_{self._random.randrange(100)} = {self._pick(_VERBS)}({right}, {self._random.randrange(1000)})"

    def _pick(self, words: tuple[str, ...]) -> str:
        return self._random.choice(words)


def head(agent: str, project: str, scale: float, tools: int = len(_TOOLS)) -> Head:
    """An agent's instructions, then what belongs to the project, then the agent's tools.

    So two projects of one agent share the instructions only, as with clients that tell the folder in the system text.
    """
    ours, theirs = Writer(f"agent {agent}"), Writer(f"project {project}")
    instructions = f"You are {agent}, a coding agent. {ours.prose(scaled(150, scale))}"
    surroundings = f"The project is {project} in /home/dev/{project}.\n{theirs.prose(scaled(250, scale))}"
    files = "\n".join(theirs.path() for _ in range(scaled(20, scale)))
    system = f"{instructions}\n\n{surroundings}\nFiles:\n{files}"
    return Head(system, tuple(ours.tool(name, scaled(30, scale)) for name in _TOOLS[:tools]))


def scaled(count: int, scale: float) -> int:
    """`count` times `scale`, at least 1."""
    return max(1, round(count * scale))
