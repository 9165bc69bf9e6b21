"""Which conversations were used last, of those that are known in RAM and on disk.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from lcpd.cache.payloads import Payload
from lcpd.cache.trie import Trie, common_prefix
from lcpd.engine.protocol import Tokens


@dataclass(frozen=True, eq=False)
class Used:
    """A path that nothing goes on from."""

    tokens: Tokens
    age: float
    """Seconds since a request came along it."""


def in_ram(trie: Trie[Payload], now: float, most: int) -> list[Used]:
    """The paths of a trie that were used last, at most `most`; `now`: on the clock of its nodes."""
    leaves = [node for node in trie.nodes() if not node.children]
    leaves.sort(key=lambda node: (-node.last_used, -node.end))
    return [Used(node.path, now - node.last_used) for node in leaves[:most]]


def in_order(paths: Iterable[Used]) -> list[Tokens]:
    """The paths, the one used last first, of equals the longest."""
    return [used.tokens for used in sorted(paths, key=lambda used: (used.age, -len(used.tokens)))]


def is_part_of(path: Tokens, others: Collection[Tokens]) -> bool:
    """Whether more than half of a path is in one of the others: the same conversation, or little of another one."""
    return any(2 * common_prefix(path, other) > len(path) for other in others)
