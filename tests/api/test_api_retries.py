"""A client whose time-out strikes sends its request again."""

from __future__ import annotations

import asyncio

import pytest

from fakes.api import chat_body, context_of, until

REPLY = "a reply that takes longer than its client waits"
SLOW = {"reply": REPLY, "decode_seconds": 0.01}
DIALECTS = {
    "chat": ("/v1/chat/completions", chat_body("hello"), lambda one: one["choices"][0]["message"]["content"]),
    "completions": ("/v1/completions", {"prompt": "hello"}, lambda one: one["choices"][0]["text"]),
    "messages": ("/v1/messages", chat_body("hello", max_tokens=99), lambda one: one["content"][0]["text"]),
    "responses": ("/v1/responses", {"input": "hello"}, lambda one: one["output"][0]["content"][0]["text"]),
}


def generated(client) -> float:
    return context_of(client).metrics.registry.get_sample_value("lcpd_generation_tokens_total") or 0.0


@pytest.mark.parametrize(
    ("dialect", "stream"), [("chat", False), ("completions", True), ("messages", True), ("responses", False)]
)
async def test_the_retry_gets_the_whole_reply_and_no_token_of_it_is_generated_twice(
    make_client, dialect: str, stream: bool
) -> None:
    client = await make_client(SLOW)
    path, body, text_of = DIALECTS[dialect]
    body = {**body, "temperature": 0} if stream else body
    first = asyncio.create_task(client.post(path, json={**body, "stream": stream}))
    await until(lambda: generated(client) > 5)
    if stream:
        (await first).close()
    else:
        first.cancel()
    answer = await (await client.post(path, json=body)).json()
    assert text_of(answer) == REPLY
    assert generated(client) == len(REPLY) + 1, "and the token that ends it"


@pytest.mark.parametrize("dialect", ["chat", "responses"])
async def test_who_stops_a_random_stream_and_asks_again_gets_another_reply(make_client, dialect: str) -> None:
    client = await make_client(SLOW)
    path, body, text_of = DIALECTS[dialect]
    first = await client.post(path, json={**body, "stream": True})
    await until(lambda: generated(client) > 5)
    first.close()
    answer = await (await client.post(path, json=body)).json()
    assert text_of(answer) == REPLY
    assert generated(client) > len(REPLY) + 1


async def test_without_a_grace_the_reply_begins_anew(make_client) -> None:
    client = await make_client(SLOW, scheduler__retry_grace=0)
    path, body, text_of = DIALECTS["chat"]
    first = asyncio.create_task(client.post(path, json=body))
    await until(lambda: generated(client) > 5)
    first.cancel()
    answer = await (await client.post(path, json=body)).json()
    assert text_of(answer) == REPLY
    assert generated(client) > len(REPLY) + 1
