"""What of a JSON schema llama.cpp would leave out without a word when it makes a grammar of it.  Pure functions.

A reply that is asked to follow a schema must follow it, or the request be refused.  (The schemas of tools are taken as
they are: they describe what is wanted more than they constrain it, and clients send all kinds of keywords there.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

IGNORED = frozenset(
    {
        "not",
        "if",
        "then",
        "else",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "uniqueItems",
        "contains",
        "minContains",
        "maxContains",
        "multipleOf",
    }
)
"""Keywords that constrain, and that llama.cpp does not know."""
_OF_NAMES = ("properties", "$defs", "definitions")
_OF_SCHEMAS = ("items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf")


def asked_schema(fields: Json) -> Json | None:
    """The schema that a request's reply is to follow; {} stands for any object."""
    schema: Any = fields.get("json_schema")
    match fields.get("response_format"):
        case {"type": "json_schema", "json_schema": {"schema": inner}}:
            schema = inner
        case {"type": "json_object", **others}:
            schema = others.get("schema") or {}
    return schema if isinstance(schema, dict) else None


def ignored_keyword(schema: Json) -> tuple[str, str] | None:
    """The first keyword that would be ignored, and where it stands."""
    for path, part in parts(schema):
        for keyword in part:
            if keyword in IGNORED and part[keyword] is not False:
                return keyword, path
    return None


def patterns(schema: Json) -> list[tuple[str, str]]:
    """All patterns of strings, and where they stand."""
    return [(part["pattern"], path) for path, part in parts(schema) if isinstance(part.get("pattern"), str)]


def parts(schema: Any, path: str = "#") -> Iterator[tuple[str, Json]]:
    """A schema and all schemas in it, each with the path to it."""
    if not isinstance(schema, dict):
        return
    yield path, schema
    for key, value in schema.items():
        if key in _OF_NAMES and isinstance(value, dict):
            for name, inner in value.items():
                yield from parts(inner, f"{path}/{key}/{name}")
        elif key in _OF_SCHEMAS:
            for index, inner in enumerate(value) if isinstance(value, list) else ((None, value),):
                yield from parts(inner, f"{path}/{key}" if index is None else f"{path}/{key}/{index}")
