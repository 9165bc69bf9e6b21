"""API keys as the daemon applies them: limits, classes, names; and what bodies may not make it fetch."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.api import ADMIN_KEY, chat_body, context_of, until, use_keys
from lcpd.api.errors import ApiError
from lcpd.api.key_limits import KeyLimits, LimitExceeded, refilled
from lcpd.api.media import text_only
from lcpd.api.normalise import chat_body as normalised_chat
from lcpd.api.normalise import messages_body
from lcpd.keys import Key, Rate

CHAT = "/v1/chat/completions"
ADA, BOB = {"Authorization": "Bearer one"}, {"x-api-key": "two"}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def once(limits, key):
    with limits.admitted(key):
        pass


def refused(limits, key):
    with pytest.raises(LimitExceeded) as caught:
        once(limits, key)
    return caught.value


# ---- limits ----------------------------------------------------------------------------------------------


def test_a_rate_lets_so_many_at_once_and_then_one_each_share_of_the_time():
    clock = Clock()
    limits, key = KeyLimits(clock), Key("ada", "d", rate=Rate(3, 60))
    for _ in range(3):
        once(limits, key)
    assert refused(limits, key).retry_after == 20
    clock.now = 15
    assert refused(limits, key).retry_after == 5
    clock.now = 20
    once(limits, key)
    assert refused(limits, key).what == "rate"


@given(
    st.integers(1, 50),
    st.sampled_from([1, 60, 3600]),
    st.lists(st.floats(0, 100), min_size=1, max_size=100),
)
def test_no_window_has_more_than_the_burst_and_its_share(count, seconds, pauses):
    clock = Clock()
    limits, key, taken = KeyLimits(clock), Key("ada", "d", rate=Rate(count, seconds)), 0
    for pause in pauses:
        clock.now += pause
        try:
            once(limits, key)
            taken += 1
        except LimitExceeded as error:
            assert 1 <= error.retry_after <= seconds
    assert taken <= count + clock.now * count / seconds + 1e-6


@given(st.integers(1, 1000), st.integers(1, 86400))
def test_who_comes_when_told_to_is_let_in(count, seconds):
    clock = Clock()
    limits, key = KeyLimits(clock), Key("ada", "d", rate=Rate(count, seconds))
    for _ in range(count):
        once(limits, key)
    clock.now += refused(limits, key).retry_after
    once(limits, key)


def test_a_bucket_never_holds_more_than_the_burst():
    assert refilled(1, 1e9, Rate(5, 60)) == 5


def test_so_many_requests_at_once_and_an_end_makes_room():
    limits, key = KeyLimits(), Key("ada", "d", concurrency=2)
    with limits.admitted(key):
        with limits.admitted(key):
            assert refused(limits, key).what == "concurrency"
        once(limits, key)
    with pytest.raises(ZeroDivisionError), limits.admitted(key):
        raise ZeroDivisionError
    with limits.admitted(key), limits.admitted(key):
        pass


def test_a_refusal_uses_nothing_up_and_keys_do_not_share():
    clock = Clock()
    limits = KeyLimits(clock)
    ada, bob = Key("ada", "a", concurrency=1, rate=Rate(2, 60)), Key("bob", "b", concurrency=1, rate=Rate(1, 60))
    with limits.admitted(ada):
        assert refused(limits, ada).what == "concurrency"
        once(limits, bob)
    once(limits, ada)
    assert refused(limits, ada).what == "rate"


# ---- the daemon ------------------------------------------------------------------------------------------


async def post(client, headers, path=CHAT, **fields):
    response = await client.post(path, json=chat_body("hi", max_tokens=2, **fields), headers=headers)
    return response.status, await response.json(), response.headers


async def test_a_key_over_its_rate_is_refused_in_the_dialect_of_the_route_and_others_are_not(make_client):
    client = await make_client()
    use_keys(client, "ada one rate=1/h\nbob two")
    assert (await post(client, ADA))[0] == 200
    status, body, headers = await post(client, ADA)
    assert (status, body["error"]["type"], body["error"]["code"]) == (429, "rate_limit_error", "rate_limit_exceeded")
    assert "ada" in body["error"]["message"] and 3590 < int(headers["Retry-After"]) <= 3600
    status, body, headers = await post(client, ADA, "/v1/messages")
    assert (status, body["type"], body["error"]["type"]) == (429, "error", "rate_limit_error")
    assert int(headers["Retry-After"]) > 0
    assert (await post(client, BOB))[0] == 200
    assert (await client.get("/slots", headers=ADA)).status == 200, "looking is not limited"
    sample = context_of(client).metrics.registry.get_sample_value
    ada = {"key": "ada", "client": "other"}
    assert sample("lcpd_client_requests_total", {**ada, "code": "200"}) == 2
    assert sample("lcpd_client_requests_total", {**ada, "code": "429"}) == 2
    assert sample("lcpd_key_refusals_total", {"key": "ada", "limit": "rate"}) == 2


async def test_a_stream_counts_until_it_ends(make_client):
    client = await make_client({"decode_seconds": 0.02})
    use_keys(client, "ada one concurrency=1")
    stream = await client.post(CHAT, json=chat_body("hi", stream=True, ignore_eos=True), headers=ADA)
    status, body, headers = await post(client, ADA)
    assert (status, int(headers["Retry-After"])) == (429, 5)
    assert "1 requests under way" in body["error"]["message"]
    stream.close()
    sample = context_of(client).metrics.registry.get_sample_value
    await until(lambda: sample("lcpd_client_requests_total", {"key": "ada", "client": "other", "code": "499"}) == 1)
    assert (await post(client, ADA))[0] == 200


async def test_a_background_keys_requests_are_background_whatever_they_say(make_client):
    client = await make_client({"decode_seconds": 0.02}, model__slots=1)
    use_keys(client, "ada one priority=background")
    body = chat_body("hi", stream=True, ignore_eos=True)
    stream = await client.post(CHAT, json=body, headers={**ADA, "x-lcpd-priority": "interactive"})
    view = await (await client.get("/slots", headers=ADA)).json()
    assert (view["slots"][0]["priority"], view["slots"][0]["client"]) == ("background", "ada")
    stream.close()


async def test_names_are_in_the_log_and_keys_are_nowhere(make_client, caplog):
    caplog.set_level(logging.INFO)
    client = await make_client()
    use_keys(client, "ada topsecret")
    assert (await post(client, {"Authorization": "Bearer topsecret"}))[0] == 200
    assert (await post(client, {"Authorization": "Bearer wrongsecret"}))[0] == 401
    metrics = await (await client.get("/metrics", headers={"x-api-key": "topsecret"})).text()
    assert any(record.getMessage().endswith(" s ada") for record in caplog.records)
    assert "secret" not in caplog.text + metrics


async def test_a_response_belongs_to_its_key(make_client):
    client = await make_client()
    use_keys(client, "ada one\nbob two")
    made = await (await client.post("/v1/responses", json={"input": "hi", "store": True}, headers=ADA)).json()
    assert (await client.get(f"/v1/responses/{made['id']}", headers=BOB)).status == 404
    assert (await client.get(f"/v1/responses/{made['id']}", headers=ADA)).status == 200


async def test_an_admins_key_alone_limits_and_names_nobody(make_client):
    client = await make_client()
    use_keys(client, admin=f"root {ADMIN_KEY} rate=1/d")
    for _ in range(2):
        assert (await post(client, {"Authorization": f"Bearer {ADMIN_KEY}"}))[0] == 200


async def test_no_reply_is_longer_than_the_server_lets_it_be(make_client):
    client = await make_client(server__max_tokens=7)
    for fields in ({}, {"max_tokens": 100}):
        body = chat_body("hi", ignore_eos=True, **fields)
        usage = (await (await client.post(CHAT, json=body)).json())["usage"]
        assert usage["completion_tokens"] == 7
    entry = (await (await client.get("/v1/models")).json())["data"][0]
    assert entry["limits"]["output"] == 7


# ---- what is not text ------------------------------------------------------------------------------------

REFERENCES = [
    {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}},
    {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
    {"type": "image_url", "image_url": "https://example.org/a.png"},
    {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
    {"type": "input_audio", "input_audio": {"url": "file:///etc/passwd"}},
    {"type": "video_url", "video_url": {"url": "../a.mp4"}},
]
HELD = [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
    {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
    {"type": "file", "file": {"file_data": "AA=="}},
    {"type": "document", "source": {"type": "base64", "data": "AA=="}},
    {"type": "image_url"},
    {"type": "image_url", "image_url": 5},
]


@pytest.mark.parametrize("normalise", [normalised_chat, messages_body])
@pytest.mark.parametrize("part", REFERENCES)
def test_nothing_is_fetched_or_opened_for_a_body(normalise, part):
    with pytest.raises(ApiError, match=r"Only data: URIs are taken .* send text") as caught:
        normalise({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, part]}]})
    assert (caught.value.status, caught.value.param) == (400, "messages[0].content[1]")


@pytest.mark.parametrize("part", HELD)
def test_what_the_model_cannot_read_is_refused(part):
    with pytest.raises(ApiError, match=r"This model cannot read (images|audio|files|documents); send text"):
        text_only({"role": "user", "content": [part]}, "messages[0]")


@pytest.mark.parametrize("part", [*REFERENCES, *HELD])
def test_in_a_tools_result_the_model_is_told_instead(part):
    (told,) = text_only({"role": "tool", "content": [part]}, "messages[0]")["content"]
    assert told["type"] == "text" and "was left out: this model cannot read it" in told["text"]
    result = {"type": "tool_result", "tool_use_id": "t", "content": [part, {"type": "text", "text": "x"}]}
    (changed,) = text_only({"role": "user", "content": [result]}, "messages[0]")["content"]
    assert changed["content"] == [told, {"type": "text", "text": "x"}]
    assert result["content"][0] is part


async def test_a_reference_is_a_400_of_the_routes(make_client):
    client = await make_client()
    for path, part in ((CHAT, REFERENCES[0]), ("/v1/messages", REFERENCES[3]), ("/v1/messages/count_tokens", HELD[1])):
        body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 5}
        response = await client.post(path, json=body)
        assert response.status == 400
        assert "messages[0].content[0]" in await response.text()
