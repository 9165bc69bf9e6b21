"""What waits to be written: ends of paths once they rest, much at once, nothing twice, never too much."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from synthetic_kv import path

from lcpd.cache.pending import MOST, WAIT, PendingPaths, WriteBudget, worth_writing


def test_the_end_of_a_path_waits_until_it_rests():
    pending = PendingPaths(8)
    pending.note(path(1, 2), 100.0, at_once=False)
    assert pending.take(100.0 + WAIT - 0.1) is None
    assert pending.take(100.0 + WAIT).tolist() == [1, 2]
    assert len(pending) == 0


def test_much_at_once_does_not_wait():
    pending = PendingPaths(8)
    pending.note(path(1, 2), 100.0, at_once=True)
    assert pending.take(100.0).tolist() == [1, 2]


def test_a_path_that_goes_on_is_written_once():
    pending = PendingPaths(8)
    for turn in range(3):
        pending.note(np.arange(1, 10 + turn, dtype=np.int32), 100.0 + turn, at_once=False)
    assert pending.take(101.0 + WAIT) is None
    assert len(pending.take(102.0 + WAIT)) == 11
    assert pending.take(1000.0) is None


def test_a_path_that_goes_on_and_on_is_written_after_a_while():
    pending = PendingPaths(8)
    for second in range(int(MOST) + 1):
        pending.note(np.arange(1, 10 + second, dtype=np.int32), 100.0 + second, at_once=False)
    assert pending.take(100.0 + MOST) is not None


def test_paths_that_part_wait_each_for_itself():
    pending = PendingPaths(8)
    pending.note(path(1, 2, 3), 0.0, at_once=False)
    pending.note(path(1, 2, 4), 1.0, at_once=False)
    assert len(pending) == 2


def test_an_earlier_part_of_a_path_does_not_take_its_place():
    pending = PendingPaths(8)
    pending.note(path(1, 2, 3), 0.0, at_once=False)
    pending.note(path(1, 2), 1.0, at_once=True)
    assert pending.take(1.0).tolist() == [1, 2, 3]


def test_there_is_a_limit_and_what_does_not_fit_is_counted():
    pending = PendingPaths(2)
    for number in range(4):
        pending.note(path(number + 1), float(number), at_once=False)
    assert (len(pending), pending.dropped) == (2, 2)
    assert pending.take(100.0).tolist() == [1]


def test_the_lag_is_that_of_the_first():
    pending = PendingPaths(8)
    assert pending.lag(5.0) == 0.0
    pending.note(path(1), 1.0, at_once=False)
    pending.note(path(2), 3.0, at_once=False)
    assert pending.lag(5.0) == 4.0


@given(st.lists(st.tuples(st.integers(0, 3 * 86400), st.integers(1, 1000)), max_size=30), st.integers(1, 4 * 86400))
def test_no_day_sees_more_written_than_the_budget(notes, _):
    budget = WriteBudget(2000)
    written: list[tuple[int, int]] = []
    for at, size in sorted(notes):
        if budget.allows(size, at):
            budget.note(size, at)
            written.append((at, size))
    for at, _size in written:
        assert sum(size for when, size in written if at - 86400 < when <= at) <= 2000


def test_what_was_written_while_the_clock_was_years_ahead_counts_for_a_day_and_not_for_years():
    budget = WriteBudget(100)
    budget.note(40, 1.7e9)
    budget.note(60, 2e9)
    assert budget.spent(1.7e9) == 100
    assert not budget.allows(1, 1.7e9 + 3600)
    assert budget.allows(100, 1.7e9 + 2 * 86400)


def test_a_budget_of_zero_is_no_limit():
    assert WriteBudget(0).allows(1 << 60, 0.0)


def test_of_the_checkpoints_of_a_path_the_last_two_are_written_and_those_far_apart():
    checkpoints = [(10, False), (50, False), (55, False), (60, True), (70, False), (75, False)]
    assert worth_writing(checkpoints, [], gap=40) == [50, 60, 70, 75]
    assert worth_writing(checkpoints, [50, 75], gap=40) == [60, 70]
    assert worth_writing([], [], gap=40) == []
