"""What a client should be told about lengths: the context, and how much of it to count on."""

from __future__ import annotations

from dataclasses import dataclass

_MARGIN = 20
"""One token in so many is left over, because clients estimate lengths and no two of them alike."""
_MOST_OUTPUT = 8192


@dataclass(frozen=True)
class Limits:
    """Lengths in tokens."""

    context: int
    """What a prompt and its reply have together; a request of one slot can use all of it."""
    safe_context: int
    """The same with a margin: what a client that estimates its prompts should be configured for."""
    output: int
    """A reply's length to reserve: 8192, or a quarter of a short context."""


def limits_of(context: int, longest: int = 0) -> Limits:
    """The limits to tell for a context and a longest reply of so many tokens; the latter 0: the context's affair."""
    output = max(1, min(_MOST_OUTPUT, context // 4))
    return Limits(context, context - context // _MARGIN, min(output, longest or output))
