"""Deltas put together again."""

from __future__ import annotations

from typing import Any

from lcpd.chat.replies import add_delta


def together(*deltas: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for delta in deltas:
        add_delta(message, delta)
    return message


def test_content_and_reasoning_are_appended_each_to_its_own() -> None:
    message = together(
        {"reasoning_content": "let me"}, {"reasoning_content": " see"}, {"content": "a"}, {"content": "b"}
    )
    assert message == {"role": "assistant", "content": "ab", "reasoning_content": "let me see"}


def test_a_message_without_content_keeps_none_and_one_with_empty_content_has_it_empty() -> None:
    assert together()["content"] is None
    assert together({"content": ""})["content"] == ""


def test_a_delta_of_null_content_adds_nothing() -> None:
    assert together({"content": None, "reasoning_content": None, "tool_calls": None}) == {
        "role": "assistant",
        "content": None,
    }


def test_a_tool_call_is_put_together_from_its_pieces() -> None:
    message = together(
        {"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "look", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
    )
    function = {"name": "look", "arguments": '{"a":1}'}
    assert message["tool_calls"] == [{"id": "call_1", "type": "function", "function": function}]


def test_calls_are_told_apart_by_their_index_even_out_of_order() -> None:
    message = together(
        {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "two"}}]},
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "one"}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
    )
    assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]] == [
        ("a", "one", ""),
        ("b", "two", "{}"),
    ]


def test_a_later_delta_without_an_id_keeps_the_calls_id() -> None:
    message = together({"tool_calls": [{"index": 0, "id": "a"}]}, {"tool_calls": [{"index": 0, "id": None}]})
    assert message["tool_calls"][0]["id"] == "a"
