"""Solo runs of lcpd give the text of llama-server built from the same source with the same settings."""

from __future__ import annotations

import pytest
from peer_pair import Json, Pair
from peer_prompts import CASES, GREEDY, SEEDED, Case

pytestmark = pytest.mark.peer

MODELS = ("demo:smollm2", "demo:gemma3", "demo:hybrid")
PAIRS = [
    pytest.param((ref, flash_attn), id=f"{ref.removeprefix('demo:')}-flash-{flash_attn}")
    for ref in MODELS
    for flash_attn in ("off", "on")
]


@pytest.mark.parametrize("pair", PAIRS, indirect=True)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("sampling", [pytest.param(GREEDY, id="greedy"), pytest.param(SEEDED, id="seeded")])
def test_the_reply_is_that_of_llama_server(pair: Pair, case: Case, sampling: Json) -> None:
    ours, theirs = pair.ask_both(case.path, {**case.body, **sampling})
    assert ours == theirs


@pytest.mark.parametrize("pair", PAIRS, indirect=True)
def test_a_prompt_of_several_batches_is_among_the_cases(pair: Pair) -> None:
    case = next(case for case in CASES if case.name == "text-long")
    assert pair.ask_lcpd(case.path, {**case.body, **GREEDY, "max_tokens": 1}).prompt_tokens > pair.batch


@pytest.mark.parametrize("pair", PAIRS, indirect=True)
def test_the_comparison_notices_another_seed(pair: Pair) -> None:
    case = CASES[0]
    ours = pair.ask_lcpd(case.path, {**case.body, **SEEDED})
    theirs = pair.ask_peer(case.path, {**case.body, **SEEDED, "seed": 43})
    assert ours.text != theirs.text


@pytest.mark.parametrize("pair", PAIRS, indirect=True)
def test_the_comparison_notices_another_prompt(pair: Pair) -> None:
    case, other = CASES[0], CASES[1]
    ours = pair.ask_lcpd(case.path, {**case.body, **GREEDY})
    theirs = pair.ask_peer(other.path, {**other.body, **GREEDY})
    assert ours.text != theirs.text
