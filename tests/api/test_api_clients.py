"""Whom a request is for, and how urgent it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from lcpd.api.clients import (
    PROGRAMS,
    Client,
    ToolUsers,
    identify,
    is_side_request,
    program_of,
    session_hint,
    stated_priority,
)
from lcpd.api.errors import ApiError
from lcpd.keys import LONGEST_NAME

ADDRESS = "10.0.0.7"


def headers(**fields):
    return CIMultiDict({name.replace("_", "-"): value for name, value in fields.items()})


def client(body=None, key=None, address=ADDRESS, **fields):
    return identify(headers(**fields), body or {}, key, address)


# ---- identity --------------------------------------------------------------------------------------------


def test_without_keys_and_hints_a_client_is_its_address():
    assert client().conversation == ADDRESS
    assert client(address="10.0.0.8").conversation != ADDRESS


def test_a_key_counts_more_than_the_address():
    assert client(key="laptop", address="a").conversation == client(key="laptop", address="b").conversation
    assert client(key="laptop").conversation != client(key="other").conversation


def test_a_key_is_shown_by_its_name_and_hints_not_as_they_are():
    shown = client({"user": "ada@example.org"}, key="laptop", User_Agent="curl")
    assert shown.conversation.startswith("laptop ") and shown.program.startswith("laptop ")
    assert "ada" not in shown.conversation + shown.program


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ({"x-session-id": "s"}, {}),
        ({"X-Session-Affinity": "s"}, {}),
        ({"session-id": "s"}, {}),
        ({"thread-id": "s"}, {}),
        ({"X-Claude-Code-Session-Id": "s"}, {}),
        ({}, {"prompt_cache_key": "s"}),
        ({}, {"user": "s"}),
        ({}, {"metadata": {"user_id": "s"}}),
    ],
)
def test_every_way_to_name_a_session_is_known(fields, body):
    assert session_hint(CIMultiDict(fields), body) == "s"
    named = identify(CIMultiDict(fields), body, None, ADDRESS)
    assert named.conversation != client().conversation
    assert named.program == client().program, "a program is the same whatever its conversation"


def test_headers_count_more_than_fields():
    assert session_hint(CIMultiDict({"session-id": "header"}), {"user": "field"}) == "header"


@pytest.mark.parametrize("body", [{"metadata": "x"}, {"metadata": {"user_id": 5}}, {"user": ""}, {"user": 7}])
def test_hints_of_other_types_are_none(body):
    assert session_hint(CIMultiDict(), body) is None


@given(st.text(max_size=200), st.text(max_size=200), st.text(max_size=LONGEST_NAME))
def test_identities_are_short_whatever_a_client_sends(session, agent, key):
    known = identify({"x-session-id": session, "User-Agent": agent}, {}, key, ADDRESS)
    assert max(len(known.conversation), len(known.program)) < 60


# ---- priority --------------------------------------------------------------------------------------------


def test_the_header_counts_more_than_the_field():
    assert stated_priority(headers(x_lcpd_priority="background"), {"priority": "interactive"}) == "background"
    assert stated_priority(headers(), {"priority": "background"}) == "background"
    assert stated_priority(headers(), {"priority": None}) is None


@pytest.mark.parametrize(
    ("header", "field", "blamed"),
    [("urgent", None, "x-lcpd-priority"), (None, "high", "priority"), (None, 3, "priority")],
)
def test_other_classes_are_refused(header, field, blamed):
    sent = headers(x_lcpd_priority=header) if header else headers()
    with pytest.raises(ApiError) as caught:
        stated_priority(sent, {"priority": field})
    assert (caught.value.status, caught.value.param) == (400, blamed)
    assert "interactive or background" in caught.value.message


@pytest.mark.parametrize(
    ("has_tools", "since", "side"),
    [
        (False, None, False),
        (False, 0.0, True),
        (False, 600.0, True),
        (False, 600.1, False),
        (True, None, False),
        (True, 1.0, False),
    ],
)
def test_a_chat_without_tools_is_a_side_request_for_ten_minutes_after_one_with_tools(has_tools, since, side):
    assert is_side_request(has_tools, since) is side


def agent(name="agent"):
    return Client(conversation=name, program=name, kind="other")


def test_an_agents_title_request_is_a_background_one_and_its_next_turn_is_not():
    now = 0.0
    users = ToolUsers(lambda: now)
    assert users.priority(agent(), has_tools=False) == "interactive"
    assert users.priority(agent(), has_tools=True) == "interactive"
    now = 300.0
    assert users.priority(agent(), has_tools=False) == "background"
    assert users.priority(agent("chat window"), has_tools=False) == "interactive"
    assert users.priority(agent(), has_tools=True) == "interactive"
    now = 1000.0
    assert users.priority(agent(), has_tools=False) == "interactive"


def test_only_the_last_programs_are_remembered():
    users = ToolUsers(lambda: 0.0)
    for number in range(1500):
        users.priority(agent(str(number)), has_tools=True)
    assert len(users) == 1000
    assert users.priority(agent("1499"), has_tools=False) == "background"
    assert users.priority(agent("0"), has_tools=False) == "interactive"


@pytest.mark.parametrize(
    ("agent", "program"),
    [
        ("claude-cli/2.0.1 (external, cli)", "claude-code"),
        ("codex_cli_rs/0.46.0 (Debian 12; x86_64) unknown", "codex"),
        ("opencode/1.0.20 ai-sdk/openai-compatible/1.0", "opencode"),
        ("QwenCode/0.2.1 (linux; x64)", "qwen-code"),
        ("AsyncOpenAI/Python 2.3.0", "openai-sdk"),
        ("Anthropic/JS 0.60.0", "anthropic-sdk"),
        ("curl/8.5.0", "curl"),
        ("somebody's script", "other"),
        ("", "other"),
    ],
)
def test_programs_are_known_by_their_user_agent(agent: str, program: str) -> None:
    assert program_of(agent) == program
    assert program in PROGRAMS
