"""llama-server's extras on a real vocabulary and template, the document of the routes, and a log without prompts."""

from __future__ import annotations

import httpx
import pytest

from support import READ_FILE

pytestmark = pytest.mark.native

TEXTS = ["", "hello world", "def f(x):\n    return x  # é 😀\n", "<|im_start|>user\nhi<|im_end|>"]


def post(daemon, path, body, status=200):
    response = httpx.post(daemon.url + path, json=body, timeout=60)
    assert response.status_code == status, response.text
    return response.json()


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_comes_back_from_its_tokens(daemon, text):
    tokens = post(daemon, "/tokenize", {"content": text})["tokens"]
    assert post(daemon, "/detokenize", {"tokens": tokens}) == {"content": text}


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_the_bytes_of_the_text(daemon, text):
    pieces = post(daemon, "/tokenize", {"content": text, "with_pieces": True})["tokens"]
    data = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
    assert data.decode() == text
    assert [p["id"] for p in pieces] == post(daemon, "/tokenize", {"content": text})["tokens"]


def test_special_tokens_are_read_unless_told_otherwise(daemon):
    text = TEXTS[-1]
    read = post(daemon, "/tokenize", {"content": text})["tokens"]
    plain = post(daemon, "/tokenize", {"content": text, "parse_special": False})["tokens"]
    assert len(read) < len(plain)


@pytest.mark.parametrize("token", [-1, 10**6, 2**31])
def test_a_number_that_is_no_token_is_refused_and_nothing_dies(daemon, token):
    pid = daemon.child("lcpd.chat.service")
    assert "tokens" in post(daemon, "/detokenize", {"tokens": [1, token]}, 400)["error"]["param"]
    assert daemon.child("lcpd.chat.service") == pid


def test_a_lone_surrogate_is_refused_or_taken_but_no_error_of_the_server(daemon):
    for body in (b'{"content": "\\ud800"}', b'{"content": ["\\udfff", 1], "with_pieces": true}'):
        response = httpx.post(f"{daemon.url}/tokenize", content=body, headers={"Content-Type": "application/json"})
        assert response.status_code in (200, 400), response.text


def test_the_prompt_that_is_told_is_the_one_that_runs(daemon):
    body = {"messages": [{"role": "user", "content": "Read a.py"}], "tools": [READ_FILE]}
    prompt = post(daemon, "/apply-template", body)["prompt"]
    assert "read_file" in prompt and "Read a.py" in prompt
    tokens = post(daemon, "/tokenize", {"content": prompt, "add_special": True})["tokens"]
    usage = post(daemon, "/v1/chat/completions", {**body, "max_tokens": 1})["usage"]
    assert usage["prompt_tokens"] == len(tokens)


def test_the_properties_are_those_of_the_model(daemon):
    props = httpx.get(f"{daemon.url}/props").json()
    (model,) = httpx.get(f"{daemon.url}/v1/models").json()["data"]
    assert props["default_generation_settings"]["n_ctx"] == model["context_length"] == model["limits"]["context"]
    assert props["default_generation_settings"]["params"]["top_k"] == 40
    assert "messages" in props["chat_template"]
    assert props["chat_template_caps"]["supports_tools"] is True
    assert props["total_slots"] == 2
    assert post(daemon, "/props", {}, 405)["error"]["message"]


def test_no_prompt_is_logged_even_at_the_level_debug(start_daemon):
    daemon = start_daemon(LCPD_LOG__LEVEL="debug")
    secret = "correcthorsebattery"
    assert daemon.chat(secret, "yes", secret).status_code == 200
    post(daemon, "/v1/completions", {"prompt": secret, "max_tokens": 4})
    post(daemon, "/v1/messages", {"messages": [{"role": "user", "content": secret}], "max_tokens": 4})
    post(daemon, "/tokenize", {"content": secret})
    post(daemon, "/apply-template", {"messages": [{"role": "king", "content": secret}]}, 400)
    assert daemon.stop() == 0
    assert "/v1/chat/completions" in daemon.log
    assert secret not in daemon.log
