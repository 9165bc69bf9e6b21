"""A whole reply from the lines of a stream."""

from __future__ import annotations

import json

import pytest
from benchmarks.agentic_client import Answer, chat_body, read_answer
from benchmarks.agentic_text import Json
from benchmarks.client import RequestFailed

USAGE = {"prompt_tokens": 120, "completion_tokens": 9, "total_tokens": 129}
TIMINGS = {"prompt_n": 20, "cache_n": 100}


def event(*deltas: Json, finish: str | None = None, **fields: object) -> str:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish} for delta in deltas]
    return "data: " + json.dumps({"choices": choices, **fields})


def read(*deltas: Json, finish: str = "stop") -> Answer:
    """One delta a second from instant 11 on; the request was sent at 10."""
    lines = [event(delta) for delta in deltas]
    lines += [event({}, finish=finish, timings=TIMINGS), event(usage=USAGE), "data: [DONE]"]
    return read_answer(10.0, [(11.0 + number, line) for number, line in enumerate(lines)])


def call(index: int, **function: str) -> Json:
    return {"tool_calls": [{"index": index, "id": "x", "function": function}]}


def test_text_and_reasoning_are_put_together() -> None:
    answer = read(
        {"role": "assistant", "content": None}, {"reasoning_content": "Hm"}, {"content": "y"}, {"content": "es"}
    )
    assert answer.message == {"role": "assistant", "content": "yes", "reasoning_content": "Hm"}


def test_tool_calls_are_put_together_with_ids_of_the_client() -> None:
    answer = read(
        call(0, name="look", arguments="{"), call(0, arguments='"a": 1}'), call(1, name="go", arguments='{"b": 2}')
    )
    assert answer.message["tool_calls"] == [
        {"id": "call_0", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}},
        {"id": "call_1", "type": "function", "function": {"name": "go", "arguments": '{"b": 2}'}},
    ]


def test_arguments_that_were_cut_off_are_left_out() -> None:
    answer = read(call(0, name="look", arguments='{"a": '), finish="length")
    assert answer.message["tool_calls"][0]["function"]["arguments"] == "{}"
    assert answer.finish == "length"


def test_the_role_alone_is_not_the_first_piece_of_a_reply() -> None:
    assert read({"role": "assistant"}, {"reasoning_content": "Hm"}).ttft == 2.0


def test_a_tool_call_is_the_first_piece_of_a_reply() -> None:
    assert read(call(0, name="look", arguments="{}")).ttft == 1.0


def test_counts_are_those_of_the_server() -> None:
    answer = read({"content": "yes"})
    assert (answer.prompt, answer.computed, answer.generated) == (120, 20, 9)


def test_an_error_in_the_stream_is_told() -> None:
    with pytest.raises(RequestFailed, match="out of cells"):
        read_answer(10.0, [(11.0, 'data: {"error": {"message": "out of cells"}}')])


def test_an_empty_reply_is_told() -> None:
    with pytest.raises(RequestFailed, match="empty"):
        read({"role": "assistant"})


def test_a_stream_that_breaks_off_is_told() -> None:
    with pytest.raises(RequestFailed, match="without usage"):
        read_answer(10.0, [(11.0, event({"content": "a"}))])


def test_a_body_without_tools_has_no_such_field() -> None:
    assert "tools" not in chat_body([], (), 8)
    assert chat_body([], ({"type": "function"},), 8)["tools"] == [{"type": "function"}]
