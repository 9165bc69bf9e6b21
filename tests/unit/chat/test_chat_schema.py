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
