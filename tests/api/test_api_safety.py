"""What keeps strangers, pages in browsers and logs from what is not theirs; and the room for a prompt and its reply."""

from __future__ import annotations

import hmac
import logging

import pytest
from yarl import URL

from fakes.api import chat_body, use_keys
from lcpd.api.operations import OPERATIONS
from lcpd.keys import Keyring, read_keys

CHAT = "/v1/chat/completions"
FOREIGN = "https://evil.example"
PATHS = [(method, path.replace("{name}", "fake").replace("{id}", "x")) for method, path in OPERATIONS]


def keyring(text):
    return Keyring(line.key for line in read_keys(text, "file"))


@pytest.mark.parametrize("given", ["one", "three", "nobody's", ""])
def test_which_key_is_given_does_not_change_what_is_compared(monkeypatch, given):
    keys, compared = keyring("a one\nb two\nc three"), []

    def compare(left, right):
        compared.append(right)
        return left == right

    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys.find(f"Bearer {given}", None)
    assert compared == [key.digest for key in keys.keys]


def test_no_key_can_be_read_from_what_is_kept_of_it():
    assert "topsecret" not in repr(keyring("ada topsecret").keys)


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": FOREIGN}, {"Origin": "null"}])
async def test_no_route_answers_under_a_foreign_name_or_to_a_foreign_page(make_client, headers):
    client = await make_client()
    for method, path in PATHS:
        answer = await client.request(method, path, headers=headers)
        assert answer.status == 403, path
        assert "Access-Control-Allow-Origin" not in answer.headers


async def test_no_page_may_read_answers_unless_its_origin_is_allowed(make_client):
    client = await make_client()
    own = f"http://127.0.0.1:{client.port}"
    answer = await client.get("/v1/models", headers={"Origin": own})
    assert answer.status == 200
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    asked = {"Origin": FOREIGN, "Access-Control-Request-Method": "POST"}
    assert (await client.options(CHAT, headers=asked)).status == 403


async def test_an_allowed_origin_may_read_errors_too_and_no_other_one_may(make_client):
    client = await make_client(server__allowed_origins="https://ui.lan")
    answer = await client.post(CHAT, json={}, headers={"Origin": "https://ui.lan"})
    assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (400, "https://ui.lan")
    assert answer.headers["Vary"] == "Origin"
    assert (await client.post(CHAT, json={}, headers={"Origin": "https://ui.lan.evil"})).status == 403


async def test_every_route_but_the_open_ones_needs_a_key(make_client):
    client = await make_client()
    use_keys(client, "ada one")
    for method, path in PATHS:
        answer = await client.request(method, path, json={} if method == "POST" else None)
        assert answer.status == (200 if path in ("/", "/health", "/openapi.json", "/docs") else 401), path


async def test_what_changes_the_daemon_needs_an_admins_key_and_a_users_is_none(make_client):
    client = await make_client()
    use_keys(client, "ada one")
    for path in ("/cache/pin", "/cache/unpin", "/cache/purge", "/sleep", "/wake"):
        answer = await client.post(path, json={"prompt": "x"}, headers={"x-api-key": "one"})
        assert answer.status == 403, path


async def test_a_log_has_neither_what_follows_the_path_nor_headers_nor_bodies(make_client, caplog):
    caplog.set_level(logging.DEBUG)
    client = await make_client({"reply": "the secret reply"})
    secret = {"Authorization": "Bearer secret-key", "User-Agent": "secret-agent"}
    await client.post(f"{CHAT}?key=secret", json=chat_body("secret prompt", user="secret user"), headers=secret)
    await client.post(f"{CHAT}?key=secret", data=b'{"secret": ', headers={"Content-Type": "application/json"})
    await client.get("/v1/models?key=secret")
    assert f"POST {CHAT} 200" in caplog.text and f"POST {CHAT} 400" in caplog.text
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("lcpd")]
    assert "secret" not in "".join(ours)


async def test_a_path_cannot_write_lines_of_its_own_into_the_log(make_client, caplog):
    caplog.set_level(logging.INFO)
    client = await make_client()
    await client.get(URL("/%0aforged%1b[31m%00", encoded=True))
    (line,) = [record.getMessage() for record in caplog.records if record.name == "lcpd.access"]
    assert line.isprintable()


# ---- the room that there is ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "limit"), [(CHAT, "max_tokens"), ("/v1/messages", "max_tokens"), ("/v1/responses", "max_output_tokens")]
)
async def test_a_prompt_of_28673_tokens_with_4096_for_the_reply_is_answered_on_a_context_of_32768(
    make_client, path, limit
):
    client = await make_client({"reply": "fine"}, model__ctx=32_768)

    async def usage(text):
        body = {"input": text} if path == "/v1/responses" else chat_body(text)
        answer = await client.post(path, json={**body, limit: 4096})
        assert answer.status == 200
        return (await answer.json())["usage"]

    def prompt(told):
        return sum(told.get(name, 0) for name in ("prompt_tokens", "input_tokens", "cache_read_input_tokens"))

    around = prompt(await usage("x")) - 1
    assert prompt(await usage("x" * (28_673 - around))) == 28_673


async def test_the_reply_to_such_a_prompt_may_fill_the_context_to_its_last_token(make_client):
    client = await make_client({"reply": "x"}, model__ctx=1024, server__max_tokens=0)
    answer = await client.post("/v1/completions", json={"prompt": "x" * 1000, "max_tokens": 4096, "ignore_eos": True})
    body = await answer.json()
    assert (body["choices"][0]["finish_reason"], body["usage"]["total_tokens"]) == ("length", 1024)
