"""What is made of tool calls that were written wrongly or not finished."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcpd.chat.mending import continuation, ending, unread

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab"\\{}[],:é\n'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a"{'), inner, max_size=3),
)
objects = st.dictionaries(st.text('ab"\\'), values, max_size=3)


@settings(max_examples=60, deadline=None)
@given(objects, st.data())
def test_what_is_open_is_closed_or_left_alone(value: dict, data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=False)
    beginning = text[: data.draw(st.integers(0, len(text)))]
    added = ending(beginning)
    assert added is None or isinstance(json.loads(beginning + added), dict)
    if beginning == text:
        assert added == ""


@pytest.mark.parametrize(
    ("arguments", "added"),
    [
        ('{"path":"a.py"', "}"),
        ('{"path":"a.p', '"}'),
        ('{"a": {"b": [1, "x', '"]}}'),
        ('{"a": "\\"', '"}'),
        ('{"a": 1,', None),
        ('{"a": ', None),
        ('{"a": "\\', None),
        ("", None),
        ("[1", None),
        ('{"a": 1} x', None),
        ('{"a": ' + "[" * 5000, None),
    ],
)
def test_nothing_is_guessed(arguments: str, added: str | None) -> None:
    assert ending(arguments) == added


@settings(max_examples=40, deadline=None)
@given(objects, st.data())
def test_arguments_go_on_as_they_stand_in_the_text(value: dict, data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=False)
    shown = text[: data.draw(st.integers(1, len(text)))]
    added = continuation(shown, f'<tool_call>\n{{"arguments": {text}}}\n</tool_call>')
    assert added is None or json.loads(shown + added) == json.loads(text)


@pytest.mark.parametrize(
    ("shown", "raw", "added"),
    [
        ('{"path": "a.p', '{"path": "a.py",}}', 'y"}'),
        ('{"a": [1', '{"a": [1, 2, ], }', ", 2 ] }"),
        ('{"a": ",]', '{"a": ",]", }', '" }'),
        ('{"a": 1,', '{"a": 1,}', None),
        ('{"a": 1', "something else", None),
        ('{"a": 1', '{"a": 1', None),
        ("", '{"a": 1}', None),
    ],
)
def test_commas_before_closing_brackets_are_left_out(shown: str, raw: str, added: str | None) -> None:
    assert continuation(shown, raw) == added


def test_a_long_string_that_nothing_ends_is_walked_over_once() -> None:
    """Were it not, this would take minutes, in which all chats stand still."""
    shown = '{"text": "'
    assert continuation(shown, shown + r"\"" * 100_000) is None


CALL = "<tool_call>\n<function=a>\n</function>\n</tool_call>"
OPENINGS = ["<tool_call>", "<function="]


@pytest.mark.parametrize(
    ("raw", "calls", "rest"),
    [
        (CALL, 1, ""),
        (f"hello {CALL}\n{CALL}\n", 2, "\n"),
        (f"hello {CALL}", 0, CALL),
        (f"{CALL}{CALL} and more", 1, f"{CALL} and more"),
        (f"{CALL}\nDone.", 1, "Done."),
        (f"{CALL}</tools>\nDone.", 1, "Done."),
        ("<tool_call>\n<function=a>\n<parameter=x>\n1", 1, ""),
        ("only text", 0, ""),
        ("", 0, ""),
    ],
)
def test_what_no_call_was_made_of_is_found(raw: str, calls: int, rest: str) -> None:
    assert unread(raw, OPENINGS, calls).strip() == rest.strip()


def test_one_opening_for_several_calls_leaves_nothing_over() -> None:
    assert unread('[TOOL_CALLS][{"name": "a"}, {"name": "b"}]', ["[TOOL_CALLS]"], 2) == ""


def test_what_is_nested_too_deep_to_be_read_does_not_go_on() -> None:
    assert continuation('{"a"', '{"a": ' + "[" * 5000) is None
