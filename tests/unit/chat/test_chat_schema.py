"""Which schema a reply is to follow, and what of it llama.cpp would leave out."""

from __future__ import annotations

import pytest

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
