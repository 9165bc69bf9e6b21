"""The trie against a naive model: whatever is inserted, attached, taken off and pruned, in any order."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples import examples
from lcpd.cache.trie import Node, Trie

Path = tuple[int, ...]
paths = st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=9).map(tuple)


def array(items: Path) -> np.ndarray:
    return np.array(items, np.int32)


def whole(node: Node[str]) -> Path:
    """The items from the root to the end of `node`."""
    parts: list[Path] = []
    above: Node[str] | None = node
    while above is not None:
        parts.append(tuple(above.edge.tolist()))
        above = above.parent
    return sum(reversed(parts), ())


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(["insert", "insert", "remove"]), paths), max_size=25), st.lists(paths))
def test_it_knows_exactly_the_prefixes_of_what_was_inserted_and_not_removed(
    steps: list[tuple[str, Path]], probes: list[Path]
) -> None:
    trie: Trie[str] = Trie()
    known: set[Path] = set()
    for step, items in steps:
        node = trie.find(array(items))
        if step == "insert":
            assert whole(trie.insert(array(items))) == items
            known |= {items[:n] for n in range(1, len(items) + 1)}
        elif node is not None and not node.children:
            known -= {items[:n] for n in range(node.begin + 1, node.end + 1)}
            trie.remove(node)
        trie.check_integrity()
        assert sum(len(node.edge) for node in trie.nodes()) == len(known)
        for probe in (*probes, items):
            expected = max((n for n in range(1, len(probe) + 1) if probe[:n] in known), default=0)
            assert trie.match(array(probe)).length == expected


class Model:
    """Checkpoints and segments in plain lists."""

    def __init__(self) -> None:
        self.checkpoints: dict[Path, str] = {}
        self.segments: list[tuple[Path, int]] = []
        """(path up to the segment's end, its begin)"""

    def coverage(self, items: Path) -> list[int]:
        """The positions up to which each segment on the path serves it."""
        found: list[int] = []
        at = 0
        while True:
            for path, begin in self.segments:
                if begin == at and path[: at + 1] == items[: at + 1] and at < len(items):
                    served = next((n for n in range(len(path)) if path[: n + 1] != items[: n + 1]), len(path))
                    found.append(served)
                    at = served
                    if served < len(path):
                        return found
                    break
            else:
                return found

    def is_last(self, path: Path, begin: int) -> bool:
        """Whether no segment builds on this one."""
        return not any(b >= len(path) and p[: len(path)] == path for p, b in self.segments)


steps = st.lists(st.tuples(st.sampled_from(["checkpoint", "segment", "segment", "take", "drop"]), paths), max_size=30)


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps, st.lists(paths, max_size=4))
def test_payloads_are_found_on_their_paths_and_nowhere_else(ops: list[tuple[str, Path]], probes: list[Path]) -> None:
    trie: Trie[str] = Trie()
    model = Model()
    for op, items in ops:
        node = trie.find(array(items))
        chain = trie.coverage(array(items))
        at = chain[-1][1] if chain else 0
        if op == "checkpoint":
            trie.insert(array(items)).checkpoint = model.checkpoints[items] = repr(items)
        elif op == "take" and items in model.checkpoints:
            assert node is not None
            node.checkpoint = None
            del model.checkpoints[items]
            trie.prune(node)
        elif op == "segment" and at < len(items) and (not chain or chain[-1][0].covers_end == at):
            trie.attach(trie.insert(array(items[:at])), array(items[at:]), repr((items, at)))
            model.segments.append((items, at))
        elif op == "drop" and chain:
            holder = chain[-1][0]
            path = next(p for p, b in model.segments if repr((p, b)) == holder.segment)
            if model.is_last(path, holder.begin):
                model.segments.remove((path, holder.begin))
                for covered in trie.detach(holder):
                    trie.prune(covered)
        trie.check_integrity()
        for probe in (*probes, items):
            assert [upto for _, upto in trie.coverage(array(probe))] == model.coverage(probe)
            found = trie.find(array(probe))
            assert (found.checkpoint if found is not None else None) == model.checkpoints.get(probe)
    for node in trie.nodes():
        assert node.children or node.segment or node.checkpoint or model.coverage(whole(node))[-1] == node.end
