"""What is known of token paths: a trie with compressed edges.  Pure data structure; payloads are opaque.

A node is an edge: the items that lead to it from its parent.  Items are int32; those below 0 stand for things that are
no tokens and are compared like any other.  A node may hold a *checkpoint*, the state after exactly its end, and a
*segment*, the KV of the items from its begin on.  A segment covers the node's whole edge and may reach beyond it:
edges are split wherever paths part and wherever a checkpoint lies, segments are left as they are and remember which
items they cover.  On each path segments follow each other from 0 on without gaps and without overlaps.

Nothing here recurses: a long conversation is a chain of hundreds of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from lcpd.engine.protocol import Tokens

P = TypeVar("P")

_EMPTY: Tokens = np.zeros(0, np.int32)


class IntegrityError(RuntimeError):
    """The structure contradicts itself; the text says where."""


class Node(Generic[P]):
    """One edge and what is known about it.  Changed by its trie, except for the statistics and the checkpoint."""

    __slots__ = ("begin", "checkpoint", "children", "covers", "edge", "hits", "last_used", "parent", "segment")

    def __init__(self, parent: Node[P] | None, begin: int, edge: Tokens) -> None:
        self.parent = parent
        """None only for the root, whose edge is empty."""
        self.begin = begin
        self.edge = edge
        self.children: dict[int, Node[P]] = {}
        """By the first item of their edges."""
        self.segment: P | None = None
        self.covers: Tokens = _EMPTY
        """The items that `segment` covers, from `begin` on: the edge, and maybe more."""
        self.checkpoint: P | None = None
        self.last_used = 0.0
        self.hits = 0

    @property
    def end(self) -> int:
        """Position after the last item of the edge."""
        return self.begin + len(self.edge)

    @property
    def path(self) -> Tokens:
        """All items up to the end of the edge."""
        edges = [self.edge]
        above = self.parent
        while above is not None:
            edges.append(above.edge)
            above = above.parent
        return np.concatenate(edges[::-1])

    @property
    def covers_end(self) -> int:
        """Position up to which `segment` reaches; `begin` where there is none."""
        return self.begin + len(self.covers)


@dataclass(frozen=True)
class Match(Generic[P]):
    """How far a path is known."""

    nodes: list[Node[P]]
    """Along the path, without the root; the last one may be followed only in part."""
    length: int
    """Items that the path has in common with what is known."""


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Length of the common prefix."""
    size = min(len(a), len(b))
    differs = a[:size] != b[:size]
    first = int(differs.argmax()) if size else 0
    return first if size and differs[first] else size


class Trie(Generic[P]):
    """All paths; owns the nodes."""

    def __init__(self) -> None:
        self.root: Node[P] = Node(None, 0, _EMPTY)
        self.items = 0
        """Of all edges: what is known, what paths share once."""
        self.ends = 0
        """Paths that nothing goes on from."""
        self.end_items = 0
        """Of these paths: what is known, what they share as often as it is shared."""

    def take_over(self, other: Trie[P]) -> None:
        """Become what `other` is, which is not to be used any more."""
        self.root = other.root
        self.items, self.ends, self.end_items = other.items, other.ends, other.end_items

    # ---- looking up --------------------------------------------------------------------------------------

    def match(self, tokens: Tokens) -> Match[P]:
        """Follow `tokens` as far as they are known.  Changes nothing."""
        return self._follow(self.root, tokens)

    def find(self, tokens: Tokens) -> Node[P] | None:
        """The node that ends with exactly `tokens`."""
        match = self.match(tokens)
        if match.length < len(tokens):
            return None
        node = match.nodes[-1] if match.nodes else self.root
        return node if node.end == len(tokens) else None

    def coverage(self, tokens: Tokens) -> list[tuple[Node[P], int]]:
        """The nodes whose segments cover `tokens` from 0 on, each with the position up to which it serves this path.

        That is the segment's end for all but the last one.
        """
        chain: list[tuple[Node[P], int]] = []
        at = 0
        for node in self.match(tokens).nodes:
            if node.segment is None or node.begin != at:
                continue
            served = common_prefix(node.covers, tokens[at:])
            at += served
            chain.append((node, at))
            if served < len(node.covers):
                break
        return chain

    def nodes(self) -> Iterator[Node[P]]:
        """All but the root, parents before their children."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    # ---- changing ----------------------------------------------------------------------------------------

    def insert(self, tokens: Tokens) -> Node[P]:
        """The node that ends with exactly `tokens`; edges are split and added for it."""
        return self.extend(self.root, tokens)

    def extend(self, node: Node[P], tokens: Tokens) -> Node[P]:
        """The node that ends where `tokens` follow `node`; edges are split and added for it."""
        match = self._follow(node, tokens)
        last = match.nodes[-1] if match.nodes else node
        known = node.end + match.length
        if known < last.end:
            last = self._split(last, known - last.begin)
        if match.length < len(tokens):
            rest = np.array(tokens[match.length :], np.int32)
            leaf: Node[P] = Node(last, last.end, rest)
            leaf.last_used = last.last_used
            self.items += len(rest)
            self._ends_no_more(last)
            self._ends_here(leaf)
            last.children[int(rest[0])] = leaf
            return leaf
        return last

    def attach(self, node: Node[P], tokens: Tokens, segment: P) -> Node[P]:
        """Give the path on which `tokens` (at least one) follow `node` the segment that covers them.

        What lies before must be covered up to the end of `node` and no further.  Returns the node that ends where
        the segment does.  ValueError where there is one already.
        """
        last = self.extend(node, tokens)
        holder = node.children[int(tokens[0])]
        if holder.segment is not None:
            raise ValueError(f"items [{holder.begin}, {holder.covers_end}) have a segment already")
        holder.segment = segment
        holder.covers = holder.edge if holder is last else np.array(tokens, np.int32)
        return last

    def detach(self, node: Node[P]) -> list[Node[P]]:
        """Take the segment off `node`; no other one may build on it.

        Returns the nodes that it covered: they stay, but may not be needed any more (`prune`).
        """
        beyond = self._follow(node, node.covers[len(node.edge) :])
        node.segment = None
        node.covers = _EMPTY
        return [node, *beyond.nodes]

    def remove(self, node: Node[P]) -> None:
        """Forget a leaf.  ValueError where it has children, or holds something."""
        if node.parent is None or node.children or node.segment is not None or node.checkpoint is not None:
            raise ValueError(f"the node of items [{node.begin}, {node.end}) is no empty leaf")
        parent = node.parent
        del parent.children[int(node.edge[0])]
        node.parent = None
        self.items -= len(node.edge)
        self.ends -= 1
        self.end_items -= node.end
        self._ends_here(parent)

    def prune(self, node: Node[P]) -> None:
        """Forget `node` and those above it as long as they are empty leaves, and join what needs no boundary.

        A node that is no longer part of the trie is passed over.
        """
        while node.parent is not None and not node.children and node.segment is None and node.checkpoint is None:
            parent = node.parent
            self.remove(node)
            node = parent
        for above in (node, node.parent):
            if above is not None:
                self.join(above)

    def join(self, node: Node[P]) -> None:
        """Make one node of `node` and its only child; nothing happens where something needs the boundary."""
        if node.parent is not None and node.checkpoint is None and len(node.children) == 1:
            self._join(node, next(iter(node.children.values())))

    # ---- checking ----------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raise IntegrityError unless all that this module promises about the structure holds."""
        leaves = [node.end for node in self.nodes() if not node.children]
        counted = sum(len(node.edge) for node in self.nodes()), len(leaves), sum(leaves)
        if counted != (self.items, self.ends, self.end_items):
            raise IntegrityError(f"items, ends and their items are {counted}, not what was kept count of")
        root = self.root
        if root.parent is not None or root.begin or len(root.edge) or root.segment is not None:
            raise IntegrityError("the root has a parent, items or a segment")
        # With each node: what of a segment from above still lies ahead, and whether all above is covered.
        stack: list[tuple[Node[P], Tokens, bool]] = [(root, _EMPTY, True)]
        seen: set[int] = set()
        while stack:
            node, ahead, whole = stack.pop()
            if id(node) in seen:
                raise IntegrityError(f"the node at {node.begin} is reached twice")
            seen.add(id(node))
            if node is not root:
                self._check_node(node)
            if node.segment is not None:
                if len(ahead) or not whole:
                    raise IntegrityError(f"the segment at {node.begin} does not follow on another one")
                ahead = node.covers
            served = common_prefix(ahead, node.edge)
            whole = whole and served == len(node.edge)
            ahead = ahead[served:] if whole else _EMPTY
            for key, child in node.children.items():
                if child.parent is not node or child.begin != node.end:
                    raise IntegrityError(
                        f"the node at {child.begin} is not linked to its parent, which ends at {node.end}"
                    )
                if not len(child.edge) or int(child.edge[0]) != key:
                    raise IntegrityError(
                        f"the node at {child.begin} is listed under {key}, which is not its first item"
                    )
                follows = len(ahead) == 0 or int(ahead[0]) == key
                stack.append((child, ahead if follows else _EMPTY, whole and follows))

    def _check_node(self, node: Node[P]) -> None:
        if node.edge.dtype != np.int32 or node.covers.dtype != np.int32:
            raise IntegrityError(f"the node at {node.begin} holds items that are not int32")
        if node.segment is None:
            if len(node.covers):
                raise IntegrityError(f"the node at {node.begin} covers items without a segment")
        elif common_prefix(node.covers, node.edge) < len(node.edge):
            raise IntegrityError(f"the segment at {node.begin} does not cover its node")
        if node.hits < 0:
            raise IntegrityError(f"the node at {node.begin} has {node.hits} hits")

    # ---- details -----------------------------------------------------------------------------------------

    def _ends_here(self, node: Node[P]) -> None:
        """Count `node` where nothing goes on from it any more."""
        if node is not self.root and not node.children:
            self.ends += 1
            self.end_items += node.end

    def _ends_no_more(self, node: Node[P]) -> None:
        """Something is about to go on from `node`."""
        if node is not self.root and not node.children:
            self.ends -= 1
            self.end_items -= node.end

    def _follow(self, node: Node[P], tokens: Tokens) -> Match[P]:
        nodes: list[Node[P]] = []
        at = 0
        while at < len(tokens):
            child = node.children.get(int(tokens[at]))
            if child is None:
                break
            nodes.append(child)
            shared = common_prefix(child.edge, tokens[at : at + len(child.edge)])
            at += shared
            if shared < len(child.edge):
                break
            node = child
        return Match(nodes, at)

    def _split(self, node: Node[P], k: int) -> Node[P]:
        """Put a new node of the first `k` items above `node`, which keeps the rest; the segment stays in front."""
        assert node.parent is not None
        front: Node[P] = Node(node.parent, node.begin, node.edge[:k])
        front.segment, front.covers = node.segment, node.covers
        front.last_used, front.hits = node.last_used, node.hits
        front.children = {int(node.edge[k]): node}
        node.parent.children[int(node.edge[0])] = front
        node.parent, node.begin, node.edge = front, node.begin + k, node.edge[k:]
        node.segment, node.covers = None, _EMPTY
        return front

    def _join(self, node: Node[P], child: Node[P]) -> None:
        """Make one node, `child`, of `node` and its only child, unless a segment needs the boundary."""
        follows = common_prefix(node.covers[len(node.edge) :], child.edge) == len(child.edge)
        if child.segment is not None or (node.segment is not None and not follows):
            return
        assert node.parent is not None
        child.parent, child.begin, child.edge = node.parent, node.begin, np.concatenate([node.edge, child.edge])
        child.segment, child.covers = node.segment, node.covers
        child.last_used, child.hits = max(node.last_used, child.last_used), max(node.hits, child.hits)
        node.parent.children[int(child.edge[0])] = child
        node.parent = None
