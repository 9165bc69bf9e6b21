"""Tools that llama.cpp can make no grammar of."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcpd.chat.tool_schemas import PROPERTIES_MAX, blamed_on_tools, too_large


def body(*schemas, **fields):
    tools = [{"type": "function", "function": {"name": f"t{i}", "parameters": s}} for i, s in enumerate(schemas)]
    return json.dumps({"messages": [], "tools": tools, **fields}).encode()


def an_object(properties):
    return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(properties)}}


def test_as_many_properties_as_are_possible_are_tried():
    assert too_large(body(an_object(PROPERTIES_MAX), an_object(PROPERTIES_MAX))) is None


def test_more_are_refused_with_the_field_the_tool_and_the_remedy():
    problem = too_large(body(an_object(1), an_object(PROPERTIES_MAX + 1)))
    assert problem is not None
    assert problem.startswith("Field 'tools': an object of tools[1] ('t1', at #) has 2000 properties")
    assert problem.endswith("leave some out, or divide the tool")


def test_objects_inside_others_count_for_themselves():
    inner = {"type": "object", "properties": {"list": {"type": "array", "items": an_object(PROPERTIES_MAX + 1)}}}
    assert "at #/properties/list/items" in (too_large(body(inner)) or "")


@pytest.mark.parametrize("tools", [None, "text" * 9000, ["text" * 9000], [{"function": "text" * 9000}]])
def test_other_shapes_are_left_to_llama_cpp(tools):
    assert too_large(json.dumps({"tools": tools, "padding": "x" * 20_000}).encode()) is None


NAMES = ["function", "name", "parameters", "properties", "items", "anyOf", "$defs", "additionalProperties", "a"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("a", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(JSON)
def test_any_json_among_the_tools_can_be_judged(parameters):
    for tool in (parameters, {"function": {"parameters": parameters}}):
        asked = json.dumps({"tools": [{"padding": "x" * 20_000, **tool} if isinstance(tool, dict) else tool]})
        assert too_large(asked.encode().ljust(20_000)) is None
        assert blamed_on_tools("no user message", asked.encode()) == "no user message"


def test_a_refused_grammar_is_blamed_on_the_tools_that_it_was_made_of():
    problem = blamed_on_tools("failed to parse grammar", body(an_object(1)))
    assert problem.startswith("Field 'tools': ") and "(failed to parse grammar)" in problem


@pytest.mark.parametrize("asked", [body(), body(an_object(1), grammar="root ::= x")])
def test_a_grammar_that_was_sent_is_not(asked):
    assert blamed_on_tools("failed to parse grammar", asked) == "failed to parse grammar"


def test_other_refusals_stay_as_they_are():
    assert blamed_on_tools("no user message", body(an_object(1))) == "no user message"
