"""Settings as text: the effective values with their origins, the commented example, the JSON schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lcpd.config.describe import allowed, schema, schema_of
from lcpd.config.loader import Loaded, variable_of
from lcpd.config.settings import Settings, leaves, sections, value_of
from lcpd.config.sizes import format_size


def show(loaded: Loaded) -> str:
    """A TOML document with every effective value and, as a comment, where it came from.

    Read back as ``lcpd.toml`` it gives the same settings.
    """
    lines: list[str] = []
    for section, model in sections().items():
        lines += ["", f"[{section}]"]
        for key in model.model_fields:
            name = f"{section}.{key}"
            value = value_of(loaded.settings, name)
            entry = f"# {key} is not set" if value is None else f"{key} = {_toml(name, value)}"
            lines.append(f"{entry:<44}  # {loaded.origins[name]}")
    return "\n".join(lines[1:]) + "\n"


def show_json(loaded: Loaded) -> str:
    """For every ``section.key`` its value (sizes in bytes) and its origin, as JSON."""
    document = {
        name: {"value": _plain(value_of(loaded.settings, name)), "origin": loaded.origins[name]} for name in leaves()
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def schema_text() -> str:
    """The JSON schema of ``lcpd.toml``."""
    return json.dumps(schema(), indent=2) + "\n"


def example() -> str:
    """A ``lcpd.toml`` with every key, its default and its meaning, all commented out."""
    defaults = Settings()
    lines = [
        "# Settings of lcpd: every key with its default, commented out.  Take away the # to change one.",
        "# An environment variable (in brackets) beats this file, and a flag of `lcpd serve` beats both.",
        "# `lcpd config show` prints the effective values and where each came from.",
    ]
    for section, model in sections().items():
        lines += ["", f"# {model.__doc__}", f"[{section}]"]
        for key, field in model.model_fields.items():
            name = f"{section}.{key}"
            value = value_of(defaults, name)
            unset = value is None
            if unset:
                value = schema_of(name)["examples"][0]
            lines += [
                f"# {field.description}",
                f"#   {allowed(name)}{'; not set by default' if unset else ''}  [{variable_of(name)}]",
                f"#{key} = {_toml(name, value)}",
            ]
    return "\n".join(lines) + "\n"


def _toml(name: str, value: Any) -> str:
    if schema_of(name).get("format") == "size":
        value = format_size(value)
    # JSON's strings, numbers, booleans and lists are TOML, but for the DEL character.
    return json.dumps(_plain(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
