"""Changing values in JSON with comments, and nothing else: comments, order, indentation and line ends stay.

Pure functions from text to text.  Comments (// and /* */), trailing commas and a byte order mark are taken, because
OpenCode, Claude Code, Qwen Code and editors do so.

Written here because no library on PyPI does it (November 2026): jsonc-edit runs Node.js and fetches a package with npm;
json-five keeps comments, but leaves it to the caller to place white space and commas; the others only read.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from lcpd.connect.edits import MISSING, EditError, Member, Missing, Place, Step, spelled

_BLANK = re.compile(r"(?:[ \t\r\n\ufeff]|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_REST_OF_LINE = re.compile(r"[ \t]*(?:/\*[^\n]*?\*/[ \t]*)*(?://[^\r\n]*)?")
_ATOM = re.compile(r"[-+.\w]+")
_DEEPEST = 200


@dataclass
class _Node:
    """A value in the text, from `start` to `end`."""

    start: int
    end: int = 0
    value: Any = None
    """Of what is neither an object nor a list."""
    kind: str = "atom"
    entries: list[_Entry] = field(default_factory=list)
    """Of an object or a list."""


@dataclass
class _Entry:
    """A member of an object, with its key, or an element of a list; it begins at `start`."""

    start: int
    key: str | None
    node: _Node
    comma: int | None = None
    """Where the comma behind it is."""


def get(text: str, place: Place) -> Any:
    """The value at a place, or MISSING.  Raises EditError where the text is no JSON object."""
    found, rest = _walk(_root(text), place)
    return MISSING if rest else _plain(found[-1])


def put(text: str, place: Place, value: Any) -> str:
    """The text with a value set; what is missing on the way is made.  Raises EditError."""
    if not _BLANK.sub("", text):
        gap = "\n" if "/" in text and not text.endswith("\n") else ""
        text = f"{text}{gap}{{}}\n"
    chain, rest = _walk(_root(text), place)
    node = chain[-1]
    if not rest:
        if _plain(node) == value and type(_plain(node)) is type(value):
            return text
        return text[: node.start] + _written(value, text, _indent_at(text, node.start)) + text[node.end :]
    step = rest[0]
    if node.kind != ("object" if isinstance(step, str) else "list"):
        where = spelled(place[: len(place) - len(rest)])
        raise EditError(f"{where} is no {'object' if isinstance(step, str) else 'list'}: correct or remove it first")
    return _insert(text, node, step, _nested(rest[1:], step, value))


def drop(text: str, place: Place) -> str:
    """The text without the value at a place; the same where there is none.  Raises EditError."""
    chain, rest = _walk(_root(text), place)
    if rest:
        return text
    parent, node = chain[-2], chain[-1]
    index = next(i for i, entry in enumerate(parent.entries) if entry.node is node)
    entry = parent.entries[index]
    end = entry.node.end if entry.comma is None else entry.comma + 1
    if not index:
        start = parent.start + 1
        if len(parent.entries) == 1 and "/" not in text[start : entry.start] + text[end : parent.end - 1]:
            end = parent.end - 1
        elif "/" in text[start : entry.start]:
            start = entry.start
        return text[:start] + text[end:]
    comma = parent.entries[index - 1].comma
    assert comma is not None, "there is a comma between two entries"
    start = comma + 1
    if (line := _REST_OF_LINE.match(text, start)) and line.end() < entry.start:
        start = line.end()
    if entry.comma is not None:
        return text[:start] + text[end:]
    return text[:comma] + text[comma + 1 : start] + text[end:]


def is_empty(text: str, place: Place) -> bool:
    """Whether there is an empty object or list at a place; of a member its own key does not count."""
    chain, rest = _walk(_root(text), place)
    if rest or chain[-1].kind == "atom":
        return False
    own = place[-1].key if place and isinstance(place[-1], Member) else None
    return all(own is not None and entry.key == own for entry in chain[-1].entries)


# ---- reading ---------------------------------------------------------------------------------------------


def _root(text: str) -> _Node:
    at = _skip(text, 0)
    if at == len(text):
        return _Node(at, at, kind="object")
    node = _value(text, at, 0)
    if (rest := _skip(text, node.end)) < len(text):
        raise _wrong(text, rest)
    if node.kind != "object":
        raise EditError("it holds no JSON object")
    return node


def _value(text: str, at: int, depth: int) -> _Node:
    if depth > _DEEPEST:
        raise EditError(f"it is nested deeper than {_DEEPEST} levels")
    opening = text[at : at + 1]
    if opening in ("{", "["):
        return _container(text, at, depth)
    node = _Node(at)
    if opening == '"':
        try:
            node.value, node.end = json.decoder.scanstring(text, at + 1, False)  # type: ignore[attr-defined]
        except ValueError as error:
            raise _wrong(text, at) from error
        return node
    atom = _ATOM.match(text, at)
    try:
        node.value = json.loads(atom[0] if atom else "")
    except ValueError as error:
        raise _wrong(text, at) from error
    node.end = at + len(atom[0]) if atom else at
    return node


def _container(text: str, start: int, depth: int) -> _Node:
    is_object = text[start] == "{"
    node = _Node(start, kind="object" if is_object else "list")
    closing = "}" if is_object else "]"
    at = _skip(text, start + 1)
    while text[at : at + 1] != closing:
        if node.entries and node.entries[-1].comma is None:
            raise _wrong(text, at)
        begin, key = at, None
        if is_object:
            name = _value(text, at, depth + 1)
            colon = _skip(text, name.end)
            if not isinstance(name.value, str) or text[colon : colon + 1] != ":":
                raise _wrong(text, at)
            key, at = name.value, _skip(text, colon + 1)
        entry = _Entry(begin, key, _value(text, at, depth + 1))
        node.entries.append(entry)
        at = _skip(text, entry.node.end)
        if text[at : at + 1] == ",":
            entry.comma = at
            at = _skip(text, at + 1)
    node.end = at + 1
    return node


def _skip(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def _wrong(text: str, at: int) -> EditError:
    line = text.count("\n", 0, at) + 1
    return EditError(f"it is no valid JSON in line {line}: correct it first")


def _plain(node: _Node) -> Any:
    if node.kind == "object":
        return {entry.key: _plain(entry.node) for entry in node.entries}
    if node.kind == "list":
        return [_plain(entry.node) for entry in node.entries]
    return node.value


def _walk(root: _Node, place: Place) -> tuple[list[_Node], Place]:
    """The nodes on the way to a place as far as there are any, and the rest of the way."""
    chain = [root]
    for index, step in enumerate(place):
        child = _child(chain[-1], step)
        if isinstance(child, Missing):
            return chain, place[index:]
        chain.append(child)
    return chain, ()


def _child(node: _Node, step: Step) -> _Node | Missing:
    # Where a key comes twice, the last one counts.
    for entry in reversed(node.entries):
        if isinstance(step, str):
            if node.kind == "object" and entry.key == step:
                return entry.node
        elif node.kind == "list" and entry.node.kind == "object":
            named = _child(entry.node, step.key)
            if isinstance(named, _Node) and named.value == step.value:
                return entry.node
    return MISSING


# ---- writing ---------------------------------------------------------------------------------------------


def _nested(steps: Place, above: Step, value: Any) -> Any:
    """`value` inside of what is missing around it; `above`: the step that leads to it."""
    if steps:
        inner = _nested(steps[1:], steps[0], value)
        value = {steps[0]: inner} if isinstance(steps[0], str) else [inner]
    if isinstance(above, Member):
        return {above.key: above.value, **value}
    return value


def _insert(text: str, parent: _Node, step: Step, value: Any) -> str:
    """The text with a further entry at the end of a container."""
    end = "\r\n" if "\r\n" in text else "\n"
    outer = _indent_at(text, parent.start)
    last = parent.entries[-1] if parent.entries else None
    inline = last is not None and "\n" not in text[parent.start : last.start]
    inner = _indent_at(text, last.start) if last and not inline else outer + _unit(text)
    entry = _written(value, text, outer if inline else inner)
    if isinstance(step, str):
        entry = f"{json.dumps(step, ensure_ascii=False)}: {entry}"
    if last is None:
        at = parent.start + 1
        closing = "" if "\n" in text[at : parent.end - 1] else f"{end}{outer}"
        return f"{text[:at]}{end}{inner}{entry}{closing}{text[at:]}"
    if last.comma is None:
        after = last.node.end
        text, comma = f"{text[:after]},{text[after:]}", after
    else:
        comma = last.comma
    at = comma + 1
    if inline:
        return f"{text[:at]} {entry}{text[at:]}"
    if rest := _REST_OF_LINE.match(text, at):
        at = rest.end()  # what is said about the last entry stays beside it
    return f"{text[:at]}{end}{inner}{entry}{text[at:]}"


def _written(value: Any, text: str, indent: str) -> str:
    end = "\r\n" if "\r\n" in text else "\n"
    lines = json.dumps(value, indent=_unit(text), ensure_ascii=False).split("\n")
    return f"{end}{indent}".join(lines)


def _indent_at(text: str, at: int) -> str:
    """The white space that the line of a position begins with."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    """One level of indentation, as the text has it."""
    found = re.search(r"^([ \t]+)[\"{\[]", text, re.MULTILINE)
    return found[1] if found else "  "
