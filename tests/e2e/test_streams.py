"""Many clients at once over HTTP: what one of them does, or asks for, does not reach the others."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.native
CELLS = 24_576
LONG = 20_000
"""Tokens of a prompt that takes seconds to compute."""
SLOTS = 2
ENDLESS = {"max_tokens": 4000, "temperature": 0, "ignore_eos": True, "stream": True}
_WITHIN = 60
"""Seconds after which what is waited for will not come."""


@pytest.fixture
def daemon(start_daemon):
    return start_daemon("--slots", str(SLOTS), "--ctx", str(CELLS), "--batch", "256", "--ubatch", "256")


def ids(count: int, seed: int) -> list[int]:
    """Random tokens."""
    return random.Random(seed).choices(range(300, 2000), k=count)


def complete(daemon, prompt, **fields) -> httpx.Response:
    return httpx.post(f"{daemon.url}/v1/completions", json={"prompt": prompt, **fields}, timeout=120)


@contextmanager
def streaming(daemon, prompt: list[int], **fields) -> Iterator[Iterator[str]]:
    """The texts of a stream, whose connection is closed at the end of the block."""
    body = {"prompt": prompt, **ENDLESS, **fields}
    with httpx.stream("POST", f"{daemon.url}/v1/completions", json=body, timeout=120) as response:
        lines = (line[len("data: ") :] for line in response.iter_lines() if line.startswith("data: {"))
        yield (choice["text"] for line in lines for choice in json.loads(line)["choices"])


def slots(daemon) -> dict:
    return httpx.get(f"{daemon.url}/slots", timeout=30).json()


def states(daemon) -> list[str]:
    return [slot["state"] for slot in slots(daemon)["slots"]]


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _WITHIN
    while not true():
        assert time.monotonic() < deadline, f"not within {_WITHIN} s: {what}"
        time.sleep(0.02)


def computed(daemon) -> float:
    """Prompt tokens that were computed so far."""
    families = text_string_to_metric_families(httpx.get(f"{daemon.url}/metrics", timeout=30).text)
    samples = [s for family in families for s in family.samples if s.name == "lcpd_prompt_tokens_total"]
    return next(s.value for s in samples if s.labels["source"] == "computed")


def test_a_closed_connection_stops_a_prompt_that_is_being_computed_and_keeps_what_there_is_of_it(daemon):
    prompt = ids(LONG, seed=1)
    with streaming(daemon, prompt):
        until(lambda: computed(daemon) > 0, "the prompt is being computed")
        before = computed(daemon)
    until(lambda: states(daemon) == ["idle"] * SLOTS, "the slot is idle")
    after = computed(daemon)
    # Within one chunk of 256 tokens; some more were computed before the connection was closed, or noticed to be.
    assert after - before < LONG / 4
    again = complete(daemon, prompt[: int(after) + 100], max_tokens=1).json()["usage"]
    assert again["prompt_tokens_details"]["cached_tokens"] > after / 2


def test_a_closed_connection_takes_its_request_out_of_the_queue(daemon):
    with streaming(daemon, ids(20, seed=1)) as first, streaming(daemon, ids(20, seed=2)) as second:
        assert next(first)
        assert next(second)
        with httpx.Client(timeout=30) as client:
            request = client.build_request("POST", f"{daemon.url}/v1/completions", json={"prompt": "x", **ENDLESS})
            response = client.send(request, stream=True)
            until(lambda: len(slots(daemon)["waiting"]) == 1, "the third request waits")
            response.close()
        until(lambda: not slots(daemon)["waiting"], "the third request is gone")
        assert states(daemon) == ["decode"] * SLOTS
        assert next(first)
        assert next(second)


def test_a_prompt_that_can_never_fit_is_refused_at_once_although_all_slots_are_busy(daemon):
    with streaming(daemon, ids(20, seed=1)) as first, streaming(daemon, ids(20, seed=2)) as second:
        assert next(first)
        assert next(second)
        response = complete(daemon, ids(CELLS + 1, seed=3), max_tokens=1)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert states(daemon) == ["decode"] * SLOTS


def test_the_slots_tell_what_runs_and_what_waits(daemon):
    with streaming(daemon, ids(20, seed=1)) as first, streaming(daemon, ids(30, seed=2)) as second:
        assert next(first)
        assert next(second)
        with streaming(daemon, ids(40, seed=3)):
            until(lambda: len(slots(daemon)["waiting"]) == 1, "the third request waits")
            view = slots(daemon)
    assert sorted(slot["prompt_tokens"] for slot in view["slots"]) == [20, 30]
    assert all(slot["generated"] > 0 for slot in view["slots"])
    assert [one["prompt_tokens"] for one in view["waiting"]] == [40]
    assert 50 < view["cells_used"] <= view["cells"] == CELLS
