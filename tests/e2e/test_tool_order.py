"""The same tools in another order: the prompt of the first request is reused, and calls still name the right tool."""

from __future__ import annotations

import json

import anthropic
import httpx
import openai
import pytest

from support import READ_FILE

pytestmark = pytest.mark.native
QUESTION = [{"role": "user", "content": "Read the file src/cache.py"}]


def tool(name: str, words: str) -> dict:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}, "why": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "description": words * 20, "parameters": parameters}}


TOOLS = [tool("list_folder", "List a folder. "), READ_FILE, tool("delete_file", "Delete a file. ")]


def with_keys_backwards(value):
    if isinstance(value, dict):
        return {key: with_keys_backwards(value[key]) for key in reversed(value)}
    return [with_keys_backwards(inner) for inner in value] if isinstance(value, list) else value


def ask(daemon, tools: list, **fields) -> tuple[dict, str]:
    body = {"messages": QUESTION, "tools": tools, "temperature": 0, "max_tokens": 200, **fields}
    response = httpx.post(f"{daemon.url}/v1/chat/completions", json=body, timeout=120)
    return response.json(), response.headers["x-lcpd-cache"]


def test_a_second_session_reuses_the_head_whatever_order_its_tools_come_in(daemon):
    first, _ = ask(daemon, TOOLS)
    for mixed, rules in (
        (TOOLS[::-1], "tool-order"),
        (with_keys_backwards(TOOLS), "tool-keys"),
        (with_keys_backwards(TOOLS[::-1]), "tool-order,tool-keys"),
    ):
        again, report = ask(daemon, mixed)
        usage = again["usage"]
        assert usage["prompt_tokens"] == first["usage"]["prompt_tokens"]
        # All but the beginning of the reply, in front of which the hybrid's checkpoint lies.
        assert usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] < 12
        assert report.endswith(f'normalised="{rules}"')
        (call,) = again["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "read_file"
        assert json.loads(call["function"]["arguments"]) == {"path": "src/cache.py"}


def test_without_the_setting_the_prompt_parts_in_the_first_tool(start_daemon):
    daemon = start_daemon(LCPD_CACHE__STABLE_TOOLS="false")
    ask(daemon, TOOLS)
    again, report = ask(daemon, TOOLS[::-1])
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] < again["usage"]["prompt_tokens"] / 2
    assert "normalised" not in report


def test_a_named_tool_is_called_in_any_order(daemon):
    client = openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0, timeout=120)
    choice = {"type": "function", "function": {"name": "read_file"}}
    for tools in (TOOLS, TOOLS[::-1]):
        reply = client.chat.completions.create(
            model="demo:hybrid", messages=QUESTION, tools=tools, tool_choice=choice, temperature=0, max_tokens=200
        )
        assert [call.function.name for call in reply.choices[0].message.tool_calls] == ["read_file"]


def test_messages_and_chats_share_the_order(daemon):
    ask(daemon, TOOLS)
    flat = [tool["function"] for tool in TOOLS[::-1]]
    blocks = [{"name": t["name"], "description": t["description"], "input_schema": t["parameters"]} for t in flat]
    claude = anthropic.Anthropic(base_url=daemon.url, api_key="none", max_retries=0, timeout=120)
    reply = claude.messages.create(
        model="demo:hybrid", messages=QUESTION, tools=blocks, max_tokens=200, extra_body={"temperature": 0}
    )
    assert [block.name for block in reply.content if block.type == "tool_use"] == ["read_file"]
    assert reply.usage.input_tokens < 12
