"""Sleeping and waking over HTTP, with the fake worker."""

from __future__ import annotations

import asyncio

from fakes.api import ADMIN_KEY, chat_body, context_of, until
from lcpd.engine.supervisor import State

CHAT = "/v1/chat/completions"
ADMIN = {"Authorization": f"Bearer {ADMIN_KEY}"}


async def sleep(client):
    response = await client.post("/sleep", headers=ADMIN)
    return response.status, await response.json()


async def test_sleep_stops_the_worker_and_health_says_so_with_200(make_client):
    client = await make_client()
    assert await sleep(client) == (200, {"asleep": True})
    assert context_of(client).supervisor.pid is None
    health = await client.get("/health")
    assert (health.status, (await health.json())["status"]) == (200, "sleeping")
    assert 'lcpd_engine_state{state="sleeping"} 1.0' in await (await client.get("/metrics")).text()
    assert await sleep(client) == (200, {"asleep": True})


async def test_the_next_request_wakes_the_engine_and_resumes_from_ram(make_client):
    client = await make_client()
    body = chat_body("hello, this is quite a long question, isn't it?")
    first = await (await client.post(CHAT, json=body)).json()
    await sleep(client)
    answer = await (await client.post(CHAT, json=body)).json()
    assert answer["choices"][0]["message"] == first["choices"][0]["message"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == answer["usage"]["prompt_tokens"] - 1
    assert 'lcpd_engine_state{state="sleeping"} 0.0' in await (await client.get("/metrics")).text()
    assert context_of(client).supervisor.restarts == 0


async def test_requests_that_run_finish_first(make_client):
    client = await make_client({"decode_seconds": 0.02})
    running = asyncio.create_task(client.post(CHAT, json=chat_body("hello")))
    await until(lambda: context_of(client).dispatcher.running == 1)
    assert await sleep(client) == (200, {"asleep": True})
    assert (await running).status == 200


async def test_texts_that_are_being_embedded_finish_first_and_do_not_keep_it_awake(make_client):
    client = await make_client({"embed_seconds": 0.02})
    running = asyncio.create_task(client.post("/v1/embeddings", json={"input": ["one", "two", "three"] * 3}))
    await until(lambda: context_of(client).embeddings.running == 1)
    assert await sleep(client) == (200, {"asleep": True})
    assert (await running).status == 200


async def test_a_request_that_comes_meanwhile_keeps_it_awake(make_client):
    client = await make_client({"decode_seconds": 0.02})
    running = asyncio.create_task(client.post(CHAT, json=chat_body("hello")))
    await until(lambda: context_of(client).dispatcher.running == 1)
    sleeping = asyncio.create_task(sleep(client))
    await asyncio.sleep(0.05)
    other = asyncio.create_task(client.post(CHAT, json=chat_body("another")))
    assert await sleeping == (200, {"asleep": False})
    assert [(await running).status, (await other).status] == [200, 200]


async def test_it_can_be_woken_without_a_request(make_client):
    client = await make_client()
    await sleep(client)
    assert (await client.post("/wake", headers=ADMIN)).status == 200
    await until(lambda: context_of(client).supervisor.state is State.READY)


async def test_without_a_request_it_falls_asleep_by_itself(make_client):
    client = await make_client(engine__sleep_after=0.1)
    await until(lambda: context_of(client).supervisor.state is State.SLEEPING)


async def test_only_an_admin_may_put_it_to_sleep(make_client):
    client = await make_client()
    assert (await client.post("/sleep")).status == 403
    assert (await client.post("/wake")).status == 403


async def test_an_engine_that_has_failed_cannot_be_put_to_sleep(make_client):
    client = await make_client({"load_failure": "no such file"})
    status, body = await sleep(client)
    assert (status, body["error"]["code"]) == (409, "cannot_sleep")
