"""When two replies agree."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def compare():
    from check_gpu import compare

    return compare


def tokens(*values):
    return np.array(values, np.int32)


def rows(*values):
    return np.array(values, np.float32)


def test_equal_replies_have_no_first_difference(compare):
    assert compare.first_difference(tokens(1, 2), tokens(1, 2)) is None


def test_the_first_difference_is_an_unequal_token_or_the_end_of_the_shorter_reply(compare):
    assert compare.first_difference(tokens(1, 2, 3), tokens(1, 9, 9)) == 1
    assert compare.first_difference(tokens(1, 2, 3), tokens(1, 2)) == 2


def test_the_gap_of_a_token_is_its_distance_from_the_largest_logit(compare):
    assert compare.gaps(rows([0, 5, 4.5], [1, 0, 0]), tokens(2, 0)).tolist() == [0.5, 0.0]


def test_logits_that_are_not_finite_are_infinitely_far_off(compare):
    assert compare.gaps(rows([0, np.nan], [0, 1]), tokens(1, 1)).tolist() == [np.inf, 0.0]


def test_replies_that_part_are_judged_by_the_token_where_they_part(compare):
    logits = rows([9, 0, 0], [0, 5, 4.75])
    assert compare.tie(logits, tokens(0, 1), tokens(0, 2)) == 0.25
    assert compare.tie(logits, tokens(0, 1), tokens(0, 1)) == 0.0


def test_a_reply_that_merely_stops_early_is_no_tie(compare):
    assert compare.tie(rows([9, 0], [9, 0]), tokens(0, 0), tokens(0)) == np.inf
