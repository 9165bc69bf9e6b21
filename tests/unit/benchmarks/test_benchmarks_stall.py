"""Which gaps of a stream count as caused by somebody else's prompt, and what is said about them."""

from __future__ import annotations

import pytest
from benchmarks.client import RequestFailed
from benchmarks.ratios import Interval
from benchmarks.stall import GOAL, gaps, has_text, stall, verdict

INSTANTS = [1.0, 2.0, 4.0, 8.0, 9.0]


def test_gaps_that_touch_the_prompts_time_count() -> None:
    assert gaps(INSTANTS, 3.0, 5.0) == [2.0, 4.0]


def test_a_gap_that_ends_where_the_prompt_begins_does_not_count() -> None:
    assert gaps(INSTANTS, 2.0, 4.0) == [2.0]


def test_a_prompt_within_one_gap_is_that_gap() -> None:
    assert gaps(INSTANTS, 5.0, 6.0) == [4.0]


def test_a_stall_is_the_high_percentile_of_the_gaps_the_longest_and_their_number() -> None:
    instants = [*(n / 10 for n in range(100)), 19.9]
    found = stall(instants, 0.0, 15.0)
    assert found.longest == pytest.approx(10.0)
    assert found.pieces == 100
    assert 0.1 < found.gap < 10.0
    assert found.prefill == 15.0


def test_a_stream_without_text_around_the_prompt_is_no_measurement() -> None:
    with pytest.raises(RequestFailed, match="no text"):
        stall([1.0, 2.0], 3.0, 4.0)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'data: {"choices": [{"text": "a"}]}\n', True),
        (b'data: {"choices": [{"text": ""}]}\n', False),
        (b'data: {"choices": []}\n', False),
        (b": still working\n", False),
        (b"data: [DONE]\n", False),
        (b"\n", False),
    ],
)
def test_only_lines_with_text_are_pieces_of_text(line: bytes, expected: bool) -> None:
    assert has_text(line) is expected


def test_an_error_in_the_stream_is_told() -> None:
    with pytest.raises(RequestFailed, match="engine died"):
        has_text(b'data: {"error": {"message": "the engine died"}}\n')


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (Interval(0.1, 0.2, GOAL), "reached"),
        (Interval(0.4, 0.5, 0.6), "inconclusive"),
        (Interval(0.6, 0.7, 0.8), "missed"),
    ],
)
def test_the_verdict_depends_on_the_ends_of_the_interval(interval: Interval, expected: str) -> None:
    assert verdict(interval) == expected
