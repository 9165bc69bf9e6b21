"""Tokenising by prefix: what an earlier prompt shares with this one is not tokenised again.

A tokeniser with special tokens first cuts the text at those, and then treats every piece between them alone
(llama.cpp, ``tokenizer_st_partition``).  So the tokens of a text up to the start of a special token do not depend on
what follows, and the rest can be tokenised by itself.  A special token that strips the white space to its left
(attribute LSTRIP) reaches back over that border; the caller leaves such tokens out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
Tokenizer = Callable[[str, bool], Tokens]
"""(text, is it the start of the prompt?) -> tokens, special tokens parsed."""


@dataclass(frozen=True)
class _Known:
    scope: int
    text: str
    tokens: Tokens
    borders: list[tuple[int, int]]
    """(character, token) offsets where a special token starts, ascending."""


class TokenMemo:
    """Remembers the last prompts, at most `capacity` of them and `max_chars` characters of text in all.

    Those of one scope have nothing to do with those of others.
    """

    def __init__(
        self, tokenize: Tokenizer, specials: dict[int, str], capacity: int = 32, max_chars: int = 16_000_000
    ) -> None:
        """`specials`: token -> text, of the special tokens that may serve as borders."""
        self._tokenize = tokenize
        self._specials = specials
        self._capacity = capacity
        self._max_chars = max_chars
        self._known: OrderedDict[tuple[int, str], _Known] = OrderedDict()
        """By scope and text."""
        self._added = len(tokenize("", True))
        """Tokens in front of every prompt that stand for none of its text (a BOS)."""

    def tokens(self, text: str, scope: int = 0, remember: bool = True) -> Tokens:
        """The tokens of a whole prompt.  Without `remember` this leaves no trace."""
        known, shared = self._longest(text, scope)
        if known is not None and shared == len(text) == len(known.text):
            if remember:
                self._known.move_to_end((scope, text))
            return known.tokens
        char, token = 0, 0
        head: list[tuple[int, int]] = []
        if known is not None:
            # A border is safe only when its special token itself is shared.
            head = [b for b in known.borders if b[0] + len(self._specials[int(known.tokens[b[1]])]) <= shared]
            if head:
                char, token = head[-1]
        rest = self._tokenize(text[char:], char == 0)
        tokens = rest if known is None or token == 0 else np.concatenate([known.tokens[:token], rest])
        if remember:
            borders = head[:-1] + self._borders(text, tokens, char, token)
            self._remember(_Known(scope, text, tokens, borders))
        return tokens

    def forget(self) -> None:
        """Forget all prompts."""
        self._known.clear()

    def _longest(self, text: str, scope: int) -> tuple[_Known | None, int]:
        best: tuple[_Known | None, int] = (None, 0)
        for known in self._known.values():
            if known.scope != scope:
                continue
            shared = common_prefix(text, known.text)
            if shared > best[1]:
                best = (known, shared)
        return best

    def _borders(self, text: str, tokens: Tokens, char: int, token: int) -> list[tuple[int, int]]:
        """Where special tokens start in `text` from character `char`, which is token `token`.

        Searching for their texts in order finds exactly the places the tokeniser cut at, because it takes every
        occurrence; a mismatch (a token whose text stands in the prompt in another form) ends the list.
        """
        borders = []
        first = token or self._added
        for index in np.flatnonzero(np.isin(tokens[first:], list(self._specials))) + first:
            special = self._specials[int(tokens[index])]
            at = text.find(special, char)
            if at < 0:
                break
            if at > 0:  # cutting at 0 saves nothing
                borders.append((at, int(index)))
            char = at + len(special)
        return borders

    def _remember(self, known: _Known) -> None:
        self._known[known.scope, known.text] = known
        self._known.move_to_end((known.scope, known.text))
        while len(self._known) > 1 and (
            len(self._known) > self._capacity or sum(len(text) for _, text in self._known) > self._max_chars
        ):
            self._known.popitem(last=False)


def common_prefix(a: str, b: str) -> int:
    """Length of the longest common prefix, in characters."""
    size = min(len(a), len(b))
    if a[:size] == b[:size]:
        return size
    low, high = 0, size
    while low < high:
        middle = (low + high + 1) // 2
        if a.startswith(b[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low
