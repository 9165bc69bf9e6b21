"""Two keys with a real model: names, limits, and nothing shared where keys are kept apart."""

from __future__ import annotations

import concurrent.futures
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
