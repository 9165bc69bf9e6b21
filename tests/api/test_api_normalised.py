"""What is put right at the head of a prompt: the order of tools and of their keys, and Claude Code's billing line."""

from __future__ import annotations

import json
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.api import context_of
from lcpd.api.known_tools import KEYS, ORDER, KnownTools
from lcpd.api.normalise import without_attribution

Json = dict


def chat_tool(name: str, **properties: str) -> Json:
    parameters = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def messages_tool(name: str) -> Json:
    return {"name": name, "input_schema": {"type": "object", "properties": {}}}


def written(tools: list) -> bytes:
    return msgspec.json.encode(tools)


def shaken(value: object, rng: random.Random) -> object:
    """The same JSON with the keys of all objects in a random order."""
    if isinstance(value, dict):
        keys = rng.sample(list(value), len(value))
        return {key: shaken(value[key], rng) for key in keys}
    return [shaken(inner, rng) for inner in value] if isinstance(value, list) else value


names = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6, unique=True)
scalars = st.one_of(st.integers(-3, 3), st.booleans(), st.sampled_from(["x", "1", ""]), st.none())
schemas = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner))
shapes = st.sampled_from([chat_tool, messages_tool])


@settings(max_examples=30, deadline=None)
@given(names, shapes, st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True), max_size=3), st.randoms())
def test_a_set_of_tools_keeps_its_first_order_whatever_came_meanwhile(given_names, shape, others, rng) -> None:
    known = KnownTools()
    tools = [shape(name) for name in given_names]
    assert known.as_before(tools) == (tools, [])
    for other in others:
        known.as_before([shape(name) for name in other])
    mixed = rng.sample(tools, len(tools))
    assert known.as_before(mixed) == (tools, [ORDER] if mixed != tools else [])


@settings(max_examples=30, deadline=None)
@given(names)
def test_who_always_sends_one_order_is_never_reordered(given_names) -> None:
    known = KnownTools()
    tools = [chat_tool(name) for name in given_names]
    for upto in range(1, len(tools) + 1):
        assert known.as_before(tools[:upto]) == (tools[:upto], [])


@settings(max_examples=50, deadline=None)
@given(schemas, st.randoms())
def test_keys_in_any_order_are_written_as_they_were_first_and_no_value_changes(schema, rng) -> None:
    known = KnownTools()
    first = {**chat_tool("a"), "more": schema}
    again = shaken(first, rng)
    known.as_before([first])
    tools, rules = known.as_before([again])
    assert written(tools) == written([first])
    assert rules == ([KEYS] if written([again]) != written([first]) else [])


@pytest.mark.parametrize("other", [1.0, True, "1", 2])
def test_what_only_python_takes_for_equal_is_another_tool(other: object) -> None:
    known = KnownTools()
    known.as_before([{"name": "a", "x": 1}])
    assert written(known.as_before([{"name": "a", "x": other}])[0]) == written([{"name": "a", "x": other}])


def test_a_changed_description_does_not_change_the_order() -> None:
    known = KnownTools()
    known.as_before([chat_tool("a"), chat_tool("b")])
    changed = chat_tool("a", path="string")
    assert known.as_before([chat_tool("b"), changed]) == ([changed, chat_tool("b")], [ORDER])


@pytest.mark.parametrize("tools", [[{"type": "web_search"}, chat_tool("a")], [chat_tool("a"), chat_tool("a", x="y")]])
def test_tools_that_cannot_be_told_apart_by_name_stay_as_they_are(tools: list) -> None:
    known = KnownTools()
    for order in (tools, tools[::-1]):
        assert known.as_before(order) == (order, [])


def test_scopes_have_nothing_to_do_with_each_other() -> None:
    known = KnownTools()
    known.as_before([chat_tool("a"), chat_tool("b")], scope=1)
    mixed = [chat_tool("b"), chat_tool("a")]
    assert known.as_before(mixed, scope=2) == (mixed, [])


def test_what_is_not_to_be_kept_leaves_no_trace_but_finds_what_is_known() -> None:
    known = KnownTools()
    tools = [chat_tool("a"), chat_tool("b")]
    known.as_before(tools[::-1], remember=False)
    assert known.as_before(tools) == (tools, [])
    assert known.as_before(tools[::-1], remember=False) == (tools, [ORDER])


def test_memory_is_bounded_and_what_was_not_seen_for_longest_is_forgotten() -> None:
    known = KnownTools(most_sets=2, most_bytes=600)
    sets = [[chat_tool(f"{i}a"), chat_tool(f"{i}b")] for i in range(3)]
    for tools in sets:
        known.as_before(tools)
    assert len(known) == 2
    assert known.as_before(sets[0][::-1]) == (sets[0][::-1], [])
    assert known.as_before(sets[2][::-1]) == (sets[2], [ORDER])


# ---- over HTTP -------------------------------------------------------------------------------------------

FUNCTIONS = [chat_tool("read", path="string"), chat_tool("write", path="string", text="string")]
FLAT = [{"type": "function", **tool["function"]} for tool in FUNCTIONS]
BLOCKS = [{"name": tool["name"], "input_schema": tool["parameters"]} for tool in FLAT]
DIALECTS = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}, FUNCTIONS),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}, BLOCKS),
    "responses": ("/v1/responses", {"input": "hello"}, FLAT),
}


def test_names_too_long_to_be_any_are_not_remembered() -> None:
    known = KnownTools(most_bytes=1)
    known.as_before([chat_tool("a" * 10**6), chat_tool("b")])
    assert len(known) == 0


def report_of(response) -> str:
    return response.headers["x-lcpd-cache"]


async def test_tools_in_another_order_reuse_the_whole_prompt_in_any_dialect_and_the_report_says_why(
    make_client,
) -> None:
    client = await make_client()
    for path, body, tools in DIALECTS.values():
        first = await client.post(path, json={**body, "tools": tools})
        again = await client.post(path, json={**body, "tools": tools[::-1]})
        assert (first.status, again.status) == (200, 200)
        assert "normalised" not in report_of(first)
        assert report_of(again).endswith('why="last-token:1"; normalised="tool-order"')


async def test_keys_in_another_order_reuse_the_whole_prompt_and_a_named_tool_is_still_the_only_one(make_client) -> None:
    client = await make_client()
    path, body, tools = DIALECTS["chat"]
    await client.post(path, json={**body, "tools": tools})
    mixed = [shaken(tool, random.Random(7)) for tool in tools]
    assert json.dumps(mixed) != json.dumps(tools)
    answer = await (await client.post(path, json={**body, "tools": mixed})).json()
    assert answer["timings"]["cache"]["normalised"] == ["tool-keys"]
    assert answer["timings"]["cache"]["computed"] == 1
    choice = {"type": "function", "function": {"name": "write"}}
    rendered = await client.post("/apply-template", json={**body, "tools": mixed[::-1], "tool_choice": choice})
    prompt = (await rendered.json())["prompt"]
    assert '"write"' in prompt
    assert '"read"' not in prompt


async def test_it_can_be_switched_off(make_client) -> None:
    client = await make_client(cache__stable_tools=False)
    path, body, tools = DIALECTS["chat"]
    await client.post(path, json={**body, "tools": tools})
    again = await client.post(path, json={**body, "tools": tools[::-1]})
    assert "diverged" in report_of(again) and "normalised" not in report_of(again)


async def test_counting_sees_the_prompt_that_will_be_run(make_client) -> None:
    client = await make_client()
    path, body, tools = DIALECTS["messages"]
    await client.post(path, json={**body, "tools": tools})
    counts = [
        await (await client.post("/v1/messages/count_tokens", json={**body, "tools": order})).json()
        for order in (tools, tools[::-1])
    ]
    assert counts[0] == counts[1]
    assert len(context_of(client).known_tools) == 1


# ---- who pays --------------------------------------------------------------------------------------------

LINE = "x-anthropic-billing-header: cc_version=2.1.197.{0}; cc_entrypoint=cli; cch={0}45;"
CLAUDE = "You are Claude Code, a=b;"


def text_blocks(*texts: str) -> list[dict]:
    return [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}} for text in texts]


@pytest.mark.parametrize(
    ("system", "rest"),
    [
        (LINE.format("1a") + CLAUDE, CLAUDE),
        (LINE.format("1a") + "\n\n" + CLAUDE, CLAUDE),
        (LINE.format("1a").rstrip(";") + "\n" + CLAUDE, CLAUDE),
        (text_blocks(LINE.format("1a"), CLAUDE), text_blocks(CLAUDE)),
        (text_blocks(LINE.format("1a") + CLAUDE, "More."), text_blocks(CLAUDE, "More.")),
    ],
)
def test_the_line_in_front_of_the_system_text_is_left_out(system: object, rest: object) -> None:
    body = {"system": system, "messages": []}
    assert without_attribution(body) == {"system": rest, "messages": []}
    assert body["system"] is system


@pytest.mark.parametrize(
    "system", [None, "", CLAUDE, f"{CLAUDE} {LINE}", text_blocks(CLAUDE, f" {LINE}"), [], [None, 1, {"text": None}]]
)
def test_any_other_system_text_stays_as_it_is(system: object) -> None:
    body = {"system": system}
    assert without_attribution(body) is body


@pytest.mark.parametrize("dropped", [True, False])
async def test_a_second_session_of_claude_code_reuses_the_head(make_client, dropped: bool) -> None:
    client = await make_client(cache__drop_attribution=dropped)
    path, body, tools = DIALECTS["messages"]
    for session in ("1a", "2b"):
        system = text_blocks(LINE.format(session), CLAUDE)
        response = await client.post(path, json={**body, "tools": tools, "system": system})
    assert ("diverged" in report_of(response)) is not dropped
    assert ('normalised="attribution"' in report_of(response)) is dropped
