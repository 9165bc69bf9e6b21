"""Whether, and what, to compute ahead of a conversation's next turn: pure functions.

The next prompt is the conversation, the reply as history, and something new.  Templates write a reply in the history
in another way than it was generated (they leave its reasoning out, or write its tool calls anew), so that the slot,
which holds what was generated, is of no use from there on.  What the next prompt has in front of the new part is found
by rendering it with two different stand-ins for that part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lcpd.cache.trie import common_prefix
from lcpd.engine.protocol import Tokens
from lcpd.scheduler.slots import Span

Json = dict[str, Any]
MINIMUM = 64
"""Tokens that have to be saved."""
_STAND_INS = ("0", "yes")
"""Contents of which neither is the beginning of the other."""


@dataclass(frozen=True)
class Rendering:
    """A chat as tokens."""

    tokens: Tokens
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Ahead:
    """What to compute."""

    tokens: Tokens
    spans: tuple[Span, ...]
    """The last one begins where the new part does, which is where a checkpoint is wanted."""


def continuations(message: Json) -> tuple[list[Json], list[Json]]:
    """A reply (an OpenAI message) with two different things that a client could send after it."""
    first, second = (_continued(message, content) for content in _STAND_INS)
    return first, second


def _continued(message: Json, content: str) -> list[Json]:
    calls = message.get("tool_calls") or []
    if not calls:
        return [message, {"role": "user", "content": content}]
    return [message, *({"role": "tool", "tool_call_id": call.get("id") or "", "content": content} for call in calls)]


def goes_on(prompt: Rendering, generated: Tokens, next_turn: Rendering) -> bool:
    """Whether the next turn goes on from all that the slot holds after this reply: then there is nothing to do."""
    held = _held(prompt, generated)
    return common_prefix(held, next_turn.tokens) == len(held)


def plan(
    prompt: Rendering,
    generated: Tokens,
    next_turns: tuple[Rendering, Rendering],
    rolls_back: bool,
    minimum: int = MINIMUM,
) -> Ahead | None:
    """What to compute ahead of a turn that follows on `prompt` and its reply; None where that would not help.

    `next_turns`: two renderings of it.  `rolls_back`: whether a slot can be cut anywhere; elsewhere the next turn must
    resume where a message begins, and resumed at the last one before the reply if the reply is of no use.
    """
    one, other = next_turns
    shared = common_prefix(one.tokens, other.tokens)
    # Where a model has to resume at exactly this place, no token of the new part may have an influence on it.
    end = shared if rolls_back else max((span.begin for span in one.spans if span.begin <= shared), default=0)
    held = _held(prompt, generated)
    known = common_prefix(held, one.tokens[:end])
    if known in (end, len(held)):
        return None
    resume = known if rolls_back else max((span.begin for span in prompt.spans if span.begin <= known), default=0)
    if end - resume < minimum or end >= len(one.tokens):
        return None
    # One token more, so that there is a checkpoint before it: an edit of the new part resumes there once more.
    length = end if rolls_back else end + 1
    spans = (*(span for span in one.spans if span.begin + span.length <= end), Span("assistant", end, 1))
    return Ahead(one.tokens[:length], spans)


def _held(prompt: Rendering, generated: Tokens) -> Tokens:
    """The last token of a reply is sampled, but not computed."""
    return np.concatenate([prompt.tokens, generated[:-1]])
