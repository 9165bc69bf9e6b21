"""Counting runs of contiguous cells, from the order in which sequences got them."""

from __future__ import annotations

import pytest

from lcpd.native.runs import CellRuns


@pytest.fixture
def runs() -> CellRuns:
    return CellRuns(4)


def test_batches_of_one_sequence_with_none_between_them_are_one_run(runs: CellRuns) -> None:
    runs.wrote(0, 0, 100)
    runs.wrote(0, 100, 150)
    assert runs.count(0, 0, 150) == runs.count(0, 90, 110) == 1


def test_another_sequence_in_between_begins_a_new_run(runs: CellRuns) -> None:
    runs.wrote(0, 0, 100)
    runs.wrote(1, 0, 10)
    runs.wrote(0, 100, 150)
    assert [runs.count(0, 0, 150), runs.count(0, 0, 100), runs.count(0, 100, 150), runs.count(1, 0, 10)] == [2, 1, 1, 1]


def test_replies_side_by_side_get_runs_of_one_cell_and_one_alone_goes_on_in_its_run(runs: CellRuns) -> None:
    for position in range(20):
        runs.wrote_each([0, 1], [position, position])
    assert runs.count(0, 0, 20) == 20
    for position in range(20, 40):
        runs.wrote_each([1], [position])
    assert runs.count(1, 20, 40) == 1
    assert runs.count(1, 0, 40) == 20, "the last cell of the common batches is followed by its own"


def test_nothing_is_counted_where_nothing_lies(runs: CellRuns) -> None:
    runs.wrote(0, 0, 10)
    assert [runs.count(0, 10, 20), runs.count(0, 5, 5), runs.count(1, 0, 10)] == [0, 0, 0]


def test_what_is_cut_off_is_counted_no_more(runs: CellRuns) -> None:
    runs.wrote(0, 0, 10)
    runs.wrote(1, 0, 10)
    runs.wrote(0, 10, 20)
    runs.cut(0, 15)
    assert (runs.count(0, 0, 20), runs.count(0, 15, 20)) == (2, 0)
    runs.cut(0, 10)
    assert runs.count(0, 0, 20) == 1
    runs.cut(0, 0)
    assert runs.count(0, 0, 20) == 0


def test_shared_cells_lie_in_the_runs_of_the_source(runs: CellRuns) -> None:
    for begin in (0, 10, 20):
        runs.wrote(0, begin, begin + 10)
        runs.wrote(1, begin, begin + 10)
    runs.share(0, 2, 5, 25)
    assert [runs.count(2, 5, 25), runs.count(2, 5, 10), runs.count(2, 10, 25)] == [3, 1, 2]
    runs.wrote(2, 25, 30)
    assert runs.count(2, 5, 30) == 4


def test_a_sequence_that_was_emptied_begins_a_new_run(runs: CellRuns) -> None:
    runs.wrote(0, 0, 10)
    runs.cut(0, 0)
    runs.wrote(0, 10, 20)
    assert runs.count(0, 10, 20) == 1
