"""A tool call whose arguments are no JSON: no dialect ends in an error, and arguments are strings everywhere."""

from __future__ import annotations

import json

import pytest

from fakes.api import chat_body
from lcpd.api.responses.freeform import Freeform

BROKEN = '{"path": "a'
DEEP = '{"path": ' + "[" * 1500
"""What a model in a loop writes: nested deeper than Python reads."""
REPLY = {"reply": f"I look.<tool>read_file {BROKEN}</tool>"}
LOOP = {"reply": f"I look.<tool>read_file {DEEP}</tool>"}
TOOL = {"name": "read_file", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}
BODIES = {
    "chat": ("/v1/chat/completions", chat_body("hello", tools=[{"type": "function", "function": TOOL}])),
    "messages": ("/v1/messages", chat_body("hello", max_tokens=99, tools=[{"name": "read_file", "input_schema": {}}])),
    "responses": ("/v1/responses", {"input": "hello", "tools": [{"type": "function", **TOOL}]}),
}


async def whole(client, dialect: str) -> dict:
    path, body = BODIES[dialect]
    response = await client.post(path, json=body)
    assert response.status == 200
    return await response.json()


async def streamed(client, dialect: str) -> list[dict]:
    path, body = BODIES[dialect]
    text = await (await client.post(path, json={**body, "stream": True})).text()
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def test_in_chats_the_arguments_are_what_the_model_wrote(make_client) -> None:
    client = await make_client(REPLY)
    (choice,) = (await whole(client, "chat"))["choices"]
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "read_file", "arguments": BROKEN}
    *_, last = await streamed(client, "chat")
    assert choice["finish_reason"] == last["choices"][0]["finish_reason"] == "tool_calls"


async def test_in_messages_a_whole_reply_shows_the_call_as_text_and_a_stream_ends_as_any_other(make_client) -> None:
    client = await make_client(REPLY)
    message = await whole(client, "messages")
    assert [block["type"] for block in message["content"]] == ["text", "text"]
    assert message["content"][1]["text"] == f"read_file({BROKEN})"
    assert message["stop_reason"] == "end_turn"
    events = await streamed(client, "messages")
    assert [event["type"] for event in events[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    parts = [event["delta"].get("partial_json", "") for event in events if event["type"] == "content_block_delta"]
    assert "".join(parts) == BROKEN


async def test_in_responses_the_arguments_are_a_string_and_the_response_is_complete(make_client) -> None:
    client = await make_client(REPLY)
    for response in (await whole(client, "responses"), (await streamed(client, "responses"))[-1]["response"]):
        assert response["status"] == "completed"
        assert [item.get("arguments") for item in response["output"] if item["type"] == "function_call"] == [BROKEN]


async def test_a_call_that_is_nested_too_deep_to_be_read_is_as_any_other_that_is_no_json(make_client) -> None:
    client = await make_client(LOOP)
    path, body = BODIES["messages"]
    message = await (await client.post(path, json={**body, "max_tokens": 2000})).json()
    assert message["content"][1] == {"type": "text", "text": f"read_file({DEEP})"}
    assert message["stop_reason"] == "end_turn"
    (choice,) = (await whole(client, "chat"))["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == DEEP


def test_free_text_that_is_nested_too_deep_to_be_read_is_the_text_as_it_is() -> None:
    freeform = Freeform()
    assert freeform.push(DEEP) == ""
    assert freeform.finish() == (DEEP, DEEP)


@pytest.mark.parametrize("arguments", [BROKEN, DEEP])
async def test_a_conversation_with_such_a_call_in_it_goes_on(make_client, arguments) -> None:
    client = await make_client()
    path, body = BODIES["chat"]
    call = {"id": "call_0", "type": "function", "function": {"name": "read_file", "arguments": arguments}}
    history = [
        *body["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0", "content": "What?"},
    ]
    response = await client.post(path, json={**body, "messages": history})
    assert response.status == 200


async def test_a_reply_that_is_cut_off_in_a_call_says_so(make_client) -> None:
    client = await make_client(REPLY)
    path, body = BODIES["chat"]
    answer = await (await client.post(path, json={**body, "max_tokens": 20})).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["message"]["content"].startswith("I look.")
