"""Paths of different keys have nothing in common, and each leads back to its tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_kv import path

from lcpd.cache.isolation import MOST_KEYS, Isolation, marked, number_of, plain
from lcpd.cache.trie import common_prefix


@given(
    st.lists(st.integers(-1, 300_000), min_size=1, max_size=5).filter(lambda tokens: tokens[0] >= 0),
    st.integers(0, MOST_KEYS),
    st.integers(0, MOST_KEYS),
)
def test_the_same_prompt_of_two_keys_shares_nothing(tokens, one, other):
    prompt = np.array(tokens, np.int32)
    ours, theirs = marked(prompt, one), marked(prompt, other)
    assert common_prefix(ours, theirs) == (len(prompt) if one == other else 0)
    assert plain(ours).tolist() == tokens
    assert number_of(ours) == one
    assert ours.dtype == np.int32
    assert (ours >= -1).all()


def test_requests_without_isolation_are_left_as_they_are():
    prompt = path(1, 2, 3)
    assert marked(prompt, 0) is prompt
    assert plain(prompt) is prompt
    assert len(marked(path(), 3)) == 0


def test_each_key_has_its_own_number_whatever_the_order():
    one, other = Isolation(["a", "b", "c"]), Isolation({"c", "b", "a"})
    assert len({one.number(key) for key in "abc"}) == 3
    assert [one.number(key) for key in "abc"] == [other.number(key) for key in "abc"]
    assert one.number(None) == one.number("unknown") == 0
    assert one.field == other.field


def test_a_change_of_keys_changes_the_fingerprint():
    assert Isolation(["a", "b"]).field != Isolation(["a", "c"]).field


def test_too_many_keys_are_refused():
    with pytest.raises(ValueError, match="too many"):
        Isolation([str(number) for number in range(MOST_KEYS + 1)])
