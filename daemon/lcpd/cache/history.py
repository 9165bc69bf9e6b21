"""Which prompts and replies there were, whether or not anything is left of their state: only then it can be told why
tokens are computed again, and where prompts part.

Paths live in a trie of their own, without payloads.  A node's `hits` counts the prompts that came along; replies count
none.  When more tokens are known than the limit, the ends of the paths used longest ago are forgotten.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from lcpd.cache.trie import Match, Trie, common_prefix
from lcpd.engine.protocol import Tokens

LIMIT = 2_000_000
"""Tokens that are remembered, shared ones once: 8 MB."""
WINDOW = 16
"""Tokens that are shown of each side where paths part."""
TRIVIAL = 16
"""Tokens: what prompts have in common without having anything to do with each other, the first words of a template."""
_ROOM = 0.9
"""Share of the limit down to which is forgotten, so that this is not done for every request."""
_LOSSES = 64
_EMPTY: Tokens = np.zeros(0, np.int32)


LossReason = Literal["engine restarted", "fingerprint changed", "damaged"]


@dataclass(frozen=True)
class Loss:
    """The state of tokens up to `end` was lost otherwise than for want of room."""

    end: int
    reason: LossReason
    detail: str = ""
    """For people; "": there is nothing to add."""


@dataclass(frozen=True)
class Past:
    """What is remembered of one prompt."""

    length: int = 0
    """Its first tokens that an earlier prompt or reply had as its prefix."""
    went_on: tuple[int, ...] = ()
    """How the one used last went on from there, at most `WINDOW` tokens; empty where all ended there."""
    losses: tuple[Loss, ...] = ()
    """The latest first."""


@dataclass(frozen=True)
class _Lost:
    tokens: Tokens
    begin: int
    """Up to there it has been computed again since."""
    reason: LossReason
    detail: str


class History:
    """Owner of the paths.  For one thread."""

    def __init__(self, limit: int = LIMIT, clock: Callable[[], float] = time.monotonic) -> None:
        """`limit`: tokens."""
        self._limit = limit
        self._clock = clock
        self._trie: Trie[None] = Trie()
        self._lost: deque[_Lost] = deque(maxlen=_LOSSES)
        self.tokens = 0
        """That are remembered now."""

    def past(self, tokens: Tokens) -> Past:
        """What is remembered of a prompt.  Changes nothing."""
        match = self._trie.match(tokens)
        shared = [(lost, common_prefix(lost.tokens, tokens)) for lost in reversed(self._lost)]
        losses = [Loss(end, lost.reason, lost.detail) for lost, end in shared if end > lost.begin]
        return Past(match.length, went_on(match), tuple(losses))

    def branches_on(self, tokens: Tokens) -> list[int]:
        """Positions at which earlier prompts parted from this one, ascending.

        Where only a reply went another way is none of them, nor is where a prompt ended and this one goes on.
        """
        match = self._trie.match(tokens)
        own = {id(node) for node in match.nodes}
        found = [
            node.end
            for node in match.nodes
            if node.end < match.length and any(child.hits for child in node.children.values() if id(child) not in own)
        ]
        if match.nodes and match.length < len(tokens):
            last = match.nodes[-1]
            inside = match.length < last.end
            if last.hits if inside else any(child.hits for child in last.children.values()):
                found.append(match.length)
        return found

    def remember(self, tokens: Tokens, prompt: int) -> None:
        """These tokens were computed: the first `prompt` of them were a prompt, or as much of it as was computed."""
        prompt = min(prompt, len(tokens))
        known = self._trie.match(tokens).length
        if prompt:
            self._trie.insert(tokens[:prompt])
        if len(tokens) > prompt:
            self._trie.insert(tokens)
        self.tokens += len(tokens) - known
        now = self._clock()
        nodes = self._trie.match(tokens).nodes
        for node in nodes:
            node.last_used = now
            node.hits += node.end <= prompt
        for node in reversed(nodes[:-1]):
            # An end that nobody turns off from is of no interest any more once a prompt goes on from there.
            if len(node.children) == 1 and all(child.hits for child in node.children.values()):
                self._trie.join(node)
        self._recover(tokens)
        if self.tokens > self._limit:
            self._forget()

    def lose(self, tokens: Tokens, begin: int, reason: LossReason, detail: str = "") -> None:
        """The state of tokens from `begin` on is gone, not for want of room but for `reason`."""
        if begin < len(tokens):
            self._lost.append(_Lost(tokens, begin, reason, detail))

    def check_integrity(self) -> None:
        """Raise IntegrityError unless the trie is sound; AssertionError where the count of tokens is wrong."""
        self._trie.check_integrity()
        assert self.tokens == sum(len(node.edge) for node in self._trie.nodes())

    def _recover(self, tokens: Tokens) -> None:
        """What was lost of these tokens is there again."""
        again = [replace(lost, begin=max(lost.begin, common_prefix(lost.tokens, tokens))) for lost in self._lost]
        self._lost = deque((lost for lost in again if lost.begin < len(lost.tokens)), _LOSSES)

    def _forget(self) -> None:
        """Forget leaves, those used longest ago first, until there is some room."""
        while self.tokens > self._limit * _ROOM:
            leaves = sorted((node for node in self._trie.nodes() if not node.children), key=lambda node: node.last_used)
            for leaf in leaves[: max(1, len(leaves) // 4)]:
                self.tokens -= len(leaf.edge)
                self._trie.remove(leaf)
                if self.tokens <= self._limit * _ROOM:
                    break


def went_on(match: Match[Any]) -> tuple[int, ...]:
    """How the path used last goes on from where a match ends; at most `WINDOW` tokens."""
    if not match.nodes:
        return ()
    node = match.nodes[-1]
    ahead = node.edge[match.length - node.begin :].tolist()
    while len(ahead) < WINDOW and node.children:
        node = max(node.children.values(), key=lambda child: child.last_used)
        ahead += node.edge[: WINDOW - len(ahead)].tolist()
    return tuple(ahead[:WINDOW])
