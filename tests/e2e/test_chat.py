"""Chatting with a real daemon through the official SDKs."""

from __future__ import annotations

import json

import anthropic
import httpx
import openai
import pytest

from support import READ_FILE

pytestmark = pytest.mark.native


@pytest.fixture
def client(daemon):
    return openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture
def claude(daemon):
    return anthropic.Anthropic(base_url=daemon.url, api_key="none", max_retries=0, timeout=120)


def ask(client, text="Read the file src/cache.py", **fields):
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model="demo:hybrid", messages=messages, temperature=0, **fields)


# ---- OpenAI ----------------------------------------------------------------------------------------------


def test_a_tool_call_comes_back_with_its_arguments_as_a_json_string(client):
    choice = ask(client, tools=[READ_FILE]).choices[0]
    assert choice.finish_reason == "tool_calls"
    call = choice.message.tool_calls[0]
    assert call.function.name == "read_file"
    assert json.loads(call.function.arguments) == {"path": "src/cache.py"}
    assert choice.message.reasoning_content


def test_a_stream_says_the_same_as_the_whole_reply(client):
    whole = ask(client, tools=[READ_FILE])
    reasoning, names, arguments, finish, usage = "", "", "", None, None
    for chunk in ask(client, tools=[READ_FILE], stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            for call in choice.delta.tool_calls or []:
                names += call.function.name or ""
                arguments += call.function.arguments or ""
            finish = choice.finish_reason or finish
    message = whole.choices[0].message
    assert reasoning == message.reasoning_content
    assert (names, arguments) == (message.tool_calls[0].function.name, message.tool_calls[0].function.arguments)
    assert finish == "tool_calls"
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)


def test_usage_counts_add_up_and_name_what_was_cached(client):
    first = ask(client, "Read the file src/unique_name.py", max_tokens=5).usage
    again = ask(client, "Read the file src/unique_name.py", max_tokens=5).usage
    assert again.prompt_tokens == first.prompt_tokens
    assert again.total_tokens == again.prompt_tokens + again.completion_tokens
    assert 0 < again.prompt_tokens_details.cached_tokens < again.prompt_tokens


def test_max_tokens_ends_a_reply_with_length(client):
    reply = ask(client, max_tokens=3)
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 3


def test_a_request_for_more_tokens_than_fit_is_clamped_not_refused(client):
    assert ask(client, max_tokens=10_000_000).choices[0].finish_reason == "stop"


def test_a_prompt_of_28673_tokens_with_4096_for_the_reply_is_answered(client, daemon):
    assert daemon.health()["engine"]["n_ctx"] == 32_768
    prompt = [300 + number % 97 for number in range(28_673)]
    reply = client.completions.create(
        model="demo:hybrid", prompt=prompt, max_tokens=4096, temperature=0, stop=["e", "a"]
    )
    assert (reply.usage.prompt_tokens, reply.choices[0].finish_reason) == (28_673, "stop")


def test_several_prompts_are_answered_as_each_of_them_alone(client):
    prompts = ["Read the file", [541, 4035, 4053], "def f(x):"]
    fields = {"model": "demo:hybrid", "max_tokens": 8, "temperature": 0}
    alone = [client.completions.create(prompt=prompt, **fields) for prompt in prompts]
    together = client.completions.create(prompt=prompts, **fields)
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    assert [choice.text for choice in together.choices] == [reply.choices[0].text for reply in alone]
    assert together.usage.prompt_tokens == sum(reply.usage.prompt_tokens for reply in alone)
    assert together.usage.completion_tokens == 24
    streamed = ["", "", ""]
    for chunk in client.completions.create(prompt=prompts, stream=True, **fields):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == [choice.text for choice in together.choices]


def test_a_stop_string_is_not_part_of_the_reply(client):
    whole = ask(client).choices[0].message.reasoning_content
    cut = ask(client, stop=[whole[10:16]]).choices[0]
    assert cut.message.reasoning_content == whole[: whole.index(whole[10:16])]
    assert cut.finish_reason == "stop"


def test_a_reply_that_is_stopped_at_its_first_letter_is_an_empty_message(client):
    message = ask(client, stop=["T"]).choices[0].message
    assert (message.role, message.content, message.tool_calls) == ("assistant", "", None)


def test_structured_output_obeys_its_schema(client):
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    reply = ask(
        client,
        max_tokens=200,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    if reply.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(reply.choices[0].message.content)["n"], int)
    else:  # the tiny model may count for ever, but inside of the schema
        assert reply.choices[0].message.content.lstrip().startswith("{")


def test_text_completions_stream_and_add_up(client):
    fields = {"model": "demo:hybrid", "prompt": "Read the file", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**fields)
    parts = [chunk.choices[0].text for chunk in client.completions.create(**fields, stream=True)]
    assert "".join(parts) == whole.choices[0].text
    assert whole.usage.completion_tokens == 12


def test_a_prompt_of_token_ids_is_the_same_as_its_text(daemon):
    tokens = [541, 4035, 4053]  # "Read the file" in the hybrid's vocabulary
    replies = [
        httpx.post(
            f"{daemon.url}/v1/completions", json={"prompt": p, "max_tokens": 8, "temperature": 0}, timeout=60
        ).json()
        for p in ("Read the file", tokens)
    ]
    assert replies[0]["choices"][0]["text"] == replies[1]["choices"][0]["text"]


def test_the_models_list_tells_the_true_context(client, daemon):
    model = client.models.list().data[0]
    n_ctx = daemon.health()["engine"]["n_ctx"]
    assert model.id == "demo:hybrid"
    assert model.context_length == model.max_model_len == model.meta["n_ctx"] == n_ctx
    assert client.models.retrieve("demo:hybrid").id == model.id


def test_a_prompt_longer_than_the_context_gets_the_error_that_makes_clients_compact(client):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "word " * 40_000)
    body = caught.value.body
    assert body["code"] == "context_length_exceeded"
    assert body["param"] == "messages"
    assert "maximum context length is 32768 tokens" in body["message"]


def test_sixteen_conversations_at_once_all_get_their_own_answer(daemon):
    import concurrent.futures

    names = [f"src/file{i}.py" for i in range(16)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        replies = list(
            pool.map(lambda n: daemon.chat(f"Read the file {n}", tools=[READ_FILE], max_tokens=80).json(), names)
        )
    for name, reply in zip(names, replies, strict=True):
        arguments = reply["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
        assert json.loads(arguments)["path"] == name


# ---- Anthropic -------------------------------------------------------------------------------------------

GREEDY = {"temperature": 0}
TOOL = {
    "name": "read_file",
    "description": "Read a file",
    "input_schema": READ_FILE["function"]["parameters"],
}


def test_an_anthropic_message_has_thinking_and_tool_use_blocks(claude):
    messages = [{"role": "user", "content": "Read the file src/cache.py"}]
    reply = claude.messages.create(
        model="demo:hybrid", max_tokens=200, messages=messages, tools=[TOOL], extra_body=GREEDY
    )
    assert [block.type for block in reply.content] == ["thinking", "tool_use"]
    assert reply.content[1].input == {"path": "src/cache.py"}
    assert reply.stop_reason == "tool_use"


def test_an_anthropic_stream_says_the_same_and_tells_the_usage_at_both_ends(claude):
    fields = {
        "model": "demo:hybrid",
        "max_tokens": 200,
        "messages": [{"role": "user", "content": "Read the file src/cache.py"}],
        "tools": [TOOL],
        "extra_body": GREEDY,
    }
    whole = claude.messages.create(**fields)
    with claude.messages.stream(**fields) as stream:
        start = next(event for event in stream if event.type == "message_start")
        streamed = stream.get_final_message()
    assert [b.type for b in streamed.content] == [b.type for b in whole.content]
    assert streamed.content[0].thinking == whole.content[0].thinking
    assert streamed.content[1].input == whole.content[1].input
    assert start.message.usage.input_tokens + start.message.usage.cache_read_input_tokens == (
        whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    )
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_a_tool_result_leads_to_an_answer_in_text(claude):
    messages = [{"role": "user", "content": "Read the file src/cache.py"}]
    fields = {"model": "demo:hybrid", "max_tokens": 200, "tools": [TOOL], "extra_body": GREEDY}
    call = claude.messages.create(messages=messages, **fields)
    result = {"type": "tool_result", "tool_use_id": call.content[1].id, "content": "def get(key):\n    return 1\n"}
    messages += [
        {"role": "assistant", "content": [b.model_dump() for b in call.content]},
        {"role": "user", "content": [result]},
    ]
    reply = claude.messages.create(messages=messages, **fields)
    assert reply.stop_reason == "end_turn"
    assert "src/cache.py" in reply.content[-1].text


def test_counting_tokens_agrees_with_what_a_message_uses(claude):
    messages = [{"role": "user", "content": "Read the file src/cache.py"}]
    counted = claude.messages.count_tokens(model="demo:hybrid", messages=messages, tools=[TOOL])
    usage = claude.messages.create(model="demo:hybrid", max_tokens=5, messages=messages, tools=[TOOL]).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_a_too_long_anthropic_prompt_gets_the_words_claude_code_looks_for(claude):
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.messages.create(
            model="demo:hybrid", max_tokens=5, messages=[{"role": "user", "content": "word " * 40_000}]
        )
    error = caught.value.body["error"]
    assert error["type"] == "invalid_request_error"
    assert "prompt is too long: " in error["message"]
    assert "> 32768 maximum" in error["message"]
