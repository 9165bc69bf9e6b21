"""What of the oracle needs no model."""

from __future__ import annotations

import numpy as np

from oracle.replay import shift
from oracle.tables import table


def test_a_table_begins_its_repetition_at_the_end() -> None:
    *rows, empty, first, second = table(seed=1, lines=5).splitlines()
    assert (len(rows), empty) == (5, "")
    assert [first, second] == rows[:2]


def test_tables_of_different_seeds_differ_and_of_the_same_do_not() -> None:
    assert table(1) == table(1)
    assert table(1) != table(2)


def test_a_shift_of_all_logits_together_is_none() -> None:
    rows = np.array([[5.0, 4.0, 3.0, 2.0, -9.0]], np.float32)
    assert shift(rows, rows + 1) == 0


def test_a_shift_is_how_much_the_distance_of_two_of_the_best_changes() -> None:
    rows = np.array([[5.0, 4.0, 3.0, 2.0, -9.0]], np.float32)
    moved = rows + np.array([0.5, 0.0, -0.25, 0.0, 0.0], np.float32)
    assert shift(rows, moved) == 0.75


def test_tokens_far_below_the_best_may_move() -> None:
    rows = np.array([[5.0, 4.0, 3.0, 2.0, -9.0]], np.float32)
    assert shift(rows, rows + np.array([0, 0, 0, 0, 3], np.float32)) == 0
