"""Tools as they were written the first time.

Tools stand at the front of a prompt.  A client whose MCP servers come up in another order today, or that writes the
keys of a JSON schema in the order of a hash table, would make the whole prompt new.  So the order in which a set of
tools was seen first is remembered, and so is how each tool was written first; what says the same is rendered the same.
A client that always sends one order gets that order: nothing is sorted.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec

Json = dict[str, Any]
_LONGEST = 64 << 10
"""Characters of all names of a set whose order is remembered: real sets have a few thousand."""
ORDER, KEYS = "tool-order", "tool-keys"
"""What reports call the two rules."""


class KnownTools:
    """Orders and spellings of tools; those that were not seen for longest are forgotten."""

    def __init__(self, most_sets: int = 256, most_bytes: int = 16 * 2**20) -> None:
        """`most_bytes`: of all tools that are remembered."""
        self._most_sets = most_sets
        self._most_bytes = most_bytes
        self._orders: OrderedDict[tuple[int, frozenset[str]], tuple[str, ...]] = OrderedDict()
        self._spellings: OrderedDict[tuple[int, bytes], bytes] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._orders)

    def as_before(self, tools: Sequence[Json], scope: int = 0, remember: bool = True) -> tuple[list[Json], list[str]]:
        """The tools as they were written first, and the rules that changed something.

        The tools of a `scope` have nothing to do with those of others.  Without `remember` this leaves no trace.
        Tools without names of their own stay in their order.
        """
        spelled = [self._spelled(tool, scope, remember) for tool in tools]
        rules = [KEYS] if any(ours is not theirs for ours, theirs in zip(spelled, tools, strict=True)) else []
        by_name = {name: tool for tool in spelled if isinstance(name := _name(tool), str)}
        if len(by_name) < len(tools):
            return spelled, rules
        names = tuple(by_name)
        order = self._order(names, scope, remember)
        return [by_name[name] for name in order], [*([ORDER] if order != names else []), *rules]

    def forget(self) -> None:
        """Forget all tools."""
        self._orders.clear()
        self._spellings.clear()
        self._bytes = 0

    def _order(self, names: tuple[str, ...], scope: int, remember: bool) -> tuple[str, ...]:
        key = scope, frozenset(names)
        known = self._orders.get(key, names)
        if remember and sum(map(len, names)) <= _LONGEST:
            self._orders[key] = known
            self._orders.move_to_end(key)
            if len(self._orders) > self._most_sets:
                self._orders.popitem(last=False)
        return known

    def _spelled(self, tool: Json, scope: int, remember: bool) -> Json:
        """The tool itself where it is written as it was, or is new."""
        ours = msgspec.json.encode(tool)
        key = scope, hashlib.blake2b(msgspec.json.encode(tool, order="sorted"), digest_size=16).digest()
        known = self._spellings.get(key)
        if remember:
            if known is None:
                self._spellings[key] = ours
                self._bytes += len(ours)
            self._spellings.move_to_end(key)
            while self._bytes > self._most_bytes:
                self._bytes -= len(self._spellings.popitem(last=False)[1])
        if known is None or known == ours:
            return tool
        first: Json = msgspec.json.decode(known)
        return first


def _name(tool: Json) -> Any:
    """In OpenAI's shape or Anthropic's."""
    function = tool.get("function")
    return (function if isinstance(function, dict) else tool).get("name")
