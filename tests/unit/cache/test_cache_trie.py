"""The trie of token paths: matching, splitting, segments that reach beyond their node, forgetting."""

import numpy as np
import pytest
from synthetic_kv import path

from lcpd.cache.trie import IntegrityError, Trie, common_prefix


def test_the_common_prefix_of_paths_ends_at_the_first_difference() -> None:
    assert common_prefix(path(1, 2, 3), path(1, 2, 4, 5)) == 2
    assert common_prefix(path(1, 2), path(1, 2, 3)) == 2
    assert common_prefix(path(), path(1)) == 0
    assert common_prefix(path(2), path(1)) == 0


def test_matching_an_unknown_path_finds_nothing_and_changes_nothing() -> None:
    trie: Trie[str] = Trie()
    trie.insert(path(1, 2, 3))
    match = trie.match(path(4, 5))
    assert (match.length, match.nodes) == (0, [])
    assert [node.edge.tolist() for node in trie.nodes()] == [[1, 2, 3]]


def test_a_path_that_turns_off_within_an_edge_matches_up_to_there() -> None:
    trie: Trie[str] = Trie()
    node = trie.insert(path(1, 2, 3, 4))
    match = trie.match(path(1, 2, 9))
    assert match.length == 2
    assert match.nodes == [node]


def test_inserting_a_path_that_turns_off_splits_the_edge() -> None:
    trie: Trie[str] = Trie()
    first = trie.insert(path(1, 2, 3, 4))
    second = trie.insert(path(1, 2, 9))
    assert first.parent is second.parent
    assert first.parent is not None
    assert first.parent.edge.tolist() == [1, 2]
    assert (first.begin, first.edge.tolist()) == (2, [3, 4])
    assert (second.begin, second.edge.tolist()) == (2, [9])
    trie.check_integrity()


def test_inserting_a_known_path_gives_its_node() -> None:
    trie: Trie[str] = Trie()
    node = trie.insert(path(1, 2))
    assert trie.insert(path(1, 2)) is node
    assert trie.find(path(1, 2)) is node
    assert trie.find(path(1)) is None
    assert trie.insert(path()) is trie.root


def test_items_below_zero_are_compared_like_tokens() -> None:
    trie: Trie[str] = Trie()
    trie.insert(path(1, -5, -5, 2))
    assert trie.match(path(1, -5, -6, 2)).length == 2


def test_the_trie_keeps_its_own_copy_of_the_items() -> None:
    tokens = path(1, 2, 3)
    trie: Trie[str] = Trie()
    trie.insert(tokens)
    tokens[:] = 0
    assert trie.match(path(1, 2, 3)).length == 3


def test_a_checkpoint_stays_where_it_is_when_an_edge_is_split() -> None:
    trie: Trie[str] = Trie()
    trie.insert(path(1, 2, 3)).checkpoint = "after 3"
    trie.insert(path(1, 9)).checkpoint = "after 9"
    node = trie.find(path(1, 2, 3))
    assert node is not None
    assert node.checkpoint == "after 3"


def test_a_segment_serves_a_path_that_turns_off_within_it_up_to_there() -> None:
    trie: Trie[str] = Trie()
    trie.attach(trie.root, path(1, 2, 3, 4), "kv")
    trie.insert(path(1, 2, 9)).checkpoint = "makes a boundary"
    assert [(node.segment, upto) for node, upto in trie.coverage(path(1, 2, 9))] == [("kv", 2)]
    assert [(node.segment, upto) for node, upto in trie.coverage(path(1, 2, 3, 4, 5))] == [("kv", 4)]
    trie.check_integrity()


def test_segments_follow_each_other_across_boundaries_within_them() -> None:
    trie: Trie[str] = Trie()
    trie.insert(path(1, 2)).checkpoint = "within the first segment"
    end = trie.attach(trie.root, path(1, 2, 3, 4), "first")
    trie.attach(end, path(5, 6), "second")
    assert [(node.segment, upto) for node, upto in trie.coverage(path(1, 2, 3, 4, 5))] == [("first", 4), ("second", 5)]
    trie.check_integrity()


def test_a_path_has_one_segment_for_the_same_items() -> None:
    trie: Trie[str] = Trie()
    trie.attach(trie.root, path(1, 2), "kv")
    with pytest.raises(ValueError, match="have a segment already"):
        trie.attach(trie.root, path(1, 2), "again")


def test_only_empty_leaves_can_be_removed() -> None:
    trie: Trie[str] = Trie()
    leaf = trie.insert(path(1, 2, 3))
    stem = trie.insert(path(1, 2))
    with pytest.raises(ValueError, match="no empty leaf"):
        trie.remove(stem)
    leaf.checkpoint = "state"
    with pytest.raises(ValueError, match="no empty leaf"):
        trie.remove(leaf)
    leaf.checkpoint = None
    trie.remove(leaf)
    assert trie.match(path(1, 2, 3)).length == 2


def test_pruning_forgets_empty_leaves_and_joins_chains() -> None:
    trie: Trie[str] = Trie()
    trie.insert(path(1, 2, 3)).checkpoint = "kept"
    branch = trie.insert(path(1, 9))
    trie.prune(branch)
    assert [node.edge.tolist() for node in trie.nodes()] == [[1, 2, 3]]
    trie.check_integrity()


def test_pruning_keeps_the_boundary_at_which_a_segment_begins() -> None:
    trie: Trie[str] = Trie()
    end = trie.attach(trie.root, path(1, 2), "first")
    trie.attach(end, path(3), "second")
    trie.prune(end)
    assert [node.edge.tolist() for node in trie.nodes()] == [[1, 2], [3]]


def test_pruning_does_not_join_a_node_with_a_child_that_its_segment_does_not_lead_to() -> None:
    trie: Trie[str] = Trie()
    end = trie.attach(trie.root, path(1, 2, 3), "segment")
    trie.insert(path(1, 9)).checkpoint = "elsewhere"
    trie.prune(end)
    assert sorted(node.edge.tolist() for node in trie.nodes()) == [[1], [9]]
    trie.check_integrity()
    assert trie.coverage(path(1, 2, 3))[-1][1] == 3


def test_pruning_joins_a_node_with_the_one_above_when_its_segment_is_gone() -> None:
    trie: Trie[str] = Trie()
    trie.insert(path(1, 2)).checkpoint = "within the first segment"
    end = trie.attach(trie.root, path(1, 2, 3, 4), "first")
    trie.attach(end, path(5, 6), "second").checkpoint = "at the end"
    for node in trie.detach(end.children[5]):
        trie.prune(node)
    assert [node.edge.tolist() for node in trie.nodes()] == [[1, 2], [3, 4, 5, 6]]
    trie.check_integrity()


def test_a_chain_of_thousands_of_nodes_is_no_problem() -> None:
    trie: Trie[int] = Trie()
    node = trie.root
    for at in range(3000):
        node = trie.attach(node, path(at), at)
    tokens = np.arange(3000, dtype=np.int32)
    assert len(trie.coverage(tokens)) == 3000
    trie.check_integrity()


def test_the_check_finds_what_is_wrong() -> None:
    def sound() -> Trie[str]:
        trie: Trie[str] = Trie()
        trie.attach(trie.attach(trie.root, path(1, 2), "a"), path(3), "b")
        trie.check_integrity()
        return trie

    trie = sound()
    next(iter(trie.nodes())).begin = 1
    with pytest.raises(IntegrityError, match="not linked"):
        trie.check_integrity()
    trie = sound()
    trie.root.children[7] = trie.root.children.pop(1)
    with pytest.raises(IntegrityError, match="not its first item"):
        trie.check_integrity()
    trie = sound()
    trie.detach(trie.root.children[1])
    with pytest.raises(IntegrityError, match="does not follow"):
        trie.check_integrity()
    trie = sound()
    trie.root.children[1].covers = path(1, 5)
    with pytest.raises(IntegrityError, match="does not cover its node"):
        trie.check_integrity()
