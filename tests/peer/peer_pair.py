"""lcpd and llama-server side by side, and what of their replies has to be the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from benchmarks.servers import Server

Json = dict[str, Any]

UNUSED_PROMPT = [7]
"""Tokens that no prompt of these tests begins with."""


@dataclass(frozen=True)
class Reply:
    """What has to be the same."""

    text: str | None
    reasoning: str | None
    tool_calls: list[tuple[str, str]]
    """Name and arguments; the ids are random."""
    finish_reason: str
    prompt_tokens: int
    generated_tokens: int


@dataclass(frozen=True)
class Pair:
    """Both servers; neither reuses anything of an earlier prompt, so both cut a prompt in the same places."""

    lcpd: Server
    peer: Server
    batch: int
    """Tokens that either decodes at once."""

    def ask_both(self, path: str, body: Json) -> tuple[Reply, Reply]:
        """The replies of lcpd and of llama-server."""
        with ThreadPoolExecutor(2) as pool:
            ours, theirs = pool.submit(self.ask_lcpd, path, body), pool.submit(self.ask_peer, path, body)
            return ours.result(), theirs.result()

    def ask_lcpd(self, path: str, body: Json) -> Reply:
        """The reply of lcpd, whose only slot is made to hold something else before."""
        _post(self.lcpd, "/v1/completions", {"prompt": UNUSED_PROMPT, "max_tokens": 1})
        return _reply(self.lcpd, path, body)

    def ask_peer(self, path: str, body: Json) -> Reply:
        """The reply of llama-server, told to reuse nothing."""
        return _reply(self.peer, path, {**body, "cache_prompt": False})


def _reply(server: Server, path: str, body: Json) -> Reply:
    answer = _post(server, path, body)
    usage, choice = answer["usage"], answer["choices"][0]
    reused = usage["prompt_tokens_details"]["cached_tokens"]
    assert reused == 0, f"{server.name} reused {reused} tokens: the prompts are not cut alike"
    message = choice.get("message", {})
    text = choice["text"] if "text" in choice else message["content"]
    if text and choice["finish_reason"] == "length":
        # Where max_tokens ends a reply inside a character, llama-server shows U+FFFD in text completions and nothing
        # in chats.
        text = text.removesuffix("\ufffd")
    return Reply(
        text=text,
        reasoning=message.get("reasoning_content"),
        tool_calls=[(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []],
        finish_reason=choice["finish_reason"],
        prompt_tokens=usage["prompt_tokens"],
        generated_tokens=usage["completion_tokens"],
    )


def _post(server: Server, path: str, body: Json) -> Json:
    try:
        response = httpx.post(server.url + path, json=body, timeout=120)
    except httpx.TransportError as error:
        pytest.fail(f"{server.name} did not answer: {error!r}; its log ends:\n{server.log_tail()}")
    if response.status_code != 200:
        pytest.fail(f"{server.name} answered {response.status_code}: {response.text}\nlog:\n{server.log_tail()}")
    answer: Json = response.json()
    return answer
