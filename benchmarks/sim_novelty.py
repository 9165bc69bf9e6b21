"""What any cache must compute at least: the part of a prompt that was never a prefix of anything before."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from benchmarks.sim_traffic import Tokens
from lcpd.cache.trie import common_prefix

_BLOCK = 512


@dataclass
class _Node:
    children: dict[bytes, _Node] = field(default_factory=dict)
    """By the whole block that leads there."""
    tails: list[Tokens] = field(default_factory=list)
    """Shorter ends of sequences."""


class Everything:
    """Remembers every sequence, for ever: a trie whose edges are blocks of equal size."""

    def __init__(self) -> None:
        self._root = _Node()

    def known(self, tokens: Tokens) -> int:
        """The longest prefix of `tokens` that a sequence added before begins with."""
        node, at = self._root, 0
        while True:
            block = tokens[at : at + _BLOCK]
            child = node.children.get(block.tobytes()) if len(block) == _BLOCK else None
            if child is None:
                others = [*(np.frombuffer(key, np.int32) for key in node.children), *node.tails]
                return at + max((common_prefix(block, other) for other in others), default=0)
            node, at = child, at + _BLOCK

    def add(self, tokens: Tokens) -> None:
        """Remember a sequence."""
        node = self._root
        whole = len(tokens) - len(tokens) % _BLOCK
        for at in range(0, whole, _BLOCK):
            node = node.children.setdefault(tokens[at : at + _BLOCK].tobytes(), _Node())
        if whole < len(tokens):
            node.tails.append(tokens[whole:].copy())
