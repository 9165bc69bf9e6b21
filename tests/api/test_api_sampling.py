"""The sampling fields: what is refused and in which words, what is passed on, and to which of several replies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lcpd.api import sampling as s
from lcpd.api.bodies import ChatBody, CompletionBody, parse
from lcpd.api.errors import ApiError

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
WRAPPED = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}


def refusal(shape=ChatBody, **fields):
    """(field, message) of the error that these fields are refused with; None where they are taken."""
    base = {"messages": HI} if shape is ChatBody else {"prompt": "x"}
    try:
        parse(json.dumps({**base, **fields}).encode(), shape, 200)
    except ApiError as error:
        assert error.status == 400
        return error.param, error.message
    return None


NUMBERS = [(name, rule) for name, rule in s.RULES.items() if isinstance(rule, s.Number)]
WHOLES = [(name, rule) for name, rule in s.RULES.items() if isinstance(rule, s.Whole)]


def test_a_value_out_of_range_is_refused_in_plain_words():
    assert refusal(temperature=101) == ("temperature", "temperature must be between 0 and 100, not 101.")
    assert refusal(top_k="many") == (
        "top_k",
        'top_k must be a whole number between -1 and 2147483647, not "many".',
    )


@pytest.mark.parametrize(("name", "rule"), NUMBERS)
def test_every_number_is_taken_at_its_ends_and_refused_beyond(name, rule):
    assert refusal(**{name: rule.low}) is refusal(**{name: rule.high}) is None
    for wrong in (rule.low - 0.01, rule.high + 0.01, True, "1", [], 1e308):
        field, message = refusal(**{name: wrong})
        assert field == name
        assert rule.range in message


@pytest.mark.parametrize(("name", "rule"), WHOLES)
def test_every_whole_number_is_taken_at_its_ends_and_refused_beyond(name, rule):
    beside = {"n": rule.high} if name == "best_of" else {"logprobs": True} if name == "top_logprobs" else {}
    assert refusal(**{**beside, name: rule.high}) is None
    for wrong in (rule.low - 1, rule.high + 1, 1.5, True, "1", {}):
        field, message = refusal(**{**beside, name: wrong})
        assert field == name
        assert rule.range in message


@pytest.mark.parametrize("name", [name for name, rule in s.RULES.items() if isinstance(rule, s.Only)])
def test_what_is_not_offered_is_refused_with_a_reason_and_taken_where_it_asks_for_nothing(name):
    rule = s.RULES[name]
    field, message = refusal(**{name: 7})
    assert field == name
    assert message == f"{name} is not offered: {rule.reason}."
    for nothing in (*rule.values, None):
        assert refusal(**{name: nothing}) is None


def test_true_is_not_one_and_false_is_not_zero():
    assert refusal(n_keep=False) is not None
    assert refusal(echo=0) is not None


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("samplers", ["top_k", "magic"], 'no sampler "magic"'),
        ("samplers", "kz", 'no sampler "z"'),
        ("samplers", ["infill"], "square of the vocabulary"),
        ("samplers", "ki", "square of the vocabulary"),
        ("samplers", 3, "list of at most 32 names"),
        ("samplers", ["top_k"] * 33, "list of at most 32 names"),
        ("logit_bias", {"5": "much"}, "biases between -10000 and 10000, or false"),
        ("logit_bias", [[5, True]], "or false to ban a token, not true"),
        ("logit_bias", [[5]], "pairs"),
        ("logit_bias", [[None, 1]], "token ids or texts, not null"),
        ("logit_bias", {str(i): 1 for i in range(10_001)}, "at most 10000 entries"),
        ("dry_sequence_breakers", [], "1 to 64 strings"),
        ("dry_sequence_breakers", ["\n", ""], "none of them empty"),
        ("stop", ["x"] * 257, "at most 256 strings"),
        ("stop", [1], "at most 256 strings"),
        ("grammar", {"root": 1}, "must be a string"),
        ("json_schema", "{}", "must be a JSON schema"),
        ("response_format", {"type": "yaml"}, "text, json_object, json_schema"),
        ("response_format", "json", "must be an object"),
        ("response_format", {"type": "json_schema", "schema": SCHEMA}, '{"json_schema": {"schema": {...}}}'),
        ("response_format", {"type": "json_object", "schema": 3}, "a schema that is no object"),
        ("ignore_eos", 1, "true or false, not 1"),
        ("logprobs", 1, "true or false, not 1"),
    ],
)
def test_values_of_other_shapes(field, value, words):
    name, message = refusal(**{field: value})
    assert name == field
    assert words in message


@pytest.mark.parametrize(
    "value", ["dkypmxt", ["DRY", "top-k", "topk", "nucleus", "typ", "temp", "Adaptive_P", "penalties"], []]
)
def test_samplers_are_known_by_all_the_names_that_llama_cpp_takes(value):
    assert refusal(samplers=value) is None


def test_logprobs_are_a_flag_in_chats_and_a_number_in_text_completions():
    assert refusal(ChatBody, logprobs=True) is refusal(CompletionBody, logprobs=5) is None
    field, message = refusal(CompletionBody, logprobs=True)
    assert (field, message) == ("logprobs", "logprobs must be a whole number between 0 and 20, not true.")


@pytest.mark.parametrize(
    ("fields", "blamed"),
    [
        ({"grammar": 'root ::= "a"', "json_schema": SCHEMA}, "json_schema"),
        ({"json_schema": {}, "response_format": WRAPPED}, "response_format"),
        ({"grammar": 'root ::= "a"', "response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_two_shapes_for_one_reply_are_refused_not_chosen_from(fields, blamed):
    assert refusal(**fields)[0] == blamed


def test_a_shape_that_asks_for_nothing_may_stand_beside_another():
    assert refusal(grammar="", json_schema=SCHEMA, response_format={"type": "text"}) is None


def test_min_tokens_may_not_exceed_the_limit_that_is_in_force():
    assert refusal(min_tokens=8, max_tokens=8) is refusal(min_tokens=8) is refusal(min_tokens=8, max_tokens=-1) is None
    assert refusal(min_tokens=9, max_completion_tokens=8) == (
        "min_tokens",
        "min_tokens must be at most max_tokens (8), not 9.",
    )


def test_best_of_must_equal_n():
    assert refusal(n=3, best_of=3) is refusal(best_of=1) is None
    assert refusal(n=2, best_of=3)[0] == "best_of"


# ---- what is passed on -----------------------------------------------------------------------------------


def test_what_is_worked_on_here_or_changes_nothing_is_not_passed_on():
    plain = {"n": 2, "best_of": 2, "logprobs": True, "top_logprobs": 3, "priority": "background", "min_tokens": 1}
    plain |= dict.fromkeys(s.NO_EFFECT, True)
    assert s.engine_fields({**plain, "seed": 1, "mirostat": 2}, 0) == {"seed": 1, "mirostat": 2}
    assert s.engine_fields({"n_probs": 2}, 5) == {"n_probs": 5}


def test_a_null_or_empty_grammar_does_not_hide_a_schema():
    for nothing in (None, ""):
        assert s.engine_fields({"grammar": nothing, "json_schema": SCHEMA}, 0) == {"json_schema": SCHEMA}


@pytest.mark.parametrize(
    ("given", "schema"),
    [
        (WRAPPED, SCHEMA),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_object", "schema": SCHEMA}, SCHEMA),
    ],
)
def test_a_text_completion_obeys_response_format_too(given, schema):
    assert s.with_schema({"response_format": given, "seed": 1}) == {"json_schema": schema, "seed": 1}


def test_a_response_format_of_text_is_none():
    assert s.with_schema({"response_format": {"type": "text"}}) == {}


@pytest.mark.parametrize(
    ("seed", "index", "expected"),
    [(7, 0, 7), (7, 2, 9), (2**32 - 2, 3, 1), (2**40 + 5, 1, 6), (-1, 3, -1), (2**32 - 1, 3, 2**32 - 1)],
)
def test_a_seed_is_counted_up_from_reply_to_reply_and_a_random_one_stays_random(seed, index, expected):
    given = json.dumps({"seed": seed, "top_k": 3}).encode()
    assert json.loads(s.for_choice(given, index)) == {"seed": expected, "top_k": 3}


def test_without_a_seed_every_reply_has_a_random_one():
    assert s.for_choice(b'{"top_k":3}', 5) == b'{"top_k":3}'


# ---- documentation ---------------------------------------------------------------------------------------


def test_the_documentation_has_every_field_with_its_range():
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    for name, rule in s.RULES.items():
        line = next((row for row in text.splitlines() if row.startswith("|") and f"`{name}`" in row.split("|")[1]), "")
        assert line, f"docs/api.md does not have {name}"
        if isinstance(rule, s.Number | s.Whole):
            assert rule.range in line, f"docs/api.md: {name} must be {rule.range}"
    for name in s.NO_EFFECT:
        assert f"`{name}`" in text
