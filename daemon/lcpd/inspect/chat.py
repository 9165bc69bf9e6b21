"""What a chat template can do, from its text alone: it is neither rendered nor parsed.

A Jinja template says what it knows by the names it uses: `tools` where it can describe tools, `enable_thinking` where
thinking can be switched.  So its code is looked through for names, and its texts for roles and marks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lcpd.inspect.metadata import Metadata

DEFAULT_KEY = "tokenizer.chat_template"
_CLOSING = {"{%": "%}", "{{": "}}", "{#": "#}"}
_LITERAL = re.compile(r"'[^']*'|\"[^\"]*\"")
_SYSTEM_REFUSED = re.compile(r"system role (is )?not supported", re.IGNORECASE)


@dataclass(frozen=True)
class ChatTemplate:
    """The template of a model, and what it can do."""

    length: int
    """Characters."""
    tools: bool
    """Whether it tells the model of tools."""
    tool_calls: bool
    """Whether it shows the model its earlier tool calls."""
    system: bool
    """Whether it takes messages of the system role."""
    thinking: str
    """"no", "yes" (always, or as the model likes), "switched by NAME"."""
    variants: tuple[str, ...]
    """Names of further templates in the file, such as tool_use, which llama.cpp takes where tools are given."""


_SWITCHES = ("enable_thinking", "thinking_budget", "reasoning_effort", "thinking", "reasoning")
_THINKING_MARKS = ("<think>", "</think>", "[THINK]", "<|channel|>analysis", "reasoning_content", "<seed:think>")


def chat_template(metadata: Metadata) -> ChatTemplate | None:
    """The template of a model; None where the file has none.  Raises ShapeError for one that is no text."""
    text = metadata.text(DEFAULT_KEY)
    if text is None:
        return None
    prefix = f"{DEFAULT_KEY}."
    named = sorted(key.removeprefix(prefix) for key in metadata.values if key.startswith(prefix))
    return read_template(text, tuple(named))


def read_template(text: str, variants: tuple[str, ...] = ()) -> ChatTemplate:
    """What a template can do; takes time in proportion to its length."""
    code, literals = _code(text)
    variables = frozenset(re.findall(r"(?<![\w.])[A-Za-z_]\w*", code))
    names = variables | frozenset(re.findall(r"\.([A-Za-z_]\w*)", code))
    switch = next((name for name in _SWITCHES if name in variables), None)
    thinks = switch is not None or "reasoning_content" in names or any(mark in text for mark in _THINKING_MARKS)
    refused = _SYSTEM_REFUSED.search(text) is not None
    return ChatTemplate(
        length=len(text),
        tools="tools" in variables,
        tool_calls="tool_calls" in names or "tool_calls" in literals,
        system=not refused and ("system" in literals or "role" in names),
        thinking=f"switched by {switch}" if switch else "yes" if thinks else "no",
        variants=variants,
    )


def _code(text: str) -> tuple[str, frozenset[str]]:
    """What is between braces, without its texts and comments; and its texts."""
    parts: list[str] = []
    literals: set[str] = set()
    begin = text.find("{")
    while begin >= 0:
        closing = _CLOSING.get(text[begin : begin + 2])
        if closing is None:
            begin = text.find("{", begin + 1)
            continue
        end = text.find(closing, begin + 2)
        if end < 0:
            break
        if closing != "#}":
            part = text[begin + 2 : end]
            literals.update(literal[1:-1] for literal in _LITERAL.findall(part))
            # `message['role']` is a name as well as `message.role` is.
            parts.append(_LITERAL.sub(lambda found: "role" if found[0][1:-1] == "role" else "''", part))
        begin = text.find("{", end + 2)
    return "\n".join(parts), frozenset(literals)
