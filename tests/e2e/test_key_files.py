"""Two keys with a real model: names, limits, and nothing shared where keys are kept apart."""

from __future__ import annotations

import concurrent.futures
import signal
import time
from pathlib import Path

import anthropic
import httpx
import openai
import pytest

from lcpd.keys import digest_of
from support import text_of

pytestmark = pytest.mark.native

PROMPT = [{"role": "user", "content": text_of(300)}]


def chat(daemon, key, **fields):
    return openai.OpenAI(base_url=f"{daemon.url}/v1", api_key=key, max_retries=0, timeout=120).chat.completions.create(
        model="demo:hybrid", messages=PROMPT, temperature=0, **{"max_tokens": 4, **fields}
    )


def test_keys_are_read_again_on_sighup_and_streams_go_on(start_daemon, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("ada sk-one\n")
    daemon = start_daemon("--api-key-file", str(keys))
    stream = iter(chat(daemon, "sk-one", stream=True, max_tokens=3000, extra_body={"ignore_eos": True}))
    next(stream)

    def reread(text: str, logged: str) -> None:
        keys.write_text(text)
        daemon.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 30
        while logged not in daemon.log:
            assert time.monotonic() < deadline, daemon.log
            time.sleep(0.02)

    reread("bob sk-two\n", "keys were read again: 1, of which 1 are new; 1 are gone")
    assert chat(daemon, "sk-two").usage.completion_tokens > 0
    with pytest.raises(openai.AuthenticationError):
        chat(daemon, "sk-one")
    reread("bob sk-two twice=1\n", "the keys stay as they were: server.api_key_file")
    assert chat(daemon, "sk-two").usage.completion_tokens > 0
    *_, last = stream
    assert last.choices[0].finish_reason == "length", "the stream of the key that is gone went on to its end"


def cached(reply) -> int:
    return reply.usage.prompt_tokens_details.cached_tokens


def test_two_keys_have_names_limits_and_caches_of_their_own(start_daemon, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(f"# ours\nada sha256:{digest_of('sk-one')} concurrency=1\nbob sk-two priority=background\n")
    daemon = start_daemon("--api-key-file", str(keys), LCPD_CACHE__ISOLATE="key", LCPD_ADMIN_KEYS="root sk-boss")
    with pytest.raises(openai.AuthenticationError):
        chat(daemon, "sk-three")

    assert cached(chat(daemon, "sk-one")) == 0
    assert cached(chat(daemon, "sk-one")) > 100
    assert cached(chat(daemon, "sk-two")) == 0, "bob's time to the first token tells nothing of ada's prompts"
    assert cached(chat(daemon, "sk-two")) > 100

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        stream = chat(daemon, "sk-one", stream=True, max_tokens=4000, extra_body={"ignore_eos": True})
        next(iter(stream))
        slots = httpx.get(f"{daemon.url}/slots", headers={"x-api-key": "sk-two"}).json()["slots"]
        assert [slot["client"] for slot in slots if slot["request"] is not None] == ["ada"]
        with pytest.raises(openai.RateLimitError) as caught:
            pool.submit(chat, daemon, "sk-one").result()
        assert int(caught.value.response.headers["Retry-After"]) > 0
        claude = anthropic.Anthropic(base_url=daemon.url, api_key="sk-one", max_retries=0)
        with pytest.raises(anthropic.RateLimitError):
            claude.messages.create(model="demo:hybrid", messages=PROMPT, max_tokens=4)
        assert pool.submit(chat, daemon, "sk-two").result().usage.completion_tokens > 0
        stream.close()

    assert httpx.post(f"{daemon.url}/cache/purge", headers={"x-api-key": "sk-two"}).status_code == 403
    assert httpx.post(f"{daemon.url}/cache/purge", headers={"x-api-key": "sk-boss"}).status_code == 200
    metrics = httpx.get(f"{daemon.url}/metrics", headers={"x-api-key": "sk-two"}).text
    assert 'lcpd_key_refusals_total{key="ada",limit="concurrency"} 2.0' in metrics
    assert " s ada" in daemon.log and "sk-" not in daemon.log + metrics
    children = [daemon.child(f"lcpd.{name}") for name in ("engine.worker", "chat.service")]
    assert not any(b"sk-boss" in Path(f"/proc/{pid}/environ").read_bytes() for pid in children)
