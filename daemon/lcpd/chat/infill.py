"""The prompt for code between two pieces of code: llama-server's layout (``format_prompt_infill``), token by token.

    [REP]myproject [SEP]FILE text ... [SEP]filename [PRE]prefix prompt [SUF]suffix [MID]

Tokens in brackets are the vocabulary's own; one that it lacks is left out, and without SEP a line of dashes stands
between the files.  Where there is too much, the beginning of the prefix, the end of the suffix and the beginning of
the files are left out: three quarters of a batch are for prefix, one is for suffix and prompt, and what the context
has beyond a batch is for the files.  llama-server then asks for more than the context, where it is hardly larger than
a batch; here so much is left out that the reply has room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Mixed = str | list[str | int]
"""A text, or texts and tokens in turn."""
_SNIPPET = "\n\n--- snippet ---\n\n"
_MARKS = 4
"""Tokens besides texts that are always there: BOS, PRE, SUF, MID."""


@dataclass(frozen=True)
class Marks:
    """Special tokens of a vocabulary; -1 where it has none."""

    pre: int
    suf: int
    mid: int
    rep: int
    sep: int
    bos: int
    """-1 also where texts do not begin with it."""

    @property
    def lacking(self) -> list[str]:
        """Which of those that are needed are not there, in llama-server's words."""
        needed = {"prefix": self.pre, "suffix": self.suf, "middle": self.mid}
        return [name for name, token in needed.items() if token < 0]


@dataclass(frozen=True)
class Gap:
    """What is around the code that is wanted."""

    prefix: Mixed
    suffix: Mixed
    prompt: str
    """Text behind the prefix, in which special tokens are read."""
    files: Sequence[tuple[str, str]]
    """Name and text of other files."""


@dataclass(frozen=True)
class Room:
    """All in tokens."""

    context: int
    batch: int
    reply: int
    """What the reply is to have of the context."""


Tokenize = Callable[[Mixed, bool], list[int]]
"""Tokens of a text; the flag says whether special tokens are read."""


def lay_out(gap: Gap, room: Room, marks: Marks, tokenize: Tokenize) -> tuple[list[int], list[int]]:
    """The prompt's tokens: those of the files, and those of the code.  The vocabulary must not lack what is needed."""
    prompt = tokenize(gap.prompt, True)
    prefix, suffix = tokenize(gap.prefix, False), tokenize(gap.suffix, False)
    window = max(0, min(room.batch, room.context - room.reply - _MARKS))
    prefix = prefix[max(0, len(prefix) - 3 * (window // 4)) :]
    suffix = suffix[: max(0, window // 4 - (2 + len(prompt)))]
    code = [*_one(marks.bos), marks.pre, *prefix, *prompt, marks.suf, *suffix, marks.mid]
    files = _files(gap, marks, tokenize)
    most = max(0, min(room.context - room.batch + 2, room.context - room.reply - len(code)))
    return files[max(0, len(files) - most) :], code


def _files(gap: Gap, marks: Marks, tokenize: Tokenize) -> list[int]:
    tokens = [marks.rep, *tokenize("myproject\n", False)] if marks.rep >= 0 else []
    for name, text in gap.files:
        opening = [marks.sep, *tokenize(f"{name}\n", False)] if marks.sep >= 0 else tokenize(_SNIPPET, False)
        tokens += [*opening, *tokenize(text, False)]
    return [*tokens, marks.sep, *tokenize("filename\n", False)] if marks.sep >= 0 else tokens


def _one(token: int) -> list[int]:
    return [token] if token >= 0 else []
