"""Requests and replies in each dialect, waiting, refusing, and telling what was reused."""

from __future__ import annotations

import asyncio

import pytest

from fakes.api import chat_body, context_of, until, use_keys
from fakes.chat import DIE, HANG, refuse

CHAT = "/v1/chat/completions"


async def post(client, path, body):
    response = await client.post(path, json=body)
    return response.status, await response.json()


async def test_a_chat_reply_has_usage_and_timings(make_client):
    client = await make_client({"reply": "fine"})
    status, body = await post(client, CHAT, chat_body("hello"))
    assert status == 200
    assert body["choices"][0]["message"]["content"] == "fine"
    assert body["usage"]["completion_tokens"] == 5  # four bytes and the end of the reply
    assert body["timings"]["prompt_n"] == body["usage"]["prompt_tokens"]


async def test_the_second_turn_tells_how_much_was_cached(make_client):
    client = await make_client({"reply": "fine"})
    _, first = await post(client, CHAT, chat_body("hello"))
    _, second = await post(client, CHAT, chat_body("hello", "fine", "and now?"))
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"]


@pytest.mark.parametrize(("text", "reason"), [("done", "stop"), ("<tool>f {}</tool>", "tool_calls")])
async def test_finish_reasons(make_client, text, reason):
    client = await make_client({"reply": text})
    _, body = await post(client, CHAT, chat_body("x"))
    assert body["choices"][0]["finish_reason"] == reason
    _, cut = await post(client, CHAT, chat_body("x", max_tokens=2))
    assert cut["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("text", "fields", "reason"),
    [
        ("done", {}, "end_turn"),
        ("<tool>f {}</tool>", {}, "tool_use"),
        ("done", {"max_tokens": 2}, "max_tokens"),
        ("done", {"stop_sequences": ["n"]}, "stop_sequence"),
    ],
)
async def test_stop_reasons(make_client, text, fields, reason):
    client = await make_client({"reply": text})
    _, body = await post(client, "/v1/messages", chat_body("x", **fields))
    assert body["stop_reason"] == reason
    assert body["stop_sequence"] == ("n" if reason == "stop_sequence" else None)


async def test_requests_wait_while_the_model_is_loading(make_client):
    client = await make_client({"load_seconds": 0.5, "reply": "here"}, wait=False)
    health = await client.get("/health")
    assert health.status == 503
    assert (await health.json())["status"] == "loading"
    status, body = await post(client, CHAT, chat_body("x"))
    assert (status, body["choices"][0]["message"]["content"]) == (200, "here")
    assert (await client.get("/health")).status == 200


async def test_a_model_that_cannot_be_loaded_is_said_so_by_health_and_to_every_request(make_client):
    client = await make_client({"load_failure": "no such architecture"})
    health = await (await client.get("/health")).json()
    assert (health["status"], health["reason"]) == ("failed", "no such architecture")
    status, body = await post(client, CHAT, chat_body("x"))
    assert (status, body["error"]["message"]) == (503, "no such architecture")


async def test_a_full_queue_answers_429_and_when_to_come_again(make_client):
    client = await make_client({"decode_seconds": 0.1}, model__slots=1, server__queue_size=1)
    body = chat_body("x", stream=True, ignore_eos=True)
    streams = [await client.post(CHAT, json=body) for _ in range(2)]
    response = await client.post(CHAT, json=body)
    assert response.status == 429
    assert int(response.headers["Retry-After"]) > 0
    assert (await response.json())["error"]["code"] == "queue_full"
    for stream in streams:
        stream.close()


async def test_a_request_that_kills_the_chat_process_gets_a_400_and_the_next_one_a_reply(make_client):
    client = await make_client({"reply": "fine"})
    status, body = await post(client, CHAT, chat_body(f"bad {DIE}"))
    assert (status, body["error"]["param"]) == (400, "messages")
    status, _ = await post(client, CHAT, chat_body("good"))
    assert status == 200
    assert context_of(client).metrics.registry.get_sample_value("lcpd_chat_restarts_total") == 2


async def test_what_the_chat_process_refuses_is_a_400_that_names_the_field(make_client):
    client = await make_client()
    status, body = await post(client, CHAT, chat_body(refuse("Failed to parse tools: no name"), tools=[]))
    assert (status, body["error"]["param"]) == (400, "tools")
    assert body["error"]["message"] == "Failed to parse tools: no name"


async def test_a_prompt_that_exactly_fills_the_context_is_too_long_and_one_less_is_not(make_client):
    client = await make_client({"reply": "x"}, model__ctx=64)
    status, body = await post(client, "/v1/completions", {"prompt": "a" * 64})
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    status, body = await post(client, "/v1/completions", {"prompt": "a" * 63, "max_tokens": 100})
    assert (status, body["choices"][0]["finish_reason"]) == (200, "length")


async def test_a_chat_that_its_size_alone_makes_too_long_gets_the_same_errors_and_can_still_be_counted(make_client):
    client = await make_client(model__ctx=64)
    long = chat_body("a" * 99, max_tokens=9)
    status, body = await post(client, CHAT, long)
    assert (status, body["error"]["code"], body["error"]["param"]) == (400, "context_length_exceeded", "messages")
    status, body = await post(client, "/v1/responses", {"input": "a" * 99})
    assert (status, body["error"]["code"], body["error"]["param"]) == (400, "context_length_exceeded", "input")
    status, counted = await post(client, "/v1/messages/count_tokens", long)
    assert status == 200
    status, body = await post(client, "/v1/messages", long)
    assert (status, body["error"]["message"]) == (
        400,
        f"prompt is too long: {counted['input_tokens']} tokens > 64 maximum",
    )


async def test_every_request_is_counted_by_endpoint_and_status(make_client):
    client = await make_client({"reply": "x"})
    await post(client, CHAT, chat_body("x"))
    await post(client, CHAT, {})
    await client.get("/secret/path/1")
    sample = context_of(client).metrics.registry.get_sample_value
    assert sample("lcpd_requests_total", {"endpoint": "/chat/completions", "code": "200"}) == 1
    assert sample("lcpd_requests_total", {"endpoint": "/chat/completions", "code": "400"}) == 1
    # Paths that do not exist would make labels without bound.
    assert sample("lcpd_requests_total", {"endpoint": "unknown", "code": "404"}) == 1


async def test_computed_and_reused_tokens_add_up_over_finished_and_cancelled_requests(make_client):
    client = await make_client({"prefill_seconds": 0.01, "decode_seconds": 0.01, "reply": "fine"})
    total = 0
    for i in range(3):
        _, body = await post(client, CHAT, chat_body("a shared beginning " * 5 + str(i)))
        total += body["usage"]["prompt_tokens"]
    sample = context_of(client).metrics.registry.get_sample_value
    sources = [sample("lcpd_prompt_tokens_total", {"source": s}) or 0 for s in ("computed", "vram", "shared", "ram")]
    assert sum(sources) == total
    assert sum(sources[1:]) > 0


async def test_openmetrics_are_given_to_those_who_ask(make_client):
    client = await make_client()
    response = await client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert response.content_type == "application/openmetrics-text"
    assert (await response.text()).endswith("# EOF\n")


async def test_openmetrics_that_are_refused_are_not_given(make_client):
    client = await make_client()
    accept = "application/openmetrics-text;version=1.0.0;q=0, text/plain"
    response = await client.get("/metrics", headers={"Accept": accept})
    assert response.content_type == "text/plain"
    assert not (await response.text()).endswith("# EOF\n")


async def test_health_is_degraded_while_the_chat_process_is_down(make_client):
    client = await make_client()
    chat = context_of(client).chat
    await chat.stop()
    body = await (await client.get("/health")).json()
    assert (body["status"], body["chat"]) == ("degraded", "down")


async def test_a_request_that_hangs_the_chat_process_is_given_up_after_the_time_limit(make_client):
    client = await make_client({"reply": "fine"})
    context_of(client).chat._settings = replace_timeout(context_of(client).chat._settings, 0.3)
    status, body = await asyncio.wait_for(post(client, CHAT, chat_body(HANG)), 20)
    assert status == 400
    assert "chat.call_timeout" in body["error"]["message"]


def replace_timeout(settings, seconds):
    from dataclasses import replace

    return replace(settings, call_timeout=seconds)


async def test_the_same_routes_answer_without_v1(make_client):
    client = await make_client({"reply": "x"})
    for path in ("/chat/completions", "/v1/chat/completions"):
        assert (await post(client, path, chat_body("x")))[0] == 200
    assert (await client.head("/")).status == 200


async def test_a_request_that_waits_too_long_is_told_so_in_the_dialect_of_its_route(make_client):
    client = await make_client({"decode_seconds": 0.05}, model__slots=1, scheduler__queue_timeout=0.2)
    endless = await client.post(CHAT, json=chat_body("x", stream=True, ignore_eos=True))
    response = await client.post(CHAT, json=chat_body("y"))
    assert response.status == 503
    assert int(response.headers["Retry-After"]) > 0
    assert (await response.json())["error"]["code"] == "queue_timeout"
    # The headers of a stream are out before it waits.
    streamed = await client.post(CHAT, json=chat_body("z", stream=True))
    assert streamed.status == 200
    assert '"code":"queue_timeout"' in await streamed.text()
    claude = await (await client.post("/v1/messages", json=chat_body("z", stream=True, max_tokens=9))).text()
    assert "event: error" in claude
    endless.close()


# ---- several replies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body("x")), ("/v1/completions", {"prompt": "x" * 9})])
async def test_n_replies_of_one_prompt(make_client, path, body):
    client = await make_client({"reply": "fine"}, model__slots=2)
    status, one = await post(client, path, body)
    status, five = await post(client, path, {**body, "n": 5})
    assert status == 200
    assert [c["index"] for c in five["choices"]] == [0, 1, 2, 3, 4]
    assert all((c.get("text") or c["message"]["content"]) == "fine" for c in five["choices"])
    assert five["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert five["usage"]["completion_tokens"] == 5 * one["usage"]["completion_tokens"]


async def test_anthropics_dialect_has_one_reply_whatever_else_a_body_has(make_client):
    client = await make_client({"reply": "fine"})
    status, body = await post(client, "/v1/messages", chat_body("x", max_tokens=9, n=[], min_tokens="x"))
    assert (status, body["content"][0]["text"]) == (200, "fine")


async def test_replies_that_do_not_all_fit_into_the_queue_are_none(make_client):
    client = await make_client({"decode_seconds": 0.02}, model__slots=1, server__queue_size=2)
    response = await client.post(CHAT, json=chat_body("x", n=9, ignore_eos=True))
    assert response.status == 429
    dispatcher = context_of(client).dispatcher
    await until(lambda: dispatcher.running == dispatcher.waiting == 0)


async def test_a_client_that_goes_away_ends_all_its_replies(make_client):
    client = await make_client({"decode_seconds": 0.02}, model__slots=2)
    response = await client.post(CHAT, json=chat_body("x", n=4, stream=True, ignore_eos=True))
    dispatcher = context_of(client).dispatcher
    await until(lambda: dispatcher.running == 2)
    response.close()
    await until(lambda: dispatcher.running == dispatcher.waiting == 0)


async def test_several_prompts_have_their_replies_in_their_order_and_each_is_counted(make_client):
    client = await make_client({"replies": [["first", "one"], ["second", "two"]]}, model__slots=2)
    fields = {"prompt": ["the first", [ord(c) for c in "the second"]], "n": 2}
    status, body = await post(client, "/v1/completions", fields)
    assert status == 200
    assert [(c["index"], c["text"]) for c in body["choices"]] == [(0, "one"), (1, "one"), (2, "two"), (3, "two")]
    assert body["usage"]["prompt_tokens"] == len("the first") + len("the second")
    for number in range(4):
        name = f"{body['id']}.{number}" if number else body["id"]
        assert (await client.get(f"/cache/requests/{name}")).status == 200


@pytest.mark.parametrize("prompt", [[], ["x"] * 17, ["x", ""], [7, ["x"]], [[[7]]], [{}]])
async def test_prompts_that_are_none_are_refused(make_client, prompt):
    client = await make_client()
    status, body = await post(client, "/v1/completions", {"prompt": prompt})
    assert status == 400
    assert body["error"]["param"].startswith("prompt")


# ---- priority and the admin view ---------------------------------------------------------------------------


TOOL = {"type": "function", "function": {"name": "f"}}


async def running_slot(client, body, path=CHAT, **headers):
    """The busy slot of GET /slots while a request runs."""
    response = await client.post(path, json={**body, "stream": True, "ignore_eos": True}, headers=headers)
    dispatcher = context_of(client).dispatcher
    await until(lambda: dispatcher.running == 1)
    view = await (await client.get("/slots")).json()
    response.close()
    await until(lambda: dispatcher.running == 0)
    return next(slot for slot in view["slots"] if slot["request"] is not None)


async def test_slots_tell_who_runs_and_who_waits_and_no_texts(make_client):
    client = await make_client({"decode_seconds": 0.02, "reply": "secret reply"}, model__slots=1)
    idle = await (await client.get("/slots")).json()
    assert [(slot["id"], slot["state"], slot["request"]) for slot in idle["slots"]] == [(0, "idle", None)]
    assert idle["waiting"] == []
    body = chat_body("secret prompt", stream=True, ignore_eos=True, user="secret user")
    streams = [await client.post(CHAT, json=body) for _ in range(2)]
    dispatcher = context_of(client).dispatcher
    await until(lambda: dispatcher.running == dispatcher.waiting == 1)
    response = await client.get("/slots")
    view = await response.json()
    (slot,), (waiting,) = view["slots"], view["waiting"]
    assert slot["state"] in ("restoring", "prefill", "decode")
    assert (slot["priority"], waiting["priority"]) == ("interactive", "interactive")
    assert waiting["state"] in ("waiting", "following")
    assert slot["client"] == waiting["client"] != ""
    assert view["cells"] > 0
    assert "secret" not in await response.text()
    for stream in streams:
        stream.close()


async def test_the_class_of_a_request_is_what_its_header_or_field_says(make_client):
    client = await make_client({"decode_seconds": 0.02}, model__slots=1)
    plain, field = chat_body("x"), chat_body("x", priority="background")
    assert (await running_slot(client, plain))["priority"] == "interactive"
    assert (await running_slot(client, field))["priority"] == "background"
    header = {"X-Lcpd-Priority": "interactive"}
    assert (await running_slot(client, field, **header))["priority"] == "interactive"
    status, body = await post(client, CHAT, chat_body("x", priority="asap"))
    assert (status, body["error"]["param"]) == (400, "priority")


async def test_an_agents_requests_without_tools_are_background_ones(make_client):
    client = await make_client({"decode_seconds": 0.02}, model__slots=1)
    agent = {"User-Agent": "agent"}
    assert (await running_slot(client, chat_body("title?"), **agent))["priority"] == "interactive"
    assert (await running_slot(client, chat_body("go", tools=[TOOL]), **agent))["priority"] == "interactive"
    assert (await running_slot(client, chat_body("title?"), **agent))["priority"] == "background"
    assert (await running_slot(client, chat_body("hi"), **{"User-Agent": "browser"}))["priority"] == "interactive"
    claude = chat_body("title?", max_tokens=5)
    assert (await running_slot(client, claude, "/v1/messages", **agent))["priority"] == "background"


async def test_slots_need_a_key_where_keys_are_asked_for(make_client):
    client = await make_client()
    use_keys(client, "k")
    assert (await client.get("/slots")).status == 401
    assert (await client.get("/slots", headers={"Authorization": "Bearer k"})).status == 200
