"""Which schema a reply is to follow, and what of it llama.cpp would leave out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcpd.chat import schema as sc

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
WRAPPED = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}


def test_a_keyword_that_would_be_ignored_is_found_wherever_it_constrains():
    deep = {"type": "object", "properties": {"a": {"type": "array", "items": {"anyOf": [SCHEMA, {"not": {}}]}}}}
    assert sc.ignored_keyword(deep) == ("not", "#/properties/a/items/anyOf/1")
    assert sc.ignored_keyword({"$defs": {"x": {"type": "array", "uniqueItems": True}}}) == ("uniqueItems", "#/$defs/x")


OBJECT = {"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "number", "minimum": 0}, "minimum"),
        ({"minimum": 0}, "minimum"),
        ({"type": "string", "minimum": 0}, "minimum"),
        ({"type": "string", "pattern": "^a$", "maxLength": 3}, "maxLength"),
        ({"type": "string", "format": "date", "minLength": 3}, "minLength"),
        ({"$ref": "#/$defs/a", "maxLength": 3, "$defs": {"a": {"type": "string"}}}, "maxLength"),
        ({"anyOf": [OBJECT], "properties": {"b": {}}}, "properties"),
        ({"oneOf": [OBJECT], "anyOf": [OBJECT]}, "anyOf"),
        ({"enum": ["a"], "maxLength": 1}, "maxLength"),
        ({"type": "object", "required": ["a"]}, "required"),
        ({"required": ["a"]}, "required"),
        ({**OBJECT, "required": ["b"]}, "required"),
        ({**OBJECT, "allOf": [OBJECT]}, "allOf"),
        ({"type": "integer", "allOf": [{"minimum": 1}]}, "allOf"),
        ({"type": "string", "allOf": [{"minLength": 1}]}, "allOf"),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "string"}}}, "allOf"),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/a"}}}, "allOf"),
        ({"type": "array", "items": [{}, {}], "maxItems": 1}, "maxItems"),
        ({"type": "array", "items": {}, "prefixItems": [{}]}, "prefixItems"),
        ({"maxItems": 1}, "maxItems"),
        ({"type": ["number", "null"], "maximum": 1}, "maximum"),
    ],
)
def test_keywords_that_llama_cpp_passes_over_beside_others_are_found(schema, keyword):
    assert sc.ignored_keyword(schema) == (keyword, "#")


@pytest.mark.parametrize(
    "schema",
    [
        OBJECT,
        {"type": "integer", "minimum": 0, "exclusiveMaximum": 10},
        {"type": ["integer", "string", "null"], "minimum": 0, "maxLength": 3},
        {"type": "string", "format": "email", "minLength": 3},
        {"type": "string", "minLength": 0, "pattern": "^a$"},
        {"type": "object", "oneOf": [OBJECT, {"type": "object", "properties": {"b": {"const": 1}}}]},
        {"type": "array", "items": OBJECT, "minItems": 1, "maxItems": 3, "uniqueItems": False},
        {"type": "array", "prefixItems": [OBJECT]},
        {"allOf": [{"$ref": "#/$defs/a"}, OBJECT], "$defs": {"a": OBJECT}},
        {"allOf": [{"$ref": "#/$defs/a"}], "title": "A", "$defs": {"a": {"enum": [1, 2], "type": "integer"}}},
        {"enum": ["a", "b"], "type": "string"},
        {"const": 1},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"properties": {"a": {"$ref": "#"}}, "description": "x", "default": {}, "examples": [1], "$schema": "x"},
        {"type": "object", "properties": {}, "required": []},
        {},
    ],
)
def test_schemas_that_are_obeyed_pass(schema):
    assert sc.ignored_keyword(schema) is None


@pytest.mark.parametrize(
    ("keyword", "value", "wanted"),
    [
        ("required", 5, "a list of texts"),
        ("required", True, "a list of texts"),
        ("required", [["a"]], "a list of texts"),
        ("allOf", 5, "a list of schemas"),
        ("anyOf", {}, "a list of schemas"),
        ("oneOf", [5], "a list of schemas"),
        ("prefixItems", "a", "a list of schemas"),
        ("items", 5, "a schema or a list of schemas"),
        ("items", [{}, None], "a schema or a list of schemas"),
        ("additionalProperties", "no", "a schema"),
        ("properties", [], "an object of schemas"),
        ("properties", {"a": 5}, "an object of schemas"),
        ("$defs", 5, "an object of schemas"),
        ("definitions", {"a": []}, "an object of schemas"),
        ("$ref", 5, "a text"),
        ("pattern", {}, "a text"),
        ("format", 5, "a text"),
        ("type", {}, "a text or a list of texts"),
        ("type", [["string"]], "a text or a list of texts"),
        ("enum", "a", "a list"),
        ("minLength", "1", "a whole number of at least 0"),
        ("maxItems", -1, "a whole number of at least 0"),
        ("maxLength", True, "a whole number of at least 0"),
        ("exclusiveMinimum", True, "a number"),
        ("maximum", "5", "a number"),
    ],
)
def test_a_keyword_of_another_shape_is_found_with_its_place_and_what_it_must_be(keyword, value, wanted):
    assert sc.malformed({keyword: value}) == (keyword, "#", wanted)
    inside = {"type": "object", "properties": {"a": {"items": [{}, {keyword: value}]}}}
    assert sc.malformed(inside) == (keyword, "#/properties/a/items/1", wanted)


def test_null_and_what_constrains_nothing_have_any_shape():
    assert sc.malformed({**OBJECT, "required": None, "properties": None, "title": 5, "examples": 5, "x": []}) is None
    assert sc.ignored_keyword({"type": "object", "required": None, "properties": None}) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | st.sampled_from(["string", "array", "#", "#/a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["a", "type", "format", "not", "$defs", "definitions", *sorted(sc.CONSTRAINTS)]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
SCHEMAS = st.dictionaries(st.sampled_from(["a", "type", "$defs", *sorted(sc.CONSTRAINTS)]), JSON, max_size=4)


@settings(max_examples=300, deadline=None)
@given(SCHEMAS)
def test_any_json_can_be_judged(schema):
    for keyword, path, *_ in filter(None, [sc.malformed(schema) or sc.ignored_keyword(schema)]):
        assert keyword in sc.CONSTRAINTS | {"type", "format", "$defs", "definitions"}
        assert path.startswith("#")
    sc.patterns(schema)


@pytest.mark.parametrize("schema", [OBJECT, WRAPPED, {"items": True}, {"minimum": 0.5}, {"anyOf": [True, {}]}])
def test_what_is_well_formed_passes(schema):
    assert sc.malformed(schema) is None


def test_property_names_and_values_are_no_keywords():
    names = {"type": "object", "properties": {"not": {"type": "string"}, "pattern": {"enum": [{"if": 1}]}}}
    assert sc.ignored_keyword(names) is None
    assert sc.patterns(names) == []
    assert sc.ignored_keyword({"type": "array", "uniqueItems": False}) is None


def test_patterns_are_found_with_their_place():
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^x$"}}}
    assert sc.patterns(schema) == [("^x$", "#/properties/a")]


@pytest.mark.parametrize(
    ("fields", "schema"),
    [
        ({"response_format": WRAPPED}, SCHEMA),
        ({"response_format": {"type": "json_object"}}, {}),
        ({"response_format": {"type": "text"}}, None),
        ({"json_schema": SCHEMA}, SCHEMA),
        ({"grammar": "x"}, None),
        ({}, None),
    ],
)
def test_the_schema_that_a_request_asks_for(fields, schema):
    assert sc.asked_schema(fields) == schema
