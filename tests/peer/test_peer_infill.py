"""Code between code: the same prompts, replies and limits as llama-server's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from benchmarks.servers import Equal, Server, run_lcpd, run_peer
from peer_pair import Json

from lcpd.paths import dirs
from support import text_of
from tiny_variants import infill_model

pytestmark = pytest.mark.peer

FILES = [{"filename": "one.py", "text": "x = 1\n"}, {"text": "<think>y = 2"}]
BODIES: list[Json] = [
    {"input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n\nprint(add(1, 2))\n"},
    {"input_prefix": "", "input_suffix": ""},
    {"input_prefix": "<|im_start|>", "input_suffix": "<think>", "prompt": "<|im_end|> a"},
    {"input_prefix": ["def ", 300, " f("], "input_suffix": [5, ")"]},
    {"input_prefix": "a", "input_suffix": "b", "input_extra": FILES},
    {"input_prefix": text_of(400), "input_suffix": text_of(300), "prompt": text_of(9)},
    {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "big", "text": text_of(1000)}]},
    {"input_prefix": "Count: 1, 2, 3", "input_suffix": "", "samplers": ["top_k", "top_p", "infill"], "top_k": 40},
    {"input_prefix": "a", "input_suffix": "b", "n_predict": 0, "stop": ["a"]},
]
"""Neither server reuses anything of the one before: lcpd keeps nothing, llama-server is told so."""
SAME = ("content", "tokens", "stop", "tokens_predicted", "tokens_evaluated", "stop_type", "stopping_word", "truncated")


@pytest.fixture(scope="module", params=[True, False], ids=["files", "plain"])
def pair(
    request: pytest.FixtureRequest, peer_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Server]]:
    """lcpd and llama-server with a model whose vocabulary does or does not separate files."""
    model = infill_model(dirs().cache / "tests", files=request.param)
    equal = Equal(model, 1, ctx=1024, batch=256, ubatch=128, flash_attn="off", environment={"OMP_NUM_THREADS": "1"})
    folder = tmp_path_factory.mktemp("servers")
    with run_lcpd(equal, folder) as lcpd, run_peer(equal, peer_binary, folder, ("--no-cache-prompt",)) as peer:
        yield [lcpd, peer]


def test_gaps_are_filled_alike(pair: list[Server]) -> None:
    for body in BODIES:
        whole = {"n_predict": 12, "temperature": 0, **body}
        ours, theirs = (httpx.post(f"{server.url}/infill", json=whole, timeout=120).json() for server in pair)
        assert {name: ours[name] for name in SAME} == {name: theirs[name] for name in SAME}, body
        wanted = {**whole, "response_fields": ["content", "timings/prompt_n", "nothing/there"]}
        ours, theirs = (httpx.post(f"{server.url}/infill", json=wanted, timeout=120).json() for server in pair)
        assert ours.keys() == theirs.keys()
        assert ours["content"] == theirs["content"]


def test_a_line_that_is_indented_less_ends_the_reply_at_once(pair: list[Server]) -> None:
    """llama-server looks at a line only one token after it began, and so may go on for longer."""
    body = {"input_prefix": "a", "input_suffix": "b", "n_indent": 2, "n_predict": 40, "temperature": 0}
    ours, theirs = (httpx.post(f"{server.url}/infill", json=body, timeout=120).json() for server in pair)
    assert (ours["content"], ours["stop_type"]) == ("\n", "limit")
    assert theirs["content"].startswith("\n")


def test_streams_are_alike(pair: list[Server]) -> None:
    body = {**BODIES[0], "n_predict": 12, "temperature": 0, "stream": True}
    replies = []
    for server in pair:
        lines = httpx.post(f"{server.url}/infill", json=body, timeout=120).text.split("\n\n")
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
        content = "".join(event["content"] for event in events)
        tokens = [token for event in events for token in event["tokens"]]
        replies.append((content, tokens, {name: events[-1][name] for name in SAME}))
        assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert replies[0] == replies[1]
