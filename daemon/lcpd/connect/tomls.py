"""Changing values in TOML, and nothing else.  Pure functions from text to text."""

from __future__ import annotations

from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from lcpd.connect.edits import MISSING, EditError, Place, spelled


def get(text: str, place: Place) -> Any:
    """The value at a place, or MISSING.  Raises EditError where the text is no TOML."""
    found: Any = _parsed(text).unwrap()
    for step in place:
        if not isinstance(found, dict) or step not in found:
            return MISSING
        found = found[step]
    return found


def put(text: str, place: Place, value: Any) -> str:
    """The text with a value set; tables that are missing on the way are made.  Raises EditError."""
    document = _parsed(text)
    table: Any = document
    for depth, step in enumerate(place[:-1], start=1):
        if step not in table:
            # A table that only holds tables needs no header of its own.
            table[step] = tomlkit.table(is_super_table=depth < len(place) - 1)
        table = table[step]
        if not isinstance(table, dict):
            raise EditError(f"{spelled(place[:depth])} is no table: correct or remove it first")
    if table.get(place[-1], MISSING) == value:
        return text
    table[place[-1]] = value
    return tomlkit.dumps(document)


def drop(text: str, place: Place) -> str:
    """The text without the value at a place; the same where there is none.  Raises EditError."""
    document = _parsed(text)
    table: Any = document
    for step in place[:-1]:
        if not isinstance(table, dict) or step not in table:
            return text
        table = table[step]
    if not isinstance(table, dict) or place[-1] not in table:
        return text
    del table[place[-1]]
    return tomlkit.dumps(document)


def is_empty(text: str, place: Place) -> bool:
    """Whether there is a table without anything in it at a place."""
    return bool(get(text, place) == {})


def _parsed(text: str) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(text)
    except TOMLKitError as error:
        raise EditError(f"it is no valid TOML: {error}: correct it first") from error
