"""The Responses API of a real daemon through the official SDK."""

from __future__ import annotations

import json
from typing import get_args

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent

from support import READ_FILE

pytestmark = pytest.mark.native
TOOL = {"type": "function", **READ_FILE["function"]}
CUSTOM = {"type": "custom", "name": "read_file", "description": "Read a file"}
FILES = {"type": "namespace", "name": "files", "description": "Files", "tools": [TOOL]}
ASK = "Read the file src/cache.py"


@pytest.fixture
def client(daemon):
    return openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0, timeout=120)


def create(client, **fields):
    return client.responses.create(**{"model": "demo:hybrid", "input": ASK, "temperature": 0, **fields})


def calls(response):
    return [item for item in response.output if item.type in ("function_call", "custom_tool_call")]


def test_a_call_comes_with_reasoning_before_it(client):
    response = create(client, tools=[TOOL])
    assert response.status == "completed"
    assert response.output[0].type == "reasoning"
    (call,) = calls(response)
    assert (call.name, json.loads(call.arguments)) == ("read_file", {"path": "src/cache.py"})


def test_a_stream_ends_in_what_the_whole_reply_says(client):
    whole = create(client, tools=[TOOL])
    events = list(create(client, tools=[TOOL], stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    completed = events[-1].response
    assert completed.usage.output_tokens == whole.usage.output_tokens
    assert [item.type for item in completed.output] == [item.type for item in whole.output]
    assert calls(completed)[0].arguments == calls(whole)[0].arguments
    thoughts = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    assert thoughts == whole.output[0].content[0].text


def test_the_sdks_own_stream_puts_it_together_again(client):
    with client.responses.stream(model="demo:hybrid", input=ASK, temperature=0, tools=[TOOL]) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert calls(final)[0].arguments == calls(create(client, tools=[TOOL]))[0].arguments


def test_a_tool_loop_by_previous_response_id_reuses_all_that_was_computed(client):
    first = create(client, tools=[TOOL], instructions="You are careful.")
    result = {"type": "function_call_output", "call_id": calls(first)[0].call_id, "output": "class PrefixCache: pass"}
    second = create(
        client, input=[result], tools=[TOOL], instructions="You are careful.", previous_response_id=first.id
    )
    assert second.output_text
    known = first.usage.input_tokens + first.usage.output_tokens
    assert second.usage.input_tokens_details.cached_tokens >= known - 1
    # The same conversation without the server's memory.
    said = [{"role": "user", "content": ASK}, *(item.model_dump() for item in first.output), result]
    again = create(client, input=said, tools=[TOOL], instructions="You are careful.", store=False)
    assert again.usage.input_tokens == second.usage.input_tokens
    assert again.output_text == second.output_text


def test_a_tool_of_a_namespace_comes_back_in_two_parts(client):
    response = create(client, tools=[FILES], tool_choice="required", max_output_tokens=300)
    (call,) = calls(response)
    assert (call.namespace, call.name) == ("files", "read_file")


def test_a_custom_tools_input_is_text(client):
    choice = {"type": "custom", "name": "read_file"}
    events = list(create(client, tools=[CUSTOM], tool_choice=choice, max_output_tokens=300, stream=True))
    (call,) = calls(events[-1].response)
    assert call.type == "custom_tool_call"
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == call.input


def test_structured_output_obeys_its_schema(client):
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    response = create(client, text={"format": form}, reasoning={"effort": "none"}, max_output_tokens=200)
    assert isinstance(json.loads(response.output_text)["ok"], bool)


def test_a_schema_that_cannot_be_obeyed_names_its_keyword(client):
    form = {"type": "json_schema", "name": "x", "schema": {"type": "object", "minProperties": 1}}
    with pytest.raises(openai.BadRequestError, match="minProperties") as raised:
        create(client, text={"format": form})
    assert raised.value.param == "text.format"


def test_no_effort_means_no_reasoning(client):
    response = create(client, reasoning={"effort": "none"}, max_output_tokens=20)
    assert "reasoning" not in [item.type for item in response.output]


def test_a_reply_that_is_cut_off_says_so(client):
    response = create(client, max_output_tokens=3)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.usage.output_tokens == 3


def test_stored_responses_are_fetched_and_deleted(client):
    response = create(client, max_output_tokens=3)
    assert client.responses.retrieve(response.id).id == response.id
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError) as raised:
        create(client, previous_response_id=response.id)
    assert raised.value.code == "previous_response_not_found"


def test_input_tokens_are_what_the_response_says_they_were(client):
    counted = client.responses.input_tokens.count(model="demo:hybrid", input=ASK, tools=[TOOL])
    assert counted.input_tokens == create(client, tools=[TOOL], max_output_tokens=3).usage.input_tokens


@pytest.mark.parametrize("streamed", [True, False])
def test_a_prompt_that_does_not_fit_is_refused_before_the_headers(client, streamed):
    with pytest.raises(openai.BadRequestError) as raised:
        create(client, input="word " * 40_000, stream=streamed)
    assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "input")


EVENTS = {
    get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(ResponseStreamEvent)[0])
}


def test_all_that_is_sent_is_what_the_sdk_declares(daemon):
    body = {"input": ASK, "tools": [TOOL, FILES], "temperature": 0, "reasoning": {"summary": "auto"}, "stream": True}
    for fields in (body, {**body, "reasoning": None, "tools": [CUSTOM], "tool_choice": "required"}):
        reply = httpx.post(f"{daemon.url}/v1/responses", json={**fields, "max_output_tokens": 300}, timeout=120)
        lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
        assert len(lines) > 8
        for line in lines:
            EVENTS[json.loads(line)["type"]].model_validate_json(line)
        whole = httpx.post(f"{daemon.url}/v1/responses", json={**fields, "stream": False}, timeout=120)
        Response.model_validate_json(whole.content)
