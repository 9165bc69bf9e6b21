"""Tool calls that a model writes wrongly or does not finish, through the real parser, for two ways of writing them:
a tag for each parameter (the hybrid's template), and JSON.

The grammar prevents most of this once a call has begun; not all templates have one, and replies are cut off.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from lcpd.build import require_active
from lcpd.chat.client import ChatClient, ChatSettings
from lcpd.chat.replies import add_delta
from native.test_native_replay import JSON_CALLS
from support import READ_FILE, model_path

pytestmark = pytest.mark.native
EDIT = {
    "type": "function",
    "function": {
        "name": "edit",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "line": {"type": "integer"}, "more": {"type": "object"}},
            "required": ["path"],
        },
    },
}


class Written:
    """A chat process with one template, and how a model writes with it."""

    def __init__(self, chat: ChatClient, fields: bytes) -> None:
        self._chat = chat
        self._fields = fields

    async def parsed(self, text: str, cut: bool = False, size: int = 5) -> dict:
        """The whole message for a text that comes in pieces; what the stream says must be the same."""
        reply, built = self._chat.open_reply(self._fields), {"role": "assistant", "content": ""}
        for at in range(0, len(text), size):
            final = at + size >= len(text)
            deltas, message = await self._chat.push(reply, text[at : at + size], final, cut and final)
            for delta in deltas:
                add_delta(built, delta)
        assert message is not None
        told = [
            [one.get("content") or "", *((c["function"]["name"], c["function"]["arguments"]) for c in calls_of(one))]
            for one in (built, message)
        ]
        assert told[0] == told[1]
        assert all(isinstance(call["function"]["arguments"], str) for call in calls_of(message))
        return message


def calls_of(message: dict) -> list:
    return message.get("tool_calls") or []


def called(message: dict) -> list:
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls_of(message)]


async def started(template: str | None) -> tuple[ChatClient, Written]:
    chat = ChatClient(ChatSettings(model_path("hybrid"), template, require_active().lib_dir, 2 << 30, 60))
    await chat.start()
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [READ_FILE, EDIT]}
    return chat, Written(chat, (await chat.render("chat", json.dumps(body).encode())).fields)


@pytest.fixture
async def tags() -> AsyncIterator[Written]:
    chat, written = await started(None)
    yield written
    await chat.stop()


@pytest.fixture
async def as_json() -> AsyncIterator[Written]:
    chat, written = await started(JSON_CALLS)
    yield written
    await chat.stop()


def tagged(name: str, **parameters: str) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def jsoned(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


THOUGHT = "I look.\n</think>\n\n"
GOOD = ("read_file", {"path": "a.py"})


async def test_a_call_whose_end_is_missing_is_closed(tags: Written, as_json: Written) -> None:
    assert called(await tags.parsed(THOUGHT + tagged("read_file", path="a.py").removesuffix("\n</tool_call>"))) == [
        GOOD
    ]
    assert called(await as_json.parsed(jsoned("read_file", '{"path": "a.py"}').removesuffix("}\n</tool_call>"))) == [
        GOOD
    ]


@pytest.mark.parametrize("size", [5, 1000])
async def test_a_call_that_is_cut_off_is_left_open_so_that_nobody_runs_it(
    tags: Written, as_json: Written, size: int
) -> None:
    for written, text in (
        (tags, THOUGHT + tagged("read_file", path="a.py").partition("y\n")[0]),
        (as_json, jsoned("read_file", '{"path": "a.py"}').partition('y"')[0]),
    ):
        (call,) = calls_of(await written.parsed(text, cut=True, size=size))
        assert call["function"]["name"] == "read_file"
        assert call["function"]["arguments"].endswith("a.p")


@pytest.mark.parametrize("size", [5, 1000])
async def test_a_tool_that_there_is_not_is_shown_as_text(tags: Written, as_json: Written, size: int) -> None:
    for written, before, text in (
        (tags, THOUGHT, tagged("no_such", path="a.py")),
        (as_json, "", jsoned("no_such", '{"path": "a.py"}')),
    ):
        message = await written.parsed(before + text, size=size)
        assert (message["content"], calls_of(message)) == (text, [])


async def test_a_comma_too_many_is_left_out(as_json: Written) -> None:
    assert called(await as_json.parsed(jsoned("read_file", '{"path": "a.py",}'))) == [GOOD]


async def test_arguments_of_the_wrong_kind_are_not_made_up(tags: Written) -> None:
    message = await tags.parsed(THOUGHT + tagged("edit", path="a.py", line="many"))
    (call,) = calls_of(message)
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(call["function"]["arguments"])


async def test_of_two_calls_the_broken_one_is_shown_as_text(tags: Written, as_json: Written) -> None:
    for written, text in (
        (tags, THOUGHT + tagged("read_file", path="a.py")),
        (as_json, jsoned("read_file", '{"path": "a.py"}')),
    ):
        broken = "<tool_call>\nno call at all"
        message = await written.parsed(f"{text}\n{broken}")
        assert called(message) == [GOOD]
        assert message["content"].strip() == broken


async def test_of_two_calls_the_one_that_is_cut_off_is_left_open(tags: Written, as_json: Written) -> None:
    for written, text in (
        (tags, THOUGHT + tagged("read_file", path="a.py")),
        (as_json, jsoned("read_file", '{"path": "a.py"}')),
    ):
        whole, half = calls_of(
            await written.parsed(f"{text}\n{text.removeprefix(THOUGHT).partition('.py')[0]}", cut=True)
        )
        assert json.loads(whole["function"]["arguments"]) == GOOD[1]
        assert half["function"]["arguments"].endswith('"a')


async def test_a_call_inside_of_thinking_is_a_call(tags: Written) -> None:
    message = await tags.parsed("I should look: " + tagged("read_file", path="a.py"))
    assert called(message) == [GOOD]
    assert message["reasoning_content"].startswith("I should look:")


async def test_what_is_said_behind_a_call_is_not_lost(tags: Written, as_json: Written) -> None:
    for written, text in (
        (tags, THOUGHT + tagged("read_file", path="a.py")),
        (as_json, jsoned("read_file", '{"path": "a.py"}')),
    ):
        message = await written.parsed(f"{text}\nThat should do.")
        assert called(message) == [GOOD]
        assert message["content"].strip() == "That should do."
