"""What is remembered of tools changes nothing: the same prompt and fields as llama.cpp makes without it."""

from __future__ import annotations

import json
import sys
from functools import partial

import pytest

from lcpd.build.pin import load_pin
from lcpd.build.report import PlainReporter
from lcpd.build.source import fetch, identify
from lcpd.chat.tool_memo import ToolMemo
from lcpd.native import bridge
from lcpd.paths import dirs, native_recipe
from support import READ_FILE

pytestmark = pytest.mark.native
OTHER = {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object"}}}
CALL = {"id": "call_123456789", "type": "function", "function": {"name": "now", "arguments": "{}"}}
USER = {"role": "user", "content": "What time is it?"}
CONVERSATIONS = [
    [USER],
    [{"role": "system", "content": "Be brief."}, USER],
    [USER, {"role": "assistant", "content": "Four."}, {"role": "user", "content": "Sure?"}],
    [
        USER,
        {"role": "assistant", "content": "", "reasoning_content": "I look.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_123456789", "name": "now", "content": "16:00"},
    ],
    [USER, {"role": "assistant", "content": "It is"}],
]
FIELDS = [
    {},
    {"tool_choice": "required", "parallel_tool_calls": True, "temperature": 0.5},
    {"tool_choice": "none"},
    {"chat_template_kwargs": {"enable_thinking": False}, "stop": ["x"]},
    {"response_format": {"type": "json_object"}, "reasoning_format": "none"},
    {"json_schema": {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}},
    {"json_schema": {"type": "string", "pattern": "^(a$"}, "tool_choice": "required"},
]


@pytest.fixture(scope="module")
def templates():
    """The texts of all templates that come with llama.cpp, by name."""
    pin = load_pin(native_recipe())
    tree = fetch(identify(None, pin), pin, dirs().cache, PlainReporter(sys.stdout))
    texts = {file.name: file.read_text() for file in sorted((tree / "models" / "templates").glob("*.jinja"))}
    assert len(texts) > 50
    return texts


def outcome(apply, body):
    """What comes of a body, or the refusal."""
    try:
        return apply(body)
    except bridge.BridgeError as error:
        return str(error)


def bodies(fields):
    for messages in CONVERSATIONS:
        yield json.dumps({"messages": messages, "tools": [READ_FILE, OTHER], **fields}).encode()


def test_with_every_template_it_makes_no_difference(templates, models):
    params = bridge.Params("--jinja")
    spared = 0
    for name, text in templates.items():
        chat = bridge.Chat(params, models("hybrid").handle, text)
        counted = Counted(chat.apply)
        memo = ToolMemo(counted)
        for fields in FIELDS:
            for body in bodies(fields):
                expected = outcome(chat.apply, body)
                assert outcome(partial(memo.applied, scope=0, remember=True), body) == expected, (name, body)
        asked_for = len(CONVERSATIONS)  # with the choice "none"
        spared += counted.bare - asked_for
    assert spared > 10 * len(templates), "it is hardly ever used: this shows nothing"


class Counted:
    """How often a template is applied, and how often of these without what comes of tools."""

    def __init__(self, apply):
        self._apply = apply
        self.all = self.bare = 0

    def __call__(self, body):
        self.all += 1
        self.bare += json.loads(body).get("tool_choice") == "none"
        return self._apply(body)


@pytest.fixture
def counted(models):
    params = bridge.Params("--jinja")
    return Counted(bridge.Chat(params, models("hybrid").handle).apply)


def body_of(messages, **fields):
    return json.dumps({"messages": messages, "tools": [READ_FILE], **fields}).encode()


def test_the_same_tools_are_worked_on_once_while_the_conversation_grows(counted):
    memo = ToolMemo(counted)
    for messages in CONVERSATIONS[:4]:
        memo.applied(body_of(messages), 0, True)
    assert (counted.all, counted.bare) == (4, 3)


@pytest.mark.parametrize(
    "changed",
    [{"tools": [OTHER]}, {"tool_choice": "required"}, {"temperature": 0.25}, {"chat_template_kwargs": {"x": 1}}],
)
def test_another_field_is_another_request(counted, changed):
    memo = ToolMemo(counted)
    memo.applied(body_of([USER]), 0, True)
    fields = memo.applied(body_of([USER], **changed), 0, True)
    assert counted.bare == 0
    assert fields == counted(body_of([USER], **changed))


def test_what_goes_on_within_a_message_is_worked_on_each_time(counted):
    memo = ToolMemo(counted)
    for _ in range(2):
        memo.applied(body_of([USER], continue_final_message=True, add_generation_prompt=False), 0, True)
        memo.applied(body_of([USER, {"role": "assistant", "content": "It is"}]), 0, True)
    assert (counted.all, counted.bare) == (4, 0)


def test_each_generation_prompt_is_remembered_for_itself():
    """Some templates add other words for a reply to a tool's result than for one to a user."""

    def apply(body):
        last = json.loads(body)["messages"][-1]["role"]
        return {"prompt": f"... {last}:", "generation_prompt": last, "chat_parser": f"after {last}"}

    counted = Counted(apply)
    memo = ToolMemo(counted)
    for role in ("user", "tool") * 3:
        body = body_of([{"role": role, "content": "x"}])
        assert memo.applied(body, 0, True) == apply(body)
    assert (counted.all - counted.bare, counted.bare) == (2, 5)


def test_scopes_share_nothing_and_what_is_not_to_be_stored_leaves_no_trace(counted):
    memo = ToolMemo(counted)
    for scope, remember, bare in ((1, False, 0), (1, True, 0), (2, True, 0), (1, False, 1), (2, False, 2)):
        memo.applied(body_of([USER]), scope, remember)
        assert counted.bare == bare


def test_forgotten_tools_are_worked_on_again(counted):
    memo = ToolMemo(counted)
    memo.applied(body_of([USER]), 0, True)
    memo.forget()
    memo.applied(body_of([USER]), 0, True)
    assert counted.bare == 0


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"tools": [1]}', b'{"messages": 3, "tools": [1]}'])
def test_what_is_no_chat_is_refused_in_llama_cpp_s_words(models, body):
    chat = bridge.Chat(bridge.Params("--jinja"), models("hybrid").handle)
    with pytest.raises(bridge.BridgeError) as expected:
        chat.apply(body)
    with pytest.raises(bridge.BridgeError) as refused:
        ToolMemo(chat.apply).applied(body, 0, True)
    assert str(refused.value) == str(expected.value)
