"""What of a JSON schema llama.cpp would leave out without a word when it makes a grammar of it.  Pure functions.

A reply that is asked to follow a schema must follow it, or the request be refused.  (The schemas of tools are taken as
they are: they describe what is wanted more than they constrain it, and clients send all kinds of keywords there.)

llama.cpp looks at one group of keywords of each schema, which the first of these chooses that is there, and at nothing
else (its json-schema.cpp)::

    $ref; oneOf or anyOf; const; enum; the type; without a type: properties, allOf, items, what strings have
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Json = dict[str, Any]

_NEVER = (
    *("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "patternProperties"),
    *("propertyNames", "minProperties", "maxProperties", "uniqueItems", "contains", "minContains", "maxContains"),
    *("multipleOf", "$dynamicRef"),
)
"""Keywords that constrain, and that llama.cpp does not know."""
_RANGE = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LENGTH = ("minLength", "maxLength")
_ITEMS = ("minItems", "maxItems")
CONSTRAINTS = frozenset(
    {
        *_NEVER, *_RANGE, *_LENGTH, *_ITEMS, "$ref", "oneOf", "anyOf", "allOf", "const", "enum", "properties",
        "required", "additionalProperties", "items", "prefixItems", "pattern",
    }
)  # fmt: skip
"""Keywords that say what is allowed.  Formats do not: a format that is not known is a remark."""
_FORMATS = ("date", "time", "date-time", "uuid", "uuid1", "uuid2", "uuid3", "uuid4", "uuid5")
_NOTHING: Mapping[str, Any] = {
    "uniqueItems": False, "minLength": 0, "minItems": 0, "minProperties": 0, "additionalProperties": True,
    "required": [], "properties": {},
}  # fmt: skip
"""Values that allow everything."""
_OF_NAMES = ("properties", "$defs", "definitions")
_OF_SCHEMAS = ("items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value % 1 == 0


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_list_of(is_item: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_item, value))


_Shape = tuple[str, Callable[[Any], bool]]
_TEXT: _Shape = ("a text", _is_text)
_TEXTS: _Shape = ("a list of texts", _is_list_of(_is_text))
_SCHEMAS: _Shape = ("a list of schemas", _is_list_of(_is_schema))
_NAMED: _Shape = (
    "an object of schemas",
    lambda value: isinstance(value, dict) and all(map(_is_schema, value.values())),
)
_SHAPES: Mapping[str, _Shape] = {
    "$ref": _TEXT,
    "pattern": _TEXT,
    "format": _TEXT,
    "type": ("a text or a list of texts", lambda value: _is_text(value) or _TEXTS[1](value)),
    "required": _TEXTS,
    "enum": ("a list", lambda value: isinstance(value, list)),
    "additionalProperties": ("a schema", _is_schema),
    "items": ("a schema or a list of schemas", lambda value: _is_schema(value) or _SCHEMAS[1](value)),
    **dict.fromkeys(("prefixItems", "anyOf", "oneOf", "allOf"), _SCHEMAS),
    **dict.fromkeys(_OF_NAMES, _NAMED),
    **dict.fromkeys((*_LENGTH, *_ITEMS), ("a whole number of at least 0", _is_size)),
    **dict.fromkeys(_RANGE, ("a number", _is_number)),
}
"""What the keywords must be that are read here or by llama.cpp.  A schema is an object, true or false."""


def asked_schema(fields: Json) -> Json | None:
    """The schema that a request's reply is to follow; {} stands for any object."""
    schema: Any = fields.get("json_schema")
    match fields.get("response_format"):
        case {"type": "json_schema", "json_schema": {"schema": inner}}:
            schema = inner
        case {"type": "json_object", **others}:
            schema = others.get("schema") or {}
    return schema if isinstance(schema, dict) else None


def malformed(schema: Json) -> tuple[str, str, str] | None:
    """The first keyword whose value is nothing that it can be, where it stands, and what it must be; null is absent."""
    for path, part in parts(schema):
        for keyword, value in part.items():
            if keyword in _SHAPES and value is not None:
                wanted, fits = _SHAPES[keyword]
                if not fits(value):
                    return keyword, path, wanted
    return None


def ignored_keyword(schema: Json) -> tuple[str, str] | None:
    """The first keyword that would be ignored, and where it stands.  Nothing in the schema may be `malformed`."""
    for path, part in parts(schema):
        obeyed = _obeyed(part)
        for keyword, value in part.items():
            if keyword in CONSTRAINTS and keyword not in obeyed and not _allows_all(keyword, value):
                return keyword, path
        names = part.get("properties") or {}
        if "required" in obeyed and not all(name in names for name in part.get("required") or []):
            return "required", path
        if "allOf" in obeyed and not all(_can_be_merged(one, schema) for one in part["allOf"] or []):
            return "allOf", path
    return None


def _allows_all(keyword: str, value: Any) -> bool:
    nothing = _NOTHING.get(keyword)
    return keyword in _NOTHING and value == nothing and type(value) is type(nothing)


def _obeyed(part: Json) -> tuple[str, ...]:
    """The keywords of a schema that llama.cpp looks at."""
    for first in ("$ref", "oneOf", "anyOf"):
        if first in part:
            return (first,)
    kinds = part.get("type")
    if isinstance(kinds, list):
        return tuple(keyword for kind in kinds for keyword in _obeyed({**part, "type": kind}))
    if "const" in part:
        return ("const", "enum")
    if "enum" in part:
        return ("enum",)
    shaped = "properties" in part or not _allows_all("additionalProperties", part.get("additionalProperties", True))
    text = [name for name in ("pattern", *_LENGTH) if name in part] or part.get("format") in _FORMATS
    match kinds:
        case None if shaped:
            return _OBJECT
        case None | "string" if "allOf" in part:
            return ("allOf",)
        case "object":
            return ("allOf",) if "allOf" in part and not shaped else _OBJECT
        case "string":
            return _obeyed_of_text(part)
        case "array":
            return _obeyed_of_list(part)
        case "integer":
            return _RANGE
        case None if "items" in part or "prefixItems" in part:
            return _obeyed_of_list(part)
        case None if text:
            return _obeyed_of_text(part)
    return ()


_OBJECT = ("properties", "required", "additionalProperties")


def _obeyed_of_text(part: Json) -> tuple[str, ...]:
    if part.get("pattern"):
        return ("pattern",)
    return () if part.get("format") in _FORMATS else _LENGTH


def _obeyed_of_list(part: Json) -> tuple[str, ...]:
    key = "items" if "items" in part else "prefixItems"
    # A list of schemas is a list of exactly so many items.
    return (key,) if isinstance(part.get(key), list) else (key, *_ITEMS)


def _can_be_merged(part: Any, root: Json, depth: int = 0) -> bool:
    """Whether llama.cpp can make one object or enumeration of this and others; it takes only these together."""
    if not isinstance(part, dict) or depth > _DEEPEST_REFERENCE:
        return False
    if isinstance(reference := part.get("$ref"), str):
        return _can_be_merged(_resolved(reference, root), root, depth + 1)
    for name in ("oneOf", "anyOf"):
        if isinstance(alternatives := part.get(name), list):
            return all(_can_be_merged(one, root, depth + 1) for one in alternatives)
    return "enum" in part or _obeyed(part) == _OBJECT


_DEEPEST_REFERENCE = 32


def _resolved(reference: str, root: Json) -> Any:
    found: Any = root
    for name in reference.removeprefix("#/").split("/"):
        found = found.get(name) if isinstance(found, dict) else None
    return found


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
