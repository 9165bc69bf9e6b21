"""Rates from the lines of a stream and the instants at which they came."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from benchmarks.client import Json, RequestFailed, Sample, rates, read_sample

SAMPLE = Sample(sent=10.0, first=12.0, last=16.0, computed=100, generated=9, server_prefill=60.0, server_decode=3.0)
TIMINGS = {"prompt_n": 100, "prompt_per_second": 60.0, "predicted_per_second": 3.0}


def event(delta: Json | None, **fields: object) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta}]
    return b"data: " + json.dumps({"choices": choices, **fields}).encode() + b"\n"


def stream(*deltas: Json, generated: int = 9) -> list[tuple[float, bytes]]:
    """One delta a second from instant 11 on, then timings and usage."""
    lines = [event(delta) for delta in deltas]
    lines += [event({}, timings=TIMINGS), event(None, usage={"completion_tokens": generated}), b"data: [DONE]\n"]
    return [(11.0 + number, line) for number, line in enumerate(lines)]


def test_prefill_ends_with_the_first_text_and_decoding_begins_there() -> None:
    result = rates([SAMPLE])
    assert (result.prefill, result.decode) == (100 / 2, 8 / 4)


def test_the_total_is_what_all_replies_together_took() -> None:
    assert rates([SAMPLE, replace(SAMPLE, last=20.0)]).total == 18 / 10


def test_what_the_server_reports_is_kept_apart() -> None:
    result = rates([SAMPLE])
    assert (result.server_prefill, result.server_decode) == (60.0, 3.0)


def test_requests_sent_together_are_added_up_over_the_whole_time() -> None:
    later = replace(SAMPLE, sent=10.5, first=15.0, last=18.0)
    result = rates([SAMPLE, later])
    assert (result.prefill, result.decode) == (200 / 5, 16 / 6)


def test_text_and_reasoning_count_as_text_and_a_role_does_not() -> None:
    lines = stream({"role": "assistant", "content": None}, {"reasoning_content": "Hm"}, {"content": "yes"}, {})
    assert read_sample(10.0, lines, 9) == replace(SAMPLE, first=12.0, last=13.0)


def test_comments_and_empty_lines_are_passed_over() -> None:
    lines = [(10.5, b": still working\n"), (10.6, b"\n"), *stream({"content": "a"}, {"content": "b"})]
    assert read_sample(10.0, lines, 9).first == 11.0


def test_an_error_in_the_stream_is_told() -> None:
    with pytest.raises(RequestFailed, match="out of cells"):
        read_sample(10.0, [(11.0, b'data: {"error": {"message": "out of cells"}}\n')], 9)


def test_another_number_of_tokens_than_asked_for_is_no_measurement() -> None:
    with pytest.raises(RequestFailed, match="4 tokens came instead of 9"):
        read_sample(10.0, stream({"content": "a"}, {"content": "b"}, generated=4), 9)


def test_a_single_piece_of_text_cannot_be_timed() -> None:
    with pytest.raises(RequestFailed, match="1 pieces of text"):
        read_sample(10.0, stream({"content": "a"}), 9)


def test_a_stream_that_breaks_off_is_no_measurement() -> None:
    with pytest.raises(RequestFailed, match="without usage"):
        read_sample(10.0, [(11.0, event({"content": "a"})), (12.0, event({"content": "b"}))], 9)
