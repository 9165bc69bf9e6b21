"""The prompt cache as it is shown: plain data, flat, because a conversation can fork a thousand times."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from lcpd.cache.eviction import PayloadNode
from lcpd.cache.payloads import Payload
from lcpd.cache.trie import Trie, common_prefix
from lcpd.engine.protocol import Tokens

_STARTS = 16
_NONE: Tokens = np.zeros(0, np.int32)


@dataclass(frozen=True)
class Branch:
    """A stretch of a path without forks.  Lengths and positions count tokens."""

    id: int
    parent: int | None
    """The branch that it continues; None at the beginning of prompts."""
    depth: int
    """Branches above it."""
    begin: int
    tokens: int
    ram: int
    """Of its tokens, how many are in RAM; they are the first ones."""
    vram: int
    """Of its tokens, how many a slot holds; they are the first ones."""
    bytes: int
    """In RAM."""
    checkpoints: tuple[int, ...]
    """Their positions, ascending."""
    hits: int
    """Requests that came along all of it."""
    age: float | None
    """Seconds since its last use; None where only slots know it."""
    held: bool
    """Whether it is never given up for want of room."""
    starts: tuple[int, ...]
    """The ids of its first tokens, 16 at most."""


@dataclass(frozen=True)
class Tree:
    """Branches, each followed by those that continue it, the one used last first."""

    branches: tuple[Branch, ...]
    omitted: int
    """Branches that are not shown: those that hold the least, with all that continue them."""


@dataclass(eq=False)
class _Part:
    """A branch in the making."""

    begin: int
    nodes: list[PayloadNode] = field(default_factory=list)
    own: Tokens | None = None
    """Instead of nodes: tokens that only slots hold."""
    ram: int = 0
    vram: int = 0
    children: list[_Part] = field(default_factory=list)
    weight: int = 0
    """Tokens of it and all below."""

    @property
    def tokens(self) -> int:
        return len(self.own) if self.own is not None else sum(len(node.edge) for node in self.nodes)

    @property
    def last_used(self) -> float:
        # What only slots hold was used after all that is in RAM alone.
        return self.nodes[-1].last_used if self.nodes else float("inf")


def draw(trie: Trie[Payload], slots: Sequence[Tokens], held: Collection[PayloadNode], now: float, limit: int) -> Tree:
    """All that the trie knows and slots hold; of more than `limit` branches those that hold the most."""
    parts, roots = _parts(trie)
    at = {id(node): part for part in parts for node in part.nodes}
    beyond: dict[tuple[int, int], tuple[list[_Part], int, Trie[None]]] = {}
    for tokens in slots:
        match = trie.match(tokens)
        for node in match.nodes:
            part = at[id(node)]
            part.vram = max(part.vram, min(match.length, node.end) - part.begin)
        if match.length < len(tokens):
            siblings = at[id(match.nodes[-1])].children if match.nodes else roots
            _, _, rest = beyond.setdefault((id(siblings), match.length), (siblings, match.length, Trie()))
            rest.insert(tokens[match.length :])
    for siblings, begin, rest in beyond.values():
        parts += _only_in_slots(siblings, begin, rest)
    for part in reversed(parts):
        part.weight = part.tokens + sum(child.weight for child in part.children)
    shown = set(map(id, sorted(parts, key=lambda part: -part.weight)[:limit]))
    return Tree(tuple(_branches(roots, shown, frozenset(held), now)), max(0, len(parts) - limit))


def _parts(trie: Trie[Payload]) -> tuple[list[_Part], list[_Part]]:
    """All parts, parents before their children, and those that begin at 0."""
    parts: list[_Part] = []
    roots: list[_Part] = []
    # With each node: what of a segment from above still lies ahead.
    stack = [(node, roots, _NONE) for node in trie.root.children.values()]
    while stack:
        node, siblings, ahead = stack.pop()
        part = _Part(node.begin)
        siblings.append(part)
        parts.append(part)
        while True:
            part.nodes.append(node)
            ahead = node.covers if node.segment is not None else ahead
            served = common_prefix(ahead, node.edge)
            part.ram += served
            ahead = ahead[served:] if served == len(node.edge) else _NONE
            if len(node.children) != 1:
                break
            node = next(iter(node.children.values()))
        stack.extend((child, part.children, ahead) for child in node.children.values())
    return parts, roots


def _only_in_slots(siblings: list[_Part], begin: int, rest: Trie[None]) -> list[_Part]:
    """Parts for what slots hold beyond what the trie knows, which turns off at `begin`."""
    found: list[_Part] = []
    stack = [(node, siblings) for node in rest.root.children.values()]
    while stack:
        node, beside = stack.pop()
        part = _Part(begin + node.begin, own=node.edge, vram=len(node.edge))
        beside.append(part)
        found.append(part)
        stack.extend((child, part.children) for child in node.children.values())
    return found


def _branches(roots: list[_Part], shown: set[int], held: frozenset[PayloadNode], now: float) -> list[Branch]:
    branches: list[Branch] = []
    stack: list[tuple[_Part, int | None, int]] = [(part, None, 0) for part in sorted(roots, key=_age)]
    while stack:
        part, parent, depth = stack.pop()
        if id(part) not in shown:
            continue
        branches.append(_branch(part, len(branches), parent, depth, held, now))
        stack.extend((child, branches[-1].id, depth + 1) for child in sorted(part.children, key=_age))
    return branches


def _age(part: _Part) -> float:
    return part.last_used


def _branch(part: _Part, id: int, parent: int | None, depth: int, held: frozenset[PayloadNode], now: float) -> Branch:
    if part.own is not None:
        first = tuple(part.own[:_STARTS].tolist())
        return Branch(id, parent, depth, part.begin, part.tokens, 0, part.vram, 0, (), 0, None, False, first)
    payloads = [payload for node in part.nodes for payload in (node.segment, node.checkpoint) if payload is not None]
    starts: list[int] = []
    for node in part.nodes:
        starts += node.edge[: _STARTS - len(starts)].tolist()
    return Branch(
        id=id,
        parent=parent,
        depth=depth,
        begin=part.begin,
        tokens=part.tokens,
        ram=part.ram,
        vram=part.vram,
        bytes=sum(payload.bytes for payload in payloads),
        checkpoints=tuple(node.end for node in part.nodes if node.checkpoint is not None),
        hits=part.nodes[-1].hits,
        age=max(0.0, now - part.nodes[-1].last_used),
        held=all(node in held for node in part.nodes),
        starts=tuple(starts),
    )
