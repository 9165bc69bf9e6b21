"""What of a step is the worker's own."""

from __future__ import annotations

import pytest
from benchmarks.step_overhead import Clock, Step, figures


def test_the_overhead_is_what_neither_computing_nor_sampling_took() -> None:
    assert Step(whole=10.0, computing=7.0, sampling=1.0, cpu=1.5).overhead == 2.0


def test_figures_are_in_microseconds() -> None:
    found = figures([step / 1e6 for step in range(101)])
    assert (found.median, found.p99) == (pytest.approx(50), pytest.approx(99))


def test_no_steps_have_no_figures() -> None:
    with pytest.raises(ValueError, match="no steps"):
        figures([])


def test_a_clock_counts_calls_that_fail_too_and_passes_results_on() -> None:
    clock = Clock()
    assert clock.wrap(lambda a, b: a + b)(1, 2) == 3
    once = clock.seconds

    def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        clock.wrap(fail)()
    assert clock.seconds > once > 0
    clock.reset()
    assert clock.seconds == clock.cpu == 0
