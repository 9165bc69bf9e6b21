"""POST /v1/responses over a fake worker: replies, streams, continued conversations, errors."""

from __future__ import annotations

import json

import pytest

from fakes.api import context_of, until

PATH = "/v1/responses"
RUN = {"type": "function", "name": "run", "description": "Run it", "parameters": {"type": "object", "properties": {}}}
PATCH = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}}
AGENTS = {"type": "namespace", "name": "agents", "tools": [{**RUN, "name": "spawn"}]}
SEARCH = {"type": "web_search", "external_web_access": True}


def events(text: str) -> list:
    """The JSON payloads of a stream."""
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def stream(client, **body):
    response = await client.post(PATH, json={"input": "hello", "stream": True, **body})
    assert response.status == 200
    return events(await response.text())


async def whole(client, **body):
    response = await client.post(PATH, json={"input": "hello", **body})
    assert response.status == 200, await response.text()
    return await response.json()


async def refused(client, **body):
    response = await client.post(PATH, json={"input": "hello", **body})
    assert response.status in (400, 404), await response.text()
    return (await response.json())["error"]


def without_ids(item: dict) -> dict:
    return {key: value for key, value in item.items() if key != "id"}


# ---- replies ---------------------------------------------------------------------------------------------


async def test_a_reply_has_its_reasoning_its_text_and_its_calls_as_items(make_client):
    client = await make_client({"reply": "<think>hm</think>I run it.<tool>run {}</tool>"})
    response = await whole(client, tools=[RUN])
    reasoning, message, call = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert message["content"][0]["text"] == "I run it."
    assert (call["type"], call["name"], call["arguments"], call["call_id"]) == ("function_call", "run", "{}", "call_0")
    assert response["status"] == "completed"


async def test_usage_counts_and_names_what_was_cached(make_client):
    client = await make_client({"reply": "yes"})
    first = (await whole(client))["usage"]
    again = (await whole(client))["usage"]
    assert first["output_tokens"] == 4
    assert first["total_tokens"] == first["input_tokens"] + 4
    assert 0 < again["input_tokens_details"]["cached_tokens"] < again["input_tokens"]


async def test_a_summary_is_what_who_asks_for_one_gets(make_client):
    client = await make_client({"reply": "<think>hm</think>yes"})
    received = await stream(client, reasoning={"summary": "auto"})
    item = received[-1]["response"]["output"][0]
    assert (item["summary"], "content" in item) == ([{"type": "summary_text", "text": "hm"}], False)
    deltas = [e["delta"] for e in received if e["type"] == "response.reasoning_summary_text.delta"]
    assert "".join(deltas) == "hm"


async def test_a_reply_that_is_cut_off_is_incomplete(make_client):
    client = await make_client({"reply": "a long reply"})
    received = await stream(client, max_output_tokens=4)
    last = received[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["response"]["output"][0]["status"] == "incomplete"
    assert last["response"]["output"][0]["content"][0]["text"] == "a lo"


# ---- streams ---------------------------------------------------------------------------------------------


async def test_a_stream_numbers_its_events_and_ends_with_the_response(make_client):
    client = await make_client({"reply": "<think>hm</think>yes"})
    received = await stream(client)
    kinds = [event["type"].removeprefix("response.") for event in received]
    assert [event["sequence_number"] for event in received] == list(range(len(received)))
    assert kinds[:3] == ["created", "in_progress", "output_item.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert kinds.count("output_item.added") == kinds.count("output_item.done") == 2


async def test_a_stream_ends_in_the_same_items_as_the_whole_reply(make_client):
    client = await make_client({"reply": "<think>hm</think>I do.<tool>run {}</tool><tool>patch {}</tool>"})
    streamed = (await stream(client, tools=[RUN, PATCH]))[-1]["response"]
    unstreamed = await whole(client, tools=[RUN, PATCH])
    assert list(map(without_ids, streamed["output"])) == list(map(without_ids, unstreamed["output"]))


async def test_events_of_an_item_name_it_and_its_place(make_client):
    client = await make_client({"reply": "<think>hm</think>yes"})
    received = await stream(client)
    places = {e["item"]["id"]: e["output_index"] for e in received if e["type"] == "response.output_item.added"}
    named = [(e["item_id"], e["output_index"]) for e in received if "item_id" in e]
    assert len(places) == 2
    assert set(named) == set(places.items())


async def test_in_progress_events_are_the_signs_of_life_because_codex_counts_nothing_else(make_client):
    client = await make_client({"prefill_seconds": 0.3, "reply": "slow"}, server__heartbeat_interval=0.05)
    received = await stream(client)
    kinds = [event["type"] for event in received]
    assert kinds.count("response.in_progress") >= 3
    assert [event["sequence_number"] for event in received] == list(range(len(received)))


async def test_a_client_that_goes_away_frees_its_slot(make_client):
    client = await make_client({"decode_seconds": 0.05}, model__slots=1)
    response = await client.post(PATH, json={"input": "hello", "stream": True, "ignore_eos": True})
    await response.content.readline()
    dispatcher = context_of(client).dispatcher
    assert dispatcher.running == 1
    response.close()
    await until(lambda: dispatcher.running == 0)


# ---- tools -----------------------------------------------------------------------------------------------


async def test_a_custom_tool_is_called_with_its_free_text(make_client):
    client = await make_client({"reply": '<tool>patch {"input": "*** Begin\\nPatch \\u00e9"}</tool>'})
    received = await stream(client, tools=[PATCH])
    (call,) = received[-1]["response"]["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "patch", "*** Begin\nPatch é")
    deltas = [e["delta"] for e in received if e["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == call["input"]


async def test_a_tool_of_a_namespace_is_called_by_its_own_name(make_client):
    client = await make_client({"reply": "<tool>agents__spawn {}</tool>"})
    (call,) = (await whole(client, tools=[AGENTS]))["output"]
    assert (call["namespace"], call["name"]) == ("agents", "spawn")


async def test_tools_that_only_openai_runs_are_left_out(make_client):
    client = await make_client({"reply": "yes"})
    assert (await whole(client, tools=[SEARCH, RUN]))["tools"] == [RUN]
    bare, searching = [(await whole(client, tools=tools))["usage"]["input_tokens"] for tools in ([], [SEARCH])]
    assert bare == searching


async def test_a_tool_choice_that_cannot_be_obeyed_is_refused(make_client):
    client = await make_client({"reply": "yes"})
    for choice in ({"type": "web_search"}, {"type": "function", "name": "walk"}, "sometimes", {"no": "type"}):
        assert (await refused(client, tools=[RUN], tool_choice=choice))["param"] == "tool_choice", choice


async def test_a_required_call_without_a_tool_is_refused(make_client):
    client = await make_client({"reply": "yes"})
    assert (await refused(client, tools=[SEARCH], tool_choice="required"))["param"] == "tool_choice"


# ---- conversations ---------------------------------------------------------------------------------------


async def test_a_response_is_continued_with_what_was_said_in_it(make_client):
    client = await make_client()
    first = await whole(client)
    second = await whole(client, input="and then?", previous_response_id=first["id"])
    said = [{"role": "user", "content": "hello"}, *first["output"], {"role": "user", "content": "and then?"}]
    assert (await whole(client, input=said))["output"][0]["content"] == second["output"][0]["content"]
    assert second["previous_response_id"] == first["id"]
    # All of the first prompt and of its reply.
    known = first["usage"]["input_tokens"] + first["usage"]["output_tokens"]
    assert second["usage"]["input_tokens_details"]["cached_tokens"] >= known - 1


async def test_a_response_that_was_not_to_be_stored_cannot_be_continued(make_client):
    client = await make_client()
    first = await whole(client, store=False)
    error = await refused(client, previous_response_id=first["id"])
    assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_found")


async def test_no_store_of_the_prompt_cache_means_responses_too(make_client):
    client = await make_client()
    response = await client.post(PATH, json={"input": "hello"}, headers={"x-lcpd-cache": "no-store"})
    first = await response.json()
    assert first["store"] is False
    assert (await client.get(f"{PATH}/{first['id']}")).status == 404


async def test_a_stored_response_can_be_fetched_and_forgotten(make_client):
    client = await make_client()
    first = (await stream(client))[-1]["response"]
    fetched = await client.get(f"{PATH}/{first['id']}")
    assert await fetched.json() == first
    deleted = await client.delete(f"{PATH}/{first['id']}")
    assert await deleted.json() == {"id": first["id"], "object": "response", "deleted": True}
    for again in (await client.get(f"{PATH}/{first['id']}"), await client.delete(f"{PATH}/{first['id']}")):
        assert again.status == 404
        assert (await again.json())["error"]["type"] == "invalid_request_error"


async def test_an_item_of_a_stored_response_can_be_referred_to(make_client):
    client = await make_client()
    first = await whole(client)
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    said = [{"role": "user", "content": "hello"}, first["output"][0], {"role": "user", "content": "more"}]
    meant = await whole(client, input=said)
    referred = await whole(client, input=[said[0], reference, said[2]])
    assert referred["usage"]["input_tokens"] == meant["usage"]["input_tokens"]
    error = await refused(client, input=[{"id": "msg_unknown"}])
    assert error["param"] == "input[0].id"


async def test_only_so_many_responses_are_stored(make_client):
    client = await make_client(server__responses=1)
    first = await whole(client)
    await whole(client)
    assert (await client.get(f"{PATH}/{first['id']}")).status == 404


async def test_the_tokens_of_a_prompt_are_counted_without_the_engine(make_client):
    client = await make_client()
    response = await client.post(f"{PATH}/input_tokens", json={"input": "hello", "instructions": "be kind"})
    counted = await response.json()
    assert counted == {"object": "response.input_tokens", "input_tokens": 5 + 7 + 4 + 1}


# ---- errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_prompt_that_is_too_long_is_a_400_in_the_words_that_codex_compacts_on(make_client, streamed):
    client = await make_client(model__ctx=64)
    error = await refused(client, input="x" * 100, stream=streamed)
    assert (error["param"], error["code"]) == ("input", "context_length_exceeded")
    assert "maximum context length is 64 tokens" in error["message"]


async def test_a_stream_that_the_engine_does_not_survive_fails_and_is_not_to_be_tried_again(make_client):
    client = await make_client({"reply": "a long reply", "poison": "hello"}, engine__restart_backoff=0.01)
    last = (await stream(client))[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "invalid_prompt"


NOT_TAKEN = [
    ("background", True),
    ("conversation", "conv_1"),
    ("prompt", {"id": "pmpt_1"}),
    ("include", ["message.output_text.logprobs"]),
    ("top_logprobs", 3),
    ("n", 2),
    ("max_output_tokens", 0),
    ("temperature", -1),
    ("input", [{"type": "hologram"}]),
    ("input", [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]),
    ("tools", [{"type": "function"}]),
    ("text", {"format": {"type": "json_schema", "name": "x"}}),
]


async def test_what_is_not_offered_or_not_sensible_names_its_field(make_client):
    client = await make_client({"reply": "yes"})
    for field, value in NOT_TAKEN:
        assert (await refused(client, **{field: value}))["param"].startswith(field), (field, value)


async def test_what_openai_knows_and_nothing_here_needs_is_taken(make_client):
    client = await make_client({"reply": "yes"})
    response = await whole(
        client,
        metadata={"a": "b"},
        truncation="auto",
        include=["reasoning.encrypted_content"],
        service_tier="auto",
        prompt_cache_key="one",
        safety_identifier="me",
        stream_options={"include_obfuscation": False},
        text={"verbosity": "low"},
        client_metadata={"x": "y"},
    )
    assert (response["metadata"], response["prompt_cache_key"], response["truncation"]) == (
        {"a": "b"},
        "one",
        "disabled",
    )
