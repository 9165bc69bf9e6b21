"""Tokens of texts and back, the prompt of a chat, and the properties, in llama-server's shapes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import vocab
from fakes.api import chat_body, context_of
from fakes.chat import refuse
from lcpd.api.limits import limits_of


async def post(client, path, body, status=200):
    response = await client.post(path, json=body)
    answer = await response.json()
    assert response.status == status, answer
    return answer


async def test_a_text_becomes_tokens_and_tokens_become_the_text(make_client):
    client = await make_client()
    tokens = (await post(client, "/tokenize", {"content": "grün 😀"}))["tokens"]
    assert tokens == vocab.encode("grün 😀")
    assert await post(client, "/detokenize", {"tokens": tokens}) == {"content": "grün 😀"}


async def test_texts_and_tokens_can_be_mixed(make_client):
    client = await make_client()
    answer = await post(client, "/tokenize", {"content": ["a", 7, "b"]})
    assert answer == {"tokens": [97, 7, 98]}
    assert await post(client, "/tokenize", {"content": []}) == {"tokens": []}


async def test_pieces_are_texts_or_the_bytes_of_part_of_a_character(make_client):
    client = await make_client()
    answer = await post(client, "/tokenize", {"content": "aé", "with_pieces": True})
    assert answer["tokens"] == [
        {"id": 97, "piece": "a"},
        {"id": 0xC3, "piece": [0xC3]},
        {"id": 0xA9, "piece": [0xA9]},
    ]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": [-1]}, "content[0]"),
        ("/tokenize", {"content": [10**6], "with_pieces": True}, "content"),
        ("/tokenize", {"content": "x", "with_pieces": "yes"}, "with_pieces"),
        ("/tokenize", {"content": refuse("no such text")}, "content"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": [{"role": "user", "content": refuse("no")}]}, "messages"),
    ],
)
async def test_what_is_wrong_is_named(make_client, path, body, param):
    client = await make_client()
    assert (await post(client, path, body, 400))["error"]["param"] == param


async def test_the_prompt_of_a_chat_is_told_as_text(make_client):
    client = await make_client()
    tool = {"type": "function", "function": {"name": "read"}}
    answer = await post(client, "/apply-template", chat_body("hello", tools=[tool], model="alias"))
    assert answer["prompt"].endswith("hello")
    assert '"read"' in answer["prompt"]


async def test_the_prompt_of_another_model_is_not_told(make_client):
    client = await make_client()
    answer = await post(client, "/apply-template", chat_body("hello", model="gpt-4"), 404)
    assert answer["error"]["code"] == "model_not_found"


async def test_the_properties_tell_the_context_that_one_request_has(make_client):
    client = await make_client(model__ctx=2048)
    answer = await (await client.get("/props")).json()
    assert answer["default_generation_settings"]["n_ctx"] == 2048
    assert answer["total_slots"] == 2
    assert (answer["model_alias"], answer["chat_template"]) == ("fake", "fake")
    assert answer["modalities"] == {"vision": False, "video": False, "audio": False}
    assert answer["is_sleeping"] is False


async def test_the_properties_come_with_the_model(make_client):
    client = await make_client({"load_seconds": 30}, wait=False)
    response = await client.get("/props")
    assert response.status == 503
    assert "Retry-After" in response.headers


async def test_the_properties_cannot_be_changed(make_client):
    client = await make_client()
    response = await client.post("/props", json={"n_ctx": 1})
    assert (response.status, response.headers["Allow"]) == (405, "GET")
    assert "lcpd.toml" in (await response.json())["error"]["message"]


async def test_models_tell_what_a_client_should_count_on(make_client):
    client = await make_client(model__ctx=65536)
    (model,) = (await (await client.get("/v1/models")).json())["data"]
    assert model["context_length"] == model["max_model_len"] == model["meta"]["n_ctx"] == 65536
    assert model["limits"] == {"context": 65536, "safe_context": 62260, "output": 8192}


@given(st.integers(1, 2**24))
def test_the_limits_fit_into_the_context(context):
    limits = limits_of(context)
    assert 1 <= limits.output <= 8192
    assert 0.95 * context <= limits.safe_context <= context
    if context >= 4:
        assert limits.output <= context / 4


async def test_no_prompt_is_ever_logged(make_client, caplog):
    """At no level, neither of a good request nor of one that is refused or fails."""
    caplog.set_level("DEBUG")
    client = await make_client()
    secret = "correct horse battery staple"
    for path, body in [
        ("/v1/chat/completions", chat_body(secret, "yes", secret, max_tokens=3)),
        ("/v1/chat/completions", chat_body(secret, stream=True, max_tokens=3)),
        ("/v1/chat/completions", chat_body(refuse(secret))),
        ("/v1/chat/completions", chat_body(secret, temperature=secret)),
        ("/v1/completions", {"prompt": secret, "max_tokens": 3}),
        ("/v1/messages", {**chat_body(secret), "max_tokens": 3}),
        ("/v1/messages/count_tokens", chat_body(secret)),
        ("/tokenize", {"content": secret}),
        ("/apply-template", chat_body(secret)),
        (f"/nowhere?prompt={secret}", {}),
    ]:
        response = await client.post(path, data=json.dumps(body), headers={"Content-Type": "application/json"})
        await response.read()
    # The daemon has no aiohttp.access: lcpd.access says the same without what follows a path.
    records = [record for record in caplog.records if record.name != "aiohttp.access"]
    logged = "\n".join(record.getMessage() + str(record.exc_info) for record in records)
    assert "/v1/chat/completions" in logged
    assert not [word for word in secret.split() if word in logged]
    assert context_of(client).dispatcher.running == 0
