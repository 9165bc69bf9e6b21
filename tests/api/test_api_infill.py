"""/infill over the fakes: shapes, limits of the reply, and what is refused."""

from __future__ import annotations

import json

import pytest

from fakes.api import context_of
from lcpd.api.cutting import Cutter, Limits
from lcpd.api.infill import only

GAP = {"input_prefix": "def f(", "input_suffix": ")"}


async def post(client, body, status=200):
    response = await client.post("/infill", json=body)
    answer = await response.json()
    assert response.status == status, answer
    return answer


async def test_a_gap_is_filled_in_llama_servers_shape(make_client):
    client = await make_client({"reply": "x: int"})
    answer = await post(client, {**GAP, "prompt": "a", "model": "fake"})
    assert (answer["content"], answer["stop"], answer["stop_type"]) == ("x: int", True, "eos")
    assert (answer["tokens_predicted"], answer["tokens"]) == (7, [])
    assert answer["tokens_evaluated"] == len("def f(a[gap])")
    assert answer["timings"]["prompt_n"] == answer["tokens_evaluated"]
    assert (answer["has_new_line"], answer["truncated"]) == (False, False)
    answer = await post(client, {**GAP, "max_tokens": 2, "return_tokens": True, "n_probs": 1})
    assert (answer["content"], answer["stop_type"], answer["tokens"]) == ("x:", "limit", [*b"x:"])
    answer = await post(client, {**GAP, "stop": ["int"], "response_fields": ["content", "stopping_word", "a/b"]})
    assert answer == {"content": "x: ", "stopping_word": "int"}
    # Editors compute a prompt ahead so.
    answer = await post(client, {**GAP, "n_predict": 0, "t_max_predict_ms": 1, "samplers": [], "response_fields": [""]})
    assert answer == {}


async def test_a_stream_ends_with_what_there_is_to_tell(make_client):
    client = await make_client({"reply": "x: int"})
    response = await client.post("/infill", json={**GAP, "stream": True})
    lines = [line for line in (await response.text()).split("\n\n") if line]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert "".join(event["content"] for event in events) == "x: int"
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert [token for event in events for token in event["tokens"]][:6] == [*b"x: int"]
    assert events[-1]["stop_type"] == "eos"


async def test_a_reply_ends_before_a_line_that_is_indented_less(make_client):
    client = await make_client({"reply": "x\n    y\n  z and more"})
    answer = await post(client, {**GAP, "n_indent": 4})
    assert (answer["content"], answer["stop_type"], answer["has_new_line"]) == ("x\n    y\n  ", "limit", True)
    assert context_of(client).dispatcher.waiting == 0


async def test_who_asks_again_after_a_reply_that_was_cut_gets_another_one(make_client):
    client = await make_client({"reply": "x\n    y\n  z and more" * 20, "decode_seconds": 0.001})
    registry = context_of(client).metrics.registry
    generated = []
    for _ in range(2):
        await post(client, {**GAP, "n_indent": 4})
        generated.append(registry.get_sample_value("lcpd_generation_tokens_total"))
    again = generated[1] - generated[0]
    assert again >= len("x\n    y\n  z")


WRONG = [
    ({"input_suffix": ""}, "input_prefix"),
    ({"input_prefix": ""}, "input_suffix"),
    ({**GAP, "input_prefix": 1}, "input_prefix"),
    ({**GAP, "prompt": ["a"]}, "prompt"),
    ({**GAP, "input_extra": {}}, "input_extra"),
    ({**GAP, "input_extra": [{"filename": "a"}]}, "input_extra[0].text"),
    ({**GAP, "input_extra": [{"text": "a", "filename": 1}]}, "input_extra[0].filename"),
    ({**GAP, "n_indent": -1}, "n_indent"),
    ({**GAP, "t_max_predict_ms": "soon"}, "t_max_predict_ms"),
    ({**GAP, "samplers": ["infill"]}, "samplers"),
    ({**GAP, "samplers": ["infill", "top_k"]}, "samplers"),
    ({**GAP, "samplers": ["top_k", "infill"], "top_k": 0}, "top_k"),
    ({**GAP, "samplers": ["top_k", "Infill"], "top_k": 101}, "top_k"),
    ({**GAP, "samplers": "ki", "top_k": -1}, "top_k"),
    ({**GAP, "n": 2}, "n"),
    ({**GAP, "temperature": -1}, "temperature"),
]


async def test_what_is_wrong_is_named(make_client):
    client = await make_client()
    for body, param in WRONG:
        assert (await post(client, body, 400))["error"]["param"] == param, body
    good = {**GAP, "samplers": ["top_k", "top_p", "infill"], "input_extra": [{"text": "a"}], "t_max_prompt_ms": 500}
    await post(client, {**good, "n_predict": 3})


async def test_a_model_without_the_tokens_says_which(make_client):
    client = await make_client()
    context_of(client).chat.info["infill_lacks"] = ["prefix", "middle"]
    error = (await post(client, GAP, 501))["error"]
    assert "prefix token is missing. middle token is missing." in error["message"]
    assert error["type"] == "not_supported_error"


def cut(pieces, indent=0, seconds=0.0, elapsed=0.0):
    cutter = Cutter(Limits(indent, seconds))
    sent = "".join(cutter.push(piece, elapsed) for piece in pieces) + cutter.finish()
    assert sent == cutter.text
    return sent, cutter.over


@pytest.mark.parametrize(
    ("text", "indent", "expected"),
    [
        ("a\n  b\n  c", 2, "a\n  b\n  c"),
        ("a\n  b\nc", 2, "a\n  b\n"),
        ("a\n\t b\n c\n", 2, "a\n\t b\n "),
        ("a\n\n  b", 2, "a\n"),
        ("a\n ", 2, "a\n "),
        ("a\nb", 0, "a\nb"),
    ],
)
def test_indentation_is_looked_at_however_the_text_comes(text, indent, expected):
    for size in range(1, len(text) + 1):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert cut(pieces, indent) == (expected, expected != text)


def test_time_is_up_at_the_next_line_break():
    assert cut(["a", "b\nc", "d"], seconds=1.0, elapsed=2.0) == ("ab\nc", True)
    assert cut(["a", "b\nc", "d"], seconds=3.0, elapsed=2.0) == ("ab\ncd", False)
    assert cut(["a", "b\nc", "d"], seconds=-1.0, elapsed=2.0) == ("ab\ncd", False)


def test_fields_are_found_by_their_paths():
    told = {"a": {"b": 1, "c": {"d": 2}}, "e": 0}
    assert only(told, ["a/b", "a/c", "e", "e/f", "g"]) == {"a/b": 1, "a/c": {"d": 2}, "e": 0}
