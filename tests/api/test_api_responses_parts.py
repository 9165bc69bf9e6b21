"""The Responses API's parts: items in, items out, free text, the store.  Without any process."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcpd.api.errors import ApiError
from lcpd.api.responses.freeform import Freeform
from lcpd.api.responses.inputs import as_items, chat_messages
from lcpd.api.responses.store import ResponseStore
from lcpd.api.responses.stream import ResponseStream, failure_code
from lcpd.api.responses.tools import chosen, toolbox
from lcpd.api.turn import Finished, Usage
from lcpd.scheduler.generation import Done

RUN = {"type": "function", "name": "run", "description": "Run it", "parameters": {"type": "object", "properties": {}}}
PATCH = {"type": "custom", "name": "patch", "description": "Change files"}
AGENTS = {"type": "namespace", "name": "agents", "tools": [{**RUN, "name": "spawn"}, {**PATCH, "name": "note"}]}
BOX = toolbox([RUN, PATCH, AGENTS])


def said(*items: dict, instructions: str | None = None) -> list[dict]:
    return chat_messages(instructions, list(items), BOX)


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def call(name: str, call_id: str = "c1", **more: str) -> dict:
    return {"type": "function_call", "name": name, "arguments": "{}", "call_id": call_id, **more}


# ---- items in --------------------------------------------------------------------------------------------


def test_a_string_is_a_message_of_the_user():
    assert said(*as_items("hello")) == [user("hello")]


def test_one_text_is_a_string_and_several_stay_apart():
    one, two = {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}
    assert said({"role": "user", "content": [one]}) == [user("a")]
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert said({"role": "user", "content": [one, two]}) == [{"role": "user", "content": parts}]


def test_all_that_the_system_says_first_is_one_message():
    first, second = {"role": "developer", "content": "b"}, {"role": "system", "content": "c"}
    assert said(first, second, user("hi"), instructions="a") == [
        {"role": "system", "content": "a\n\nb\n\nc"},
        user("hi"),
    ]


def test_what_the_developer_says_later_stays_in_its_place():
    later = {"role": "developer", "content": "be brief"}
    assert said(user("hi"), later) == [user("hi"), later]


def test_the_parts_of_one_reply_are_one_message():
    reply = said(
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I run"}]},
        call("run", "c1"),
        call("run", "c2"),
    )
    (message,) = reply
    assert (message["reasoning_content"], message["content"]) == ("hm", "I run")
    assert [c["id"] for c in message["tool_calls"]] == ["c1", "c2"]


def test_reasoning_after_a_text_belongs_to_another_reply():
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    texts = [{"type": "message", "role": "assistant", "content": text} for text in ("a", "b")]
    first, second = said(texts[0], thought, texts[1])
    assert (first["content"], second["reasoning_content"], second["content"]) == ("a", "hm", "b")


def test_reasoning_that_is_encrypted_is_left_out():
    assert said({"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAAA"}) == []


def test_a_tools_result_may_be_text_or_parts():
    parts = [{"type": "input_text", "text": "ok"}]
    for output in ("ok", parts):
        result = {"type": "function_call_output", "call_id": "c1", "output": output}
        assert said(result) == [{"role": "tool", "tool_call_id": "c1", "content": "ok"}]


def test_an_image_in_a_tools_result_does_not_end_the_conversation():
    output = [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}]
    (message,) = said({"type": "function_call_output", "call_id": "c1", "output": output})
    assert message["content"] == "[the image was left out: this model cannot read it]"


def test_a_custom_call_comes_back_as_the_model_wrote_it():
    (message,) = said({"type": "custom_tool_call", "name": "patch", "input": 'say "hi"', "call_id": "c1"})
    function = message["tool_calls"][0]["function"]
    assert function == {"name": "patch", "arguments": r'{"input":"say \"hi\""}'}
    (result,) = said({"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"})
    assert result["role"] == "tool"


@pytest.mark.parametrize("box", [BOX, toolbox([])], ids=["offered", "not offered any more"])
def test_a_call_of_a_namespace_has_the_name_that_the_model_knows(box):
    (message,) = chat_messages(None, [call("spawn", namespace="agents")], box)
    assert message["tool_calls"][0]["function"]["name"] == "agents__spawn"


def test_calls_of_openais_own_tools_are_calls_with_their_fields_as_arguments():
    shell = {
        "type": "local_shell_call",
        "id": "x",
        "call_id": "c1",
        "status": "completed",
        "action": {"command": ["ls"]},
    }
    (message,) = said(shell)
    assert message["tool_calls"][0]["function"] == {"name": "local_shell", "arguments": '{"action":{"command":["ls"]}}'}


def test_what_only_another_server_can_read_is_left_out():
    assert said({"type": "web_search_call", "id": "ws_1"}, {"type": "compaction", "encrypted_content": "x"}) == []


@pytest.mark.parametrize(
    ("item", "where"),
    [
        ({"type": "hologram"}, "input[0].type"),
        ({}, "input[0].type"),
        ({"role": "robot", "content": "x"}, "input[0].role"),
        ({"role": "user", "content": 5}, "input[0].content"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": ["x"]}, "input[0].content[0]"),
        ({"type": "function_call", "name": "run", "call_id": "c1"}, "input[0].arguments"),
        ({"type": "function_call_output", "output": "x"}, "input[0].type"),
        ({"type": "custom_tool_call", "name": "x", "call_id": "c1", "input": 5}, "input[0].input"),
    ],
)
def test_a_wrong_item_is_named(item, where):
    with pytest.raises(ApiError) as raised:
        said(item)
    assert (raised.value.status, raised.value.param) == (400, where)


# ---- tools -----------------------------------------------------------------------------------------------


def test_a_custom_tool_is_a_function_with_one_string():
    function = BOX.functions[1]["function"]
    assert (function["name"], function["parameters"]["required"]) == ("patch", ["input"])


def test_the_grammar_of_a_custom_tool_is_told_to_the_model():
    form = {"type": "grammar", "syntax": "lark", "definition": "start: LINE"}
    (tool,) = toolbox([{**PATCH, "format": form}]).functions
    assert tool["function"]["description"].split("\n\n") == [
        "Change files",
        "The input follows this lark grammar:\nstart: LINE",
        "The whole text is the argument `input`.",
    ]


def test_two_tools_never_have_the_same_name():
    box = toolbox([{**RUN, "name": "agents__spawn"}, AGENTS])
    names = [tool["function"]["name"] for tool in box.functions]
    assert names == ["agents__spawn", "agents__spawn_", "agents__note"]
    assert box.function_name("spawn", "agents") == "agents__spawn_"


def test_allowed_tools_are_the_only_ones():
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "run"}]}
    fields = chosen(choice, BOX)
    assert [tool["function"]["name"] for tool in fields["tools"]] == ["run"]
    assert fields["tool_choice"] == "required"


# ---- free text -------------------------------------------------------------------------------------------

PIECES = st.text(max_size=30)


def pieces_of(data: st.DataObject, text: str) -> list[str]:
    """A text in arbitrary pieces."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def written(pieces: list[str]) -> tuple[str, str]:
    """(what was streamed, what it came to)."""
    freeform = Freeform()
    streamed = "".join(map(freeform.push, pieces))
    rest, whole = freeform.finish()
    return streamed + rest, whole


@given(st.text(st.characters(exclude_categories=["Cs"])), st.booleans(), st.data())
def test_free_text_comes_through_however_it_is_cut(text, ascii_only, data):
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    assert written(pieces_of(data, arguments)) == (text, text)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "abc', "abc"),
        ('{"input": "', ""),
        ('{"patch": "abc"}', "abc"),
        ("plain text", "plain text"),
        ('"abc"', '"abc"'),
        ('{"input": "a\\ud83d"}', "a\ufffd"),
        ('{"input": "a\nb"}', "a\nb"),
        ('{"input": 5}', '{"input": 5}'),
        ("", ""),
    ],
)
def test_arguments_of_another_shape_are_not_lost(arguments, text):
    assert written([arguments])[1] == text


# ---- items out -------------------------------------------------------------------------------------------

CALLS = st.lists(
    st.sampled_from([("run", '{"a": 1}'), ("patch", '{"input": "x\\ny \\u00e9"}'), ("agents__note", '{"input": "z"}')]),
    max_size=3,
)


def deltas_of(data: st.DataObject, reasoning: str, content: str, calls: list[tuple[str, str]]) -> list[dict]:
    """A reply as chat deltas in arbitrary pieces."""
    deltas: list[dict] = [{"role": "assistant", "content": None}]
    deltas += [{"reasoning_content": piece} for piece in pieces_of(data, reasoning)]
    deltas += [{"content": piece} for piece in pieces_of(data, content)]
    for index, (name, arguments) in enumerate(calls):
        first, *others = pieces_of(data, arguments)
        function = {"name": name, "arguments": first}
        deltas.append({"tool_calls": [{"index": index, "id": f"c{index}", "function": function}]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in others]
    return deltas


def played(deltas: list[dict], reason: str = "stop") -> tuple[list[dict], list[dict]]:
    """(events, output without ids)"""
    stream = ResponseStream({"id": "resp_1"}, Usage(10), BOX, False)
    events = stream.start()
    for delta in deltas:
        events += stream.delta(delta)
    events += stream.finish(Finished({}, Done(reason, "", "", 0, 5, 0.0, 0.0)))
    return events, [{k: v for k, v in item.items() if k != "id"} for item in stream.response["output"]]


@given(st.text(max_size=9), st.text(max_size=9), CALLS, st.data())
def test_however_a_reply_is_cut_the_items_are_the_same(reasoning, content, calls, data):
    events, output = played(deltas_of(data, reasoning, content, calls))
    whole = [{"reasoning_content": reasoning}, {"content": content}]
    whole += [
        {"tool_calls": [{"index": i, "id": f"c{i}", "function": {"name": name, "arguments": arguments}}]}
        for i, (name, arguments) in enumerate(calls)
    ]
    assert output == played(whole)[1]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        if event["type"].endswith(".delta"):
            assert event["delta"]


@given(st.text(max_size=9), st.text(max_size=9), CALLS, st.data())
def test_what_is_streamed_of_an_item_adds_up_to_it(reasoning, content, calls, data):
    events, output = played(deltas_of(data, reasoning, content, calls))
    for index, item in enumerate(output):
        streamed = "".join(e["delta"] for e in events if e["type"].endswith(".delta") and e["output_index"] == index)
        parts = "".join(part["text"] for part in item.get("content") or [])
        assert streamed == parts + item.get("arguments", "") + item.get("input", "")
        (done,) = (e["item"] for e in events if e["type"].endswith("item.done") and e["output_index"] == index)
        assert {k: v for k, v in done.items() if k != "id"} == item


def test_a_call_without_arguments_has_an_empty_object():
    function = {"name": "run", "arguments": ""}
    _, (item,) = played([{"tool_calls": [{"index": 0, "id": "", "function": function}]}])
    assert item["arguments"] == "{}"
    assert item["call_id"].startswith("call_")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ApiError(400, "x", code="context_length_exceeded"), "context_length_exceeded"),
        (ApiError(400, "x"), "invalid_prompt"),
        (ApiError(429, "x", code="queue_full"), "rate_limit_exceeded"),
        (ApiError(500, "x", code="request_quarantined"), "invalid_prompt"),
        (ApiError(503, "x", code="engine_unavailable"), "server_error"),
    ],
)
def test_a_failures_code_tells_whether_to_try_again(error, code):
    assert failure_code(error) == code


# ---- the store -------------------------------------------------------------------------------------------


def response(name: str, *texts: str) -> dict:
    return {"id": name, "output": [{"id": f"{name}-{i}", "text": text} for i, text in enumerate(texts)]}


def test_a_conversation_is_all_that_was_said():
    store = ResponseStore(10, 10_000)
    store.add("me", response("a", "hi"), [user("hello")], None)
    store.add("me", response("b", "fine"), [user("how are you?")], "a")
    conversation = store.conversation("me", "b") or []
    assert [item.get("text", item.get("content")) for item in conversation] == ["hello", "hi", "how are you?", "fine"]


def test_nobody_sees_the_responses_of_others():
    store = ResponseStore(10, 10_000)
    store.add("me", response("a", "hi"), [], None)
    assert store.response("you", "a") is None
    assert store.conversation("you", "a") is None
    assert store.item("you", "a-0") is None
    assert not store.remove("you", "a")


def test_a_conversation_outlives_the_responses_that_it_began_with():
    store = ResponseStore(10, 10_000)
    store.add("me", response("a", "hi"), [user("hello")], None)
    store.add("me", response("b", "fine"), [], "a")
    store.remove("me", "a")
    assert [item["id"] for item in (store.conversation("me", "b") or [])[1:]] == ["a-0", "b-0"]
    assert store.item("me", "a-0") is None
    assert store.item("me", "b-0") == {"id": "b-0", "text": "fine"}


def test_the_response_that_was_not_used_for_longest_goes_first():
    store = ResponseStore(2, 10_000)
    store.add("me", response("a"), [], None)
    store.add("me", response("b"), [], None)
    store.conversation("me", "a")
    store.add("me", response("c"), [], None)
    assert [name for name in "abc" if store.response("me", name)] == ["a", "c"]


def test_what_follows_on_a_forgotten_response_is_not_remembered():
    store = ResponseStore(10, 10_000)
    store.add("me", response("b"), [], "a")
    assert len(store) == 0


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 400), st.booleans()), max_size=40))
def test_the_store_stays_within_its_bounds_and_counts_right(steps):
    store = ResponseStore(5, 2000)
    for number, (before, size, follows) in enumerate(steps):
        store.add("me", response(str(number), "x" * size), [], str(before) if follows else None)
        assert len(store) <= 5
        assert 0 <= store.size <= 2000
    for number in range(len(steps)):
        store.remove("me", str(number))
    assert (len(store), store.size) == (0, 0)
