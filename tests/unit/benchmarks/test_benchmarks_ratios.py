"""The statistics of paired measurements."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.ratios import MIN_PAIRS, PARITY, Interval, judge, median_interval, pair_ratios, spread


def test_each_pair_gives_its_own_ratio() -> None:
    assert pair_ratios([10.0, 30.0], [20.0, 20.0]) == [0.5, 1.5]


def test_unequal_numbers_of_rates_are_no_pairs() -> None:
    with pytest.raises(ValueError, match="2 and 1 rates"):
        pair_ratios([1.0, 2.0], [1.0])


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_no_positive_number_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        pair_ratios([1.0, rate], [1.0, 1.0])


def test_equal_ratios_leave_no_doubt() -> None:
    assert median_interval([0.98] * 8) == Interval(0.98, 0.98, 0.98)


def test_the_interval_is_the_same_each_time() -> None:
    ratios = [0.9, 1.0, 1.1, 0.95, 1.05]
    assert median_interval(ratios) == median_interval(ratios)


def test_the_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    draw = np.random.default_rng(7)
    intervals = [median_interval(list(draw.normal(1.0, 0.05, 21))) for _ in range(100)]
    assert sum(i.low <= 1.0 <= i.high for i in intervals) >= 88


def test_a_few_spoilt_pairs_do_not_move_the_interval_far() -> None:
    good = [0.99, 1.0, 1.01] * 7
    assert median_interval([*good, 0.1, 9.0]).low >= 0.99


def test_no_ratios_have_no_interval() -> None:
    with pytest.raises(ValueError, match="no ratios"):
        median_interval([])


def test_the_spread_is_the_middle_half_over_the_median() -> None:
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("interval", "outcome"),
    [
        (Interval(PARITY, 0.99, 1.01), "parity"),
        (Interval(PARITY - 0.001, 0.99, 1.01), "inconclusive"),
        (Interval(0.90, 0.95, PARITY), "inconclusive"),
        (Interval(0.90, 0.95, PARITY - 0.001), "slower"),
    ],
)
def test_the_verdict_depends_on_which_ends_reach_parity(interval: Interval, outcome: str) -> None:
    assert judge(interval, 20, 0.01, 0.01).outcome == outcome


def test_too_few_pairs_are_inconclusive_whatever_they_say() -> None:
    assert judge(Interval(1.0, 1.0, 1.0), MIN_PAIRS - 1, 0.0, 0.0).outcome == "inconclusive"


def test_an_inconclusive_verdict_tells_how_much_the_machine_varies() -> None:
    reason = judge(Interval(0.9, 1.0, 1.1), 20, 0.12, 0.34).reason
    assert "12%" in reason
    assert "34%" in reason
