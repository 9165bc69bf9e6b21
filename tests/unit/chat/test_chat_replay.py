"""Replies in a history are the tokens that were generated, where they say the same."""

from __future__ import annotations

import json
from itertools import chain

import numpy as np
import pytest

from lcpd.chat.protocol import Span
from lcpd.chat.replay import Replays, digest, reply_start, same_message

END = 9
ASKED = [50, 1, 2, END]
"""A user's message; 50 and 60 open the messages of a user and of the assistant."""


def tokens(*parts: list[int]) -> np.ndarray:
    return np.array([token for part in parts for token in part], np.int32)


def spans(*parts: tuple[str, list[int]]) -> list[Span]:
    found, at = [], 0
    for role, part in parts:
        found.append(Span(role, at, len(part)))
        at += len(part)
    return found


def replayed(replays: Replays, *parts: tuple[str, list[int]], same=lambda written, generated: True, rest=()):
    """The messages of a prompt after replaying, as lists; the spans must fit."""
    array, moved = replays.applied(tokens(*(part for _, part in parts), list(rest)), spans(*parts), [END], same)
    messages = [array[span.begin : span.begin + span.length].tolist() for span in moved]
    assert [span.role for span in moved] == [role for role, _ in parts]
    assert [*chain.from_iterable(messages), *rest] == array.tolist()
    return messages


def knowing(prompt: list[int], *replies: list[int]) -> Replays:
    replays = Replays()
    for reply in replies:
        replays.remember(digest(tokens(prompt)), tokens(reply))
    return replays


OPEN = ("assistant", [60])


def test_a_reply_that_says_the_same_has_the_generated_tokens_and_the_end_of_the_history() -> None:
    replays = knowing(ASKED, [60, 3, 4])
    messages = replayed(replays, ("user", ASKED), ("assistant", [60, 7, 7, 7, END, 8]), ("user", ASKED), OPEN)
    assert messages == [ASKED, [60, 3, 4, END, 8], ASKED, [60]]


def test_a_reply_that_says_something_else_stays_as_the_client_sent_it() -> None:
    replays = knowing(ASKED, [60, 3, 4])
    parts = [("user", ASKED), ("assistant", [60, 7, END]), OPEN]
    assert replayed(replays, *parts, same=lambda *_: False) == [part for _, part in parts]


def test_a_reply_to_another_prompt_is_not_meant() -> None:
    replays = knowing(ASKED, [60, 3, 4])
    parts = [("user", [50, 5, END]), ("assistant", [60, 7, END]), OPEN]
    assert replayed(replays, *parts) == [part for _, part in parts]


def test_the_reply_to_be_made_is_not_a_history() -> None:
    assert replayed(knowing(ASKED, [60, 3]), ("user", ASKED), ("assistant", [60, END])) == [ASKED, [60, END]]


def test_later_replies_are_found_behind_earlier_ones_as_they_were_generated() -> None:
    replays = knowing(ASKED, [60, 3, 4])
    replays.remember(digest(tokens(ASKED, [60, 3, 4, END], ASKED)), tokens([60, 5]))
    written = ("assistant", [60, 7, END])
    messages = replayed(replays, ("user", ASKED), written, ("user", ASKED), written, OPEN)
    assert messages == [ASKED, [60, 3, 4, END], ASKED, [60, 5, END], [60]]


def test_of_several_replies_to_one_prompt_the_one_that_was_sent_back_is_taken() -> None:
    replays = knowing(ASKED, [60, 3], [60, 4])
    for reply in (3, 4):
        parts = [("user", ASKED), ("assistant", [60, reply, END]), OPEN]
        assert replayed(replays, *parts) == [part for _, part in parts]


def test_what_follows_the_end_of_a_reply_in_its_span_is_kept() -> None:
    """Some templates give tool results no span of their own."""
    replays = knowing(ASKED, [60, 3])
    messages = replayed(replays, ("user", ASKED), ("assistant", [60, 7, END, 70, 1, END]), OPEN)
    assert messages[1] == [60, 3, END, 70, 1, END]


def test_a_message_without_an_end_is_left_alone() -> None:
    parts = [("user", ASKED), ("assistant", [60, 7]), OPEN]
    assert replayed(knowing(ASKED, [60, 3]), *parts) == [part for _, part in parts]


def test_a_reply_of_another_scope_is_not_repeated() -> None:
    replays = Replays()
    replays.remember(digest(tokens(ASKED), scope=1), tokens([60, 3, 4]))
    parts = ("user", ASKED), ("assistant", [60, 7, 7, 7, END]), OPEN
    array, found = tokens(*(part for _, part in parts)), spans(*parts)
    for scope, expected in ((0, [60, 7, 7, 7, END]), (1, [60, 3, 4, END]), (2, [60, 7, 7, 7, END])):
        repeated, moved = replays.applied(array, found, [END], lambda *_: True, scope)
        reply = moved[1]
        assert repeated[reply.begin : reply.begin + reply.length].tolist() == expected


def test_tokens_outside_of_messages_are_kept() -> None:
    replays = Replays()
    replays.remember(digest(tokens([1], ASKED)), tokens([60, 3]))
    array, moved = replays.applied(
        tokens([1], ASKED, [60, 7, 7, END], [2], [60]),
        [Span("user", 1, 4), Span("assistant", 5, 4), Span("assistant", 10, 1)],
        [END],
        lambda *_: True,
    )
    assert array.tolist() == [1, *ASKED, 60, 3, END, 2, 60]
    assert [(span.begin, span.length) for span in moved] == [(1, 4), (5, 3), (9, 1)]


@pytest.mark.parametrize("verdict", [True, False])
def test_it_is_decided_once_so_that_a_prompt_does_not_change_from_turn_to_turn(verdict: bool) -> None:
    replays = knowing(ASKED, [60, 3])
    parts = [("user", ASKED), ("assistant", [60, 7, END]), OPEN]
    first = replayed(replays, *parts, same=lambda *_: verdict)
    assert replayed(replays, *parts, same=lambda *_: not verdict) == first


def test_the_replies_not_needed_for_longest_are_forgotten() -> None:
    replays = Replays(max_tokens=9)
    for prompt in (1, 2, 3):
        replays.remember(digest(tokens([prompt])), tokens([60, prompt, prompt]))
    assert replayed(replays, ("user", [1]), ("assistant", [60, 7, END]), OPEN)[1] == [60, 1, 1, END]
    replays.remember(digest(tokens([4])), tokens([60, 4, 4]))
    assert len(replays) == 3
    assert replayed(replays, ("user", [2]), ("assistant", [60, 7, END]), OPEN)[1] == [60, 7, END]
    assert replayed(replays, ("user", [1]), ("assistant", [60, 7, END]), OPEN)[1] == [60, 1, 1, END]


def test_of_one_prompt_only_the_latest_replies_are_remembered() -> None:
    replays = Replays()
    for reply in range(100):
        replays.remember(b"p", tokens([60, reply]))
    assert len(replays) == 4


def test_a_reply_larger_than_all_room_is_not_remembered() -> None:
    replays = Replays(max_tokens=2)
    replays.remember(b"p", tokens([1, 2, 3]))
    assert len(replays) == 0


def test_a_reply_begins_with_the_last_message_if_that_is_the_assistants() -> None:
    assert reply_start([("user", 0), ("assistant", 4)]) == 4
    assert reply_start([("assistant", 0), ("user", 4)]) is None
    assert reply_start([]) is None


# ---- what says the same ----------------------------------------------------------------------------------


def message(content: str | None = None, arguments: str | None = None, **more: object) -> dict:
    calls = [] if arguments is None else [{"id": "x", "function": {"name": "edit", "arguments": arguments}}]
    return {"role": "assistant", "content": content, "tool_calls": calls, **more}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ('{"a": 1, "b": [1, 2]}', '{"a":1,"b":[1,2]}'),
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}'),
        ('{"a": 2.0}', '{"a": 2}'),
        ('{"a": "\\u00e9\\/"}', '{"a": "é/"}'),
        ("no json", "no json"),
    ],
)
def test_arguments_with_the_same_value_say_the_same(a: str, b: str) -> None:
    assert same_message(message(arguments=a), message(arguments=b))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ('{"a": 1}', '{"a": true}'),
        ('{"a": 1}', '{"a": "1"}'),
        ('{"a": 1}', '{"a": 1.5}'),
        ('{"a": [1, 2]}', '{"a": [2, 1]}'),
        ('{"a": "x "}', '{"a": "x"}'),
        ("no json", "no  json"),
    ],
)
def test_arguments_with_another_value_do_not(a: str, b: str) -> None:
    assert not same_message(message(arguments=a), message(arguments=b))


def test_white_space_around_a_text_does_not_count_but_inside_it_does() -> None:
    assert same_message(message("a b\n"), message("a b"))
    assert same_message(message(None), message(""))
    assert not same_message(message("a  b"), message("a b"))


def test_reasoning_that_was_left_out_is_not_the_same() -> None:
    assert not same_message(message("a", reasoning_content="hm"), message("a"))


def test_the_ids_of_calls_do_not_count_but_their_number_and_names_do() -> None:
    one = message(arguments="{}")
    other = json.loads(json.dumps(one))
    other["tool_calls"][0]["id"] = "y"
    assert same_message(one, other)
    other["tool_calls"][0]["function"]["name"] = "read"
    assert not same_message(one, other)
    assert not same_message(one, message())


def test_arguments_nested_too_deep_to_compare_are_compared_as_text() -> None:
    deep = "[" * 5000 + "]" * 5000
    assert same_message(message(arguments=deep), message(arguments=deep))
    assert not same_message(message(arguments=deep), message(arguments=deep + " "))
