"""Which step may run, and for how long."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture
def schedule():
    from check_gpu import schedule

    return schedule


def test_a_step_gets_its_own_limit_or_what_is_left_of_the_total(schedule):
    step = schedule.Step("copy", "m", 90.0, ())
    assert schedule.allowance(step, 300.0) == 90.0
    assert schedule.allowance(step, 20.0) == 20.0


def test_everything_fits_into_less_than_ten_minutes_with_time_for_the_short_steps_after_the_build(schedule):
    assert schedule.TOTAL <= 9 * 60
    build = next(s for s in schedule.STEPS if s.name == "build")
    assert schedule.TOTAL - build.limit >= 2 * 60


def test_a_step_names_what_it_waited_for_in_vain(schedule):
    step = schedule.Step("text", "m", 60.0, ("build", "reference"))
    assert schedule.obstacle(step, {"build": "passed", "reference": "failed"}, "passed") == "it needs reference"
    assert schedule.obstacle(step, {"build": "passed", "reference": "passed"}, "passed") is None
    assert schedule.obstacle(step, {}, "passed") == "it needs build and reference"


def test_steps_need_only_earlier_ones_and_all_exist(schedule):
    seen: set[str] = set()
    for step in schedule.STEPS:
        assert set(step.needs) <= seen
        assert importlib.util.find_spec(step.module) is not None
        seen.add(step.name)
