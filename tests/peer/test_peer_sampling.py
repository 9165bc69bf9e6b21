"""Every sampling field does in lcpd what it does in llama-server: the same settings, the same texts."""

from __future__ import annotations

import json
import os
from typing import Any

import httpx
import pytest
from peer_pair import Json, Pair

from lcpd.build import require_active
from lcpd.models import resolve
from lcpd.paths import dirs

pytestmark = pytest.mark.peer

MODEL = "demo:smollm2"
PAIR = pytest.param((MODEL, "off"), id="smollm2")
SEEDED: Json = {"temperature": 1.1, "seed": 7, "max_tokens": 32}
WEATHER: Json = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}

FIELDS: dict[str, Json] = {
    "greedy": {"temperature": 0},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.5, "min_keep": 3},
    "min_p": {"min_p": 0.3, "top_k": 0},
    "typical": {"typical_p": 0.4},
    "top_n_sigma": {"top_n_sigma": 0.4},
    "xtc": {"xtc_probability": 0.7, "xtc_threshold": 0.05},
    "dynatemp": {"dynatemp_range": 0.8, "dynatemp_exponent": 1.4},
    "mirostat": {"mirostat": 1, "mirostat_tau": 3, "mirostat_eta": 0.2},
    "mirostat-2": {"mirostat": 2, "mirostat_tau": 4, "mirostat_eta": 0.15},
    "penalties": {"repeat_penalty": 1.3, "repeat_last_n": 32, "frequency_penalty": 0.5, "presence_penalty": -0.3},
    "dry": {"dry_multiplier": 1.5, "dry_base": 2, "dry_allowed_length": 1, "dry_penalty_last_n": 64},
    "dry-breakers": {"dry_multiplier": 1.5, "dry_sequence_breakers": ["e", "\n"], "dry_penalty_last_n": 64},
    "adaptive": {"samplers": ["min_p", "adaptive_p"], "adaptive_target": 0.4, "adaptive_decay": 0.8},
    "order": {"samplers": ["temperature", "min_p", "top_k"], "min_p": 0.1, "top_k": 10},
    "order-letters": {"samplers": "tkm", "min_p": 0.1, "top_k": 10},
    "bias": {"logit_bias": {"260": 4.5, " the": -2, "281": False}},
    "bias-pairs": {"logit_bias": [[260, 4.5], [" the", False]]},
    "ignore_eos": {"ignore_eos": True, "temperature": 0},
    "stop": {"stop": ["a", ". "]},
    "grammar": {"grammar": 'root ::= ("yes" | "no" | "maybe") (", " [a-z]+)*'},
    "json_schema": {"json_schema": WEATHER},
    "n_probs": {"n_probs": 3},
    "post_sampling_probs": {"n_probs": 3, "post_sampling_probs": True, "top_k": 4},
}
CASES = [pytest.param(fields, id=name) for name, fields in FIELDS.items()]
TEXTS = {"text": ("/v1/completions", {"prompt": "The weather in the north of the country is"})}
TEXTS["chat"] = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me about the weather."}]})


@pytest.fixture(scope="module")
def evaluated() -> Any:
    """Fields -> the settings that the bridge makes of them."""
    os.environ["LLAMA_CPP_LIB_PATH"] = str(require_active().lib_dir)
    from lcpd.native import bridge
    from lcpd.native.log import LogCapture
    from lcpd.native.model import Model

    model = Model(resolve(MODEL, dirs()), LogCapture())
    params = bridge.Params("--jinja")
    yield lambda fields: bridge.Request(params, model.handle, json.dumps(fields).encode()).info()["settings"]
    model.close()


@pytest.mark.parametrize("pair", [PAIR], indirect=True)
@pytest.mark.parametrize("fields", CASES)
def test_the_fields_are_understood_alike(pair: Pair, evaluated: Any, fields: Json) -> None:
    body = {**SEEDED, **fields}
    answer = httpx.post(pair.peer.url + "/completion", json={"prompt": [1], **body, "max_tokens": 1}, timeout=120)
    theirs = answer.json()["generation_settings"]
    ours = evaluated({**body, "max_tokens": 1})
    assert {name: ours[name] for name in theirs} == theirs


@pytest.mark.parametrize("pair", [PAIR], indirect=True)
@pytest.mark.parametrize("fields", CASES)
@pytest.mark.parametrize("kind", list(TEXTS))
def test_the_text_is_that_of_llama_server(pair: Pair, kind: str, fields: Json) -> None:
    path, base = TEXTS[kind]
    ours, theirs = pair.ask_both(path, {**base, **SEEDED, **fields})
    assert ours == theirs


@pytest.mark.parametrize("pair", [PAIR], indirect=True)
def test_the_fields_change_the_text_so_that_the_comparison_means_something(pair: Pair) -> None:
    path, base = TEXTS["text"]
    texts = {name: pair.ask_lcpd(path, {**base, **SEEDED, **fields}).text for name, fields in FIELDS.items()}
    same = {"n_probs", "dry", "dry-breakers"}  # those that need not change anything here
    plain = pair.ask_lcpd(path, {**base, **SEEDED}).text
    assert {name for name, text in texts.items() if text == plain} <= same


@pytest.mark.parametrize("pair", [PAIR], indirect=True)
@pytest.mark.parametrize("post", [False, True])
def test_the_probabilities_are_those_of_llama_server(pair: Pair, post: bool) -> None:
    body = {"prompt": TEXTS["text"][1]["prompt"], **SEEDED, "n_probs": 3, "post_sampling_probs": post}
    ours, theirs = (
        httpx.post(server.url + "/v1/completions", json={**body, "cache_prompt": False}, timeout=120).json()
        for server in (pair.lcpd, pair.peer)
    )
    value, best = ("prob", "top_probs") if post else ("logprob", "top_logprobs")
    pairs = zip(_entries(ours), _entries(theirs), strict=True)
    for our, their in pairs:
        assert our["id"] == their["id"]
        assert our[value] == pytest.approx(their[value], abs=1e-3)
        assert [t["id"] for t in our[best]] == [t["id"] for t in their[best]]


def _entries(answer: Json) -> list[Json]:
    entries: list[Json] = answer["choices"][0]["logprobs"]["content"]
    return entries
