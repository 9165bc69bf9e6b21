"""What values a setting takes, in words, derived from the JSON schema of the settings."""

from __future__ import annotations

from functools import cache
from typing import Any

from lcpd.config.settings import Settings
from lcpd.config.sizes import LARGEST, format_size

_PLAIN = {"string": "text", "boolean": "true or false", "integer": "a whole number", "number": "a number"}


@cache
def schema() -> dict[str, Any]:
    """The JSON schema of ``lcpd.toml``."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "lcpd.toml",
        **{key: value for key, value in Settings.model_json_schema().items() if key != "title"},
    }


def schema_of(name: str) -> dict[str, Any]:
    """The JSON schema of the setting with the full name ``section.key``."""
    section, key = name.split(".")
    reference = schema()["properties"][section]["$ref"].rsplit("/", 1)[-1]
    found: dict[str, Any] = schema()["$defs"][reference]["properties"][key]
    return found


def allowed(name: str) -> str:
    """The values that the setting ``section.key`` takes, such as ``an integer from 1 to 64``."""
    return _in_words(schema_of(name))


def _in_words(part: dict[str, Any]) -> str:
    unit = f" of {part['unit']}" if "unit" in part else ""
    if "anyOf" in part:
        return " or ".join(_in_words(each) for each in part["anyOf"] if each.get("type") != "null")
    if "enum" in part:
        return "one of " + ", ".join(str(each) for each in part["enum"])
    if "const" in part:
        return f'"{part["const"]}"'
    if part.get("format") == "size":
        return 'a size such as "8GiB", "500MB" or 1024 (bytes),' + _bounds(part, format_size)
    if part.get("format") == "path":
        return "a path"
    if "pattern" in part:
        return f'text such as "{part["examples"][0]}"'
    if part["type"] == "array":
        return "a list; each: " + _in_words(part["items"])
    return _PLAIN[part["type"]] + unit + _bounds(part, str)


def _bounds(part: dict[str, Any], spell: Any) -> str:
    if part.get("minLength"):
        return ", not empty"
    low, high = part.get("minimum"), part.get("maximum")
    if "exclusiveMinimum" in part:
        more_than = f" above {spell(part['exclusiveMinimum'])}"
        return more_than if high is None else f"{more_than}, up to {spell(high)}"
    if low is None:
        return ""
    return f" from {spell(low)} up" if high in (None, LARGEST) else f" from {spell(low)} to {spell(high)}"
