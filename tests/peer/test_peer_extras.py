"""Tokens, prompts and properties are those of llama-server."""

from __future__ import annotations

import httpx
import pytest
from peer_pair import Json, Pair
from peer_prompts import CASES

from support import READ_FILE

pytestmark = pytest.mark.peer

MODELS = ("demo:smollm2", "demo:gemma3", "demo:hybrid")
PAIRS = [pytest.param((ref, "off"), id=ref.removeprefix("demo:")) for ref in MODELS]
CONTENTS = [
    "",
    "hello world",
    "naïve 😀 \u4f60\u597d\n\tdef f():",
    "<|im_start|>system\nx<|im_end|>",
    "<start_of_turn>user\nx<end_of_turn>",
    ["hello", 5, " world"],
    [7, "hello", "again"],
]
FLAGS = [{}, {"add_special": True}, {"parse_special": False}, {"add_special": True, "with_pieces": True}]
USER = {"role": "user", "content": "Read a.py"}
CALL = {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a.py"}'}}
CHATS: list[Json] = [
    {"messages": [USER]},
    {"messages": [{"role": "system", "content": "Be brief."}, USER]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
    {"messages": [USER], "add_generation_prompt": False},
    {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [USER, {"role": "assistant", "content": "Yes"}, USER]},
]
TOOL_CHATS: list[Json] = [
    {"messages": [USER], "tools": [READ_FILE]},
    {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "x = 1"},
        ],
        "tools": [READ_FILE],
    },
]


def both(pair: Pair, path: str, body: Json) -> tuple[Json, Json]:
    answers = [httpx.post(server.url + path, json=body, timeout=60) for server in (pair.lcpd, pair.peer)]
    assert [answer.status_code for answer in answers] == [200, 200], [answer.text for answer in answers]
    ours, theirs = (answer.json() for answer in answers)
    return ours, theirs


@pytest.mark.parametrize("pair", PAIRS, indirect=True)
def test_tokens_and_their_texts_are_the_same(pair: Pair) -> None:
    for content in CONTENTS:
        for flags in FLAGS:
            ours, theirs = both(pair, "/tokenize", {"content": content, **flags})
            assert ours == theirs, (content, flags)


@pytest.mark.parametrize("pair", PAIRS, indirect=True)
def test_texts_of_tokens_are_the_same(pair: Pair) -> None:
    for tokens in ([], [0, 1, 2, 3], list(range(5, 400)), [300, 299, 298]):
        ours, theirs = both(pair, "/detokenize", {"tokens": tokens})
        assert ours == theirs, tokens


@pytest.mark.parametrize("pair", PAIRS, indirect=True)
def test_prompts_of_chats_are_the_same(pair: Pair) -> None:
    bodies = [*CHATS, *(TOOL_CHATS if _caps(pair)["supports_tools"] else [])]
    bodies += [case.body for case in CASES if "messages" in case.body]
    for body in bodies:
        ours, theirs = both(pair, "/apply-template", body)
        assert ours == theirs, body


@pytest.mark.parametrize("pair", PAIRS, indirect=True)
def test_the_properties_that_clients_read_are_the_same(pair: Pair) -> None:
    ours, theirs = (httpx.get(server.url + "/props", timeout=60).json() for server in (pair.lcpd, pair.peer))
    names = ("total_slots", "modalities", "chat_template", "chat_template_caps", "bos_token", "eos_token")
    assert {name: ours[name] for name in names} == {name: theirs[name] for name in names}
    generation, their_generation = (props["default_generation_settings"] for props in (ours, theirs))
    assert generation["n_ctx"] == their_generation["n_ctx"]
    params, their_params = generation["params"], their_generation["params"]
    # llama-server tells "none" there whatever it does; here it is what a chat without the field gets.
    assert params.pop("reasoning_format") == "deepseek"
    del their_params["reasoning_format"]
    assert {name: params[name] for name in their_params} == their_params


def _caps(pair: Pair) -> Json:
    caps: Json = httpx.get(pair.peer.url + "/props", timeout=60).json()["chat_template_caps"]
    return caps
