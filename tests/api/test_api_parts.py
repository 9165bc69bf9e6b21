"""The pure parts of the API: bodies, guards, Anthropic's events, heartbeats."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcpd.api import guard
from lcpd.api.anthropic import MessageStream, content_blocks
from lcpd.api.bodies import ChatBody, containers, parse
from lcpd.api.errors import ApiError, blamed_field, unknown_model
from lcpd.api.normalise import chat_body, messages_body
from lcpd.api.sampling import engine_fields
from lcpd.api.stream import with_heartbeats
from lcpd.api.turn import Finished, Usage
from lcpd.scheduler.generation import Done

# ---- bodies ----------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["messages", "model", "stop", "tools", "n", "stream"]), json_values))
def test_any_json_object_is_accepted_or_refused_never_worse(body):
    try:
        parsed, plain = parse(json.dumps(body).encode(), ChatBody, 200)
    except ApiError as error:
        assert error.status == 400
    else:
        assert plain == body
        assert parsed.messages


@given(st.binary(max_size=40))
def test_any_bytes_are_accepted_or_refused_never_worse(data):
    try:
        parse(data, ChatBody, 200)
    except ApiError as error:
        assert error.status == 400


@pytest.mark.parametrize(("levels", "fits"), [(9, True), (10, True), (11, False)])
def test_the_nesting_limit_counts_levels_below_a_field(levels, fits):
    body = {"messages": [{"role": "user", "content": "x"}], "extra": eval("[" * levels + "]" * levels)}
    data = json.dumps(body).encode()
    if fits:
        parse(data, ChatBody, 10)
    else:
        with pytest.raises(ApiError) as caught:
            parse(data, ChatBody, 10)
        assert caught.value.param == "extra"


@pytest.mark.parametrize("where", ["$", "metadata", "messages"])
def test_an_object_of_too_many_names_is_refused(where):
    names = {f"name{i}": i for i in range(20_001)}
    message = {"role": "user", "content": "x"}
    body = {"messages": [message | names] if where == "messages" else [message]}
    body |= names if where == "$" else {"metadata": {"a": [names]}} if where == "metadata" else {}
    with pytest.raises(ApiError, match="more than 20000 names") as caught:
        parse(json.dumps(body).encode(), ChatBody, 10)
    assert caught.value.param == (None if where == "$" else where)


def test_more_arrays_and_objects_than_the_limit_are_refused_before_anything_is_decoded(monkeypatch):
    monkeypatch.setattr("lcpd.api.bodies.MAX_CONTAINERS", 10)
    head = b'{"messages":[{"role":"user","content":"x"}],"extra":['  # four of them
    parse(head + b",".join([b"[]"] * 6) + b"]}", ChatBody, 10)
    for end in (b"]}", b"this is no JSON"):
        with pytest.raises(ApiError, match="more than 10 arrays and objects is refused: send less") as caught:
            parse(head + b",".join([b"[]"] * 7) + end, ChatBody, 10)
        assert caught.value.status == 400


def test_brackets_in_strings_are_no_arrays_and_objects(monkeypatch):
    monkeypatch.setattr("lcpd.api.bodies.MAX_CONTAINERS", 10)
    for content in ("[{" * 1000, '"[' * 1000, "\\[" * 1000, '\\"{'):
        parse(json.dumps({"messages": [{"role": "user", "content": content}]}).encode(), ChatBody, 10)


@given(
    st.recursive(
        st.text('[]{}"\\,:x\u00e9', max_size=5) | st.integers(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('["\\', max_size=3), inner, max_size=3),
    )
)
def test_arrays_and_objects_are_counted_as_a_parser_would(value):
    def inside(value):
        values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if values is None else 1 + sum(map(inside, values))

    for data in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        count = inside(value)
        assert containers(data.encode(), count) == count
        assert not count or containers(data.encode(), count - 1) > count - 1


def test_what_is_wrong_with_a_large_body_is_told_without_reading_all_of_it_again(monkeypatch):
    def fail(data):
        raise AssertionError("it was decoded once more")

    monkeypatch.setattr(json, "loads", fail)
    with pytest.raises(ApiError, match=r"not valid JSON.*\(byte \d+\)"):
        parse(b'{"a":[' + b"1," * 2**20 + b"x", ChatBody, 10)


def test_an_error_repeats_no_more_than_the_beginning_of_what_was_sent():
    error = unknown_model("x" * 10_000_000, "known")
    for body in (error.openai(), error.anthropic()):
        assert len(json.dumps(body)) < 3000
        assert "xxx..." in body["error"]["message"]


def test_brackets_in_strings_are_not_nesting():
    parse(json.dumps({"messages": [{"role": "user", "content": "[" * 500}]}).encode(), ChatBody, 10)


def test_null_counts_as_absent():
    body = b'{"messages":[{"role":"user","content":null}],"max_tokens":null,"stop":null,"stream":null}'
    parsed, plain = parse(body, ChatBody, 10)
    assert parsed.stream is None
    assert engine_fields(plain, 0).keys() == {"messages"}


@pytest.mark.parametrize(
    ("message", "body", "field"),
    [
        ("Invalid tool_choice: maybe", ["messages", "tool_choice"], "tool_choice"),
        ("Field 'repeat_last_n' must be at least -1", ["prompt", "repeat_last_n"], "repeat_last_n"),
        ("JSON schema conversion failed: unrecognised type", ["response_format"], "response_format"),
        ("the schema's keyword not (at #) is not supported", ["json_schema"], "json_schema"),
        ("JSON schema conversion failed in a tool", ["tools"], "tools"),
        ("the sampler could not be made: the grammar does not compile", ["grammar"], "grammar"),
        ("the grammar does not compile", ["messages"], "messages"),
        ("something else", [], "messages"),
    ],
)
def test_the_field_that_llama_cpp_talks_about_is_blamed_if_the_body_has_it(message, body, field):
    assert blamed_field(message, body, "messages") == field


# ---- normalising -----------------------------------------------------------------------------------------


def tool(name):
    return {"type": "function", "function": {"name": name}}


def test_a_named_tool_choice_leaves_that_tool_and_requires_a_call():
    body = {
        "messages": [],
        "tools": [tool("a"), tool("b")],
        "tool_choice": {"type": "function", "function": {"name": "b"}},
    }
    changed = chat_body(body)
    assert (changed["tools"], changed["tool_choice"]) == ([tool("b")], "required")
    assert len(body["tools"]) == 2


@pytest.mark.parametrize("normalise", [chat_body, messages_body])
def test_a_tool_choice_that_names_no_tool_is_refused(normalise):
    choice = {"type": "tool", "name": "zebra", "function": {"name": "zebra"}}
    with pytest.raises(ApiError) as caught:
        normalise({"messages": [], "tools": [{"name": "a", **tool("a")}], "tool_choice": choice})
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("arguments", "readable"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ("", "{}"),
        (" ", "{}"),
        ('{"a": ', '{"arguments":"{\\"a\\": "}'),
        ("[1]", '{"arguments":"[1]"}'),
    ],
)
def test_arguments_in_the_history_always_become_an_object(arguments, readable):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = chat_body({"messages": [{"role": "assistant", "tool_calls": [call]}]})["messages"][0]
    assert message["tool_calls"][0]["function"]["arguments"] == readable


def test_anthropics_ways_to_forbid_tools_and_thinking_are_passed_on():
    body = {"messages": [], "tool_choice": {"type": "none"}, "thinking": {"type": "disabled"}}
    _, overrides = messages_body(body)
    assert overrides == {"tool_choice": "none", "chat_template_kwargs": {"enable_thinking": False}}


# ---- guards ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("localhost:8080", True),
        ("app.localhost", True),
        ("LOCALHOST", True),
        ("127.0.0.1:8080", True),
        ("192.168.1.5", True),
        ("[::1]:8080", True),
        ("box.lan", True),
        ("BOX.lan:1", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("box.lan.evil", False),
        ("", False),
        ("[", False),
        ("localhost:port", False),
        ("user@evil.example", False),
    ],
)
def test_hosts(host, allowed):
    assert guard.host_is_allowed(host, "127.0.0.1", ["box.lan"]) is allowed


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),
        ("http://localhost:8080", True),
        ("https://ui.lan", True),
        ("http://localhost:9090", False),
        ("https://ui.lan.evil", False),
        ("null", False),
        ("", False),
    ],
)
def test_origins(origin, allowed):
    assert guard.origin_is_allowed(origin, "localhost:8080", ["https://ui.lan"]) is allowed


# ---- Anthropic -------------------------------------------------------------------------------------------


def finished(reason="stop", message=None):
    return Finished(message or {"role": "assistant", "content": "x"}, Done(reason, "", "", 0, 1, 0.1, 0.1))


def play(deltas, heartbeat_before=frozenset(), thinks=False):
    """The events of a stream of deltas, with a heartbeat before some of them."""
    stream = MessageStream("msg_1", "m", Usage(10, 4, 1), thinks)
    events = []
    for i, delta in enumerate(deltas):
        if i in heartbeat_before:
            events += stream.heartbeat()
        events += stream.delta(delta)
    return events + stream.finish(finished())


deltas = st.lists(
    st.one_of(
        st.builds(lambda t: {"reasoning_content": t}, st.text(max_size=3)),
        st.builds(lambda t: {"content": t}, st.text(max_size=3)),
        st.builds(
            lambda i, n, a: {"tool_calls": [{"index": i, "id": f"c{i}", "function": {"name": n, "arguments": a}}]},
            st.integers(0, 2),
            st.sampled_from(["f", ""]),
            st.text(max_size=3),
        ),
    ),
    max_size=8,
)


@given(deltas, st.sets(st.integers(0, 7)), st.booleans())
def test_a_streams_events_always_nest_as_the_protocol_asks(parts, beats, thinks):
    events = play(parts, beats, thinks)
    assert events[0]["type"] == "message_start"
    assert [e["type"] for e in events[-2:]] == ["message_delta", "message_stop"]
    open_block, last_index = None, -1
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert open_block is None
            assert event["index"] == last_index + 1
            open_block, last_index = event["content_block"]["type"], event["index"]
        else:
            assert event["index"] == last_index
            if event["type"] == "content_block_stop":
                open_block = None
            else:
                kinds = {"thinking": ("thinking_delta", "signature_delta"), "text": ("text_delta",)}
                assert event["delta"]["type"] in kinds.get(open_block, ("input_json_delta",))
    assert open_block is None


@given(deltas, st.sets(st.integers(0, 7)))
def test_heartbeats_change_nothing_of_the_text(parts, beats):
    def text(events):
        return "".join(e["delta"].get("text", "") for e in events if e["type"] == "content_block_delta")

    assert text(play(parts, beats)) == text(play(parts))


def test_a_tool_call_whose_arguments_are_no_object_is_shown_as_text():
    message = {"content": None, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{broken"}}]}
    assert content_blocks(message) == [{"type": "text", "text": "f({broken)"}]


def test_usage_of_an_anthropic_message_leaves_out_what_was_cached():
    usage = Usage(prompt=10, cached=4, generated=2).anthropic()
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (6, 4, 2)


# ---- heartbeats ------------------------------------------------------------------------------------------


async def test_heartbeats_fill_the_gaps_and_only_the_gaps():
    gate = asyncio.Event()

    async def source():
        yield "a"
        await gate.wait()
        yield "b"

    seen = []
    async for item in with_heartbeats(source(), 0.02, lambda: "beat"):
        seen.append(item)
        if seen.count("beat") == 3:
            gate.set()
    assert (seen[0], seen[-1]) == ("a", "b")
    assert set(seen[1:-1]) == {"beat"}


async def test_closing_the_heartbeats_ends_their_source():
    ended = asyncio.Event()

    async def source():
        try:
            await asyncio.sleep(60)
            yield "never"
        finally:
            ended.set()

    beats = with_heartbeats(source(), 0.01, lambda: "beat")
    assert await anext(beats) == "beat"
    await beats.aclose()
    await asyncio.wait_for(ended.wait(), 5)


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.4", False),
        ("fe80::1%eth0", False),
        ("box.lan", False),
        ("", False),
    ],
)
def test_only_loopback_addresses_are_out_of_the_reach_of_other_machines(address, loopback):
    assert guard.is_loopback(address) == loopback
