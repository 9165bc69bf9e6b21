"""A client hangs up and sends its request again: nothing is computed twice, and the reply is the undisturbed one."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from e2e_parts import Parts, Reply, follow, generated, prefilled, running_parts

from lcpd.engine import protocol as p
from lcpd.scheduler.generation import Event, Generation, Prompt
from support import text_of

pytestmark = pytest.mark.native
LENGTH = 800
"""Tokens of a reply."""
SETTINGS: dict[str, Any] = {
    "cache": {"ram": "256MiB", "anticipate": False},
    "model": {"ctx": 16384, "slots": 2, "batch": 256, "ubatch": 256},
}
GREEDY = {"temperature": 0, "ignore_eos": True}
SEEDED = {"temperature": 1.0, "seed": 7, "ignore_eos": True}
PAUSES = [0.0, 0.5]
"""Seconds after which a client asks again: at once, while its first request is still being stopped, and later."""


def ids(length: int, seed: int = 1) -> list[int]:
    return random.Random(seed).choices(range(300, 1300), k=length)


def submit(parts: Parts, tokens: list[int], fields: dict[str, Any]) -> Generation:
    return parts.dispatcher.submit(Prompt(np.array(tokens, np.int32), (), json.dumps(fields).encode(), LENGTH))


async def tried_twice(
    parts: Parts, tokens: list[int], fields: dict[str, Any], until: Callable[[Event], bool], pause: float
) -> tuple[Generation, Generation, Reply]:
    """A reply that is given up when `until` is true of an event, and the retry's."""
    first = submit(parts, tokens, fields)
    await follow(first, until)
    await asyncio.sleep(pause)
    second = submit(parts, tokens, fields)
    return first, second, await follow(second)


@pytest.mark.parametrize("pause", PAUSES)
async def test_a_retry_after_half_of_a_long_prefill_computes_the_other_half(pause: float) -> None:
    tokens = ids(10_000)
    async with running_parts("hybrid", **SETTINGS) as parts:
        first, second, reply = await tried_twice(parts, tokens, GREEDY, prefilled(5000), pause)
        assert 5000 <= parts.computed([first.id]) < 7000
        assert parts.computed([first.id, second.id]) == len(tokens)
    assert len(reply.tokens) == LENGTH


@pytest.mark.parametrize("fields", [GREEDY, SEEDED])
@pytest.mark.parametrize("pause", PAUSES)
async def test_a_retry_in_the_middle_of_a_reply_computes_none_of_its_tokens_again(
    pause: float, fields: dict[str, Any]
) -> None:
    tokens = ids(600, seed=2)
    async with running_parts("hybrid", **SETTINGS) as parts:
        right = await follow(submit(parts, tokens, fields))
    async with running_parts("hybrid", **SETTINGS) as parts:
        first, second, reply = await tried_twice(parts, tokens, fields, generated(20), pause)
        (again,) = parts.of(p.Started, second.id)
        (stopped,) = parts.of(p.Finished, first.id)
        assert again.begin == len(tokens) + stopped.generated - 1, "all but the token that was sampled last"
        assert parts.metric("lcpd_generation_tokens_total") == LENGTH
        assert parts.computed([first.id, second.id]) == len(tokens)
    assert stopped.generated >= 20
    assert (reply.tokens, reply.text, reply.reason) == (right.tokens, right.text, "length")


def test_over_http_a_broken_stream_goes_on_as_a_whole_reply(start_daemon) -> None:
    daemon = start_daemon("--slots", "2")
    body = {
        "messages": [{"role": "user", "content": text_of(400)}],
        "max_tokens": 2000,
        "temperature": 0,
        "ignore_eos": True,
    }
    url = f"{daemon.url}/v1/chat/completions"
    with httpx.stream("POST", url, json={**body, "stream": True}, timeout=120) as response:
        lines = (line for line in response.iter_lines() if line.startswith("data: {"))
        for _ in range(3):
            begun = next(lines)
    assert "choices" in json.loads(begun.removeprefix("data: "))
    answer = httpx.post(url, json=body, timeout=120).json()
    cache = answer["timings"]["cache"]
    assert cache["computed"] == 1
    assert cache["hit"] > answer["usage"]["prompt_tokens"], "of the reply, too"
    assert answer["usage"]["completion_tokens"] == 2000
    other = start_daemon("--slots", "2")
    undisturbed = httpx.post(f"{other.url}/v1/chat/completions", json=body, timeout=120).json()
    assert answer["choices"][0]["message"] == undisturbed["choices"][0]["message"]
