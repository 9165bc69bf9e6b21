"""The rule that tells growth without bound from caches that fill, restarts and noise."""

from __future__ import annotations

import random

import pytest
from benchmarks.harm.growth import Rule, judge, robust_slope

RULE = Rule("memory", "MiB", allowance=5.0, cap=200.0)


def series(value, count=100):
    return [(float(second), float(value(second))) for second in range(count)]


def test_a_slope_over_the_second_half_is_growth():
    verdict = judge(RULE, series(lambda t: 50 + 0.5 * t))
    assert not verdict.bounded
    assert verdict.growth == pytest.approx(24.5)


def test_what_fills_up_in_the_first_half_is_bounded():
    assert judge(RULE, series(lambda t: min(t, 40) * 2)).bounded


def test_noise_and_dips_of_restarts_are_no_growth():
    draw = random.Random(1)
    assert judge(RULE, series(lambda t: (10 if t % 17 == 0 else 100) + draw.uniform(-3, 3))).bounded


def test_one_sample_above_the_cap_fails():
    assert not judge(RULE, series(lambda t: 201 if t == 3 else 100)).bounded


def test_shrinking_is_bounded():
    assert judge(RULE, series(lambda t: 150 - t)).bounded


def test_too_few_samples_show_nothing():
    with pytest.raises(ValueError, match="at least 8"):
        judge(RULE, series(lambda t: 1, count=7))


def test_the_slope_of_long_series_is_found_from_some_of_their_points():
    assert robust_slope(series(lambda t: 3 * t, count=5000)) == pytest.approx(3)
