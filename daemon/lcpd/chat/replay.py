"""Replies in a history as the tokens that were really generated.  Pure functions, and one small memory.

A client sends a reply back as a message, and the template writes it anew: with its own white space and its own order
of keys in the arguments of tool calls, or, where it takes them as text, with the client's; and the tokeniser may cut
the same text elsewhere than the model did.  Each of these makes the next prompt part from what the cache holds.  So
the tokens of finished replies are remembered, and where the prompt before a reply is the same as it was then, and what
stands in the history says the same as what was generated, the generated tokens take its place.

What says the same is decided on the parsed messages (:func:`same_message`): all that is reasoning, content and calls
must be equal, so reasoning that a template leaves out of the history stays left out.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
import numpy as np

from lcpd.chat.protocol import Span
from lcpd.engine.protocol import Tokens

Json = dict[str, Any]
Same = Callable[[Tokens, Tokens], bool]
"""(a reply as the template wrote it, as it was generated; both with the generation prompt in front) -> equal?"""
_ALTERNATIVES = 4
"""Replies that are remembered for one prompt."""
_VERDICTS = 20_000


def digest(tokens: Tokens, scope: int = 0) -> bytes:
    """What a prompt is recognised by among those of its `scope`, whose replies no other one gets."""
    path = _path(scope)
    path.update(tokens.tobytes())
    return path.digest()


def _path(scope: int) -> hashlib.blake2b:
    """Takes the tokens of a prompt, one part after the other, and tells its `digest`."""
    return hashlib.blake2b(digest_size=16, salt=scope.to_bytes(4, "little"))


def reply_start(spans: Sequence[tuple[str, int]]) -> int | None:
    """Where the generation prompt begins: the last of the (role, begin) spans, if it is the assistant's."""
    return spans[-1][1] if spans and spans[-1][0] == "assistant" else None


class Replays:
    """Replies by the prompts that they were given to; forgets the ones that were not needed for longest."""

    def __init__(self, max_tokens: int = 2_000_000) -> None:
        """`max_tokens`: of all replies together."""
        self._max_tokens = max_tokens
        self._tokens = 0
        self._replies: OrderedDict[bytes, list[Tokens]] = OrderedDict()
        self._verdicts: OrderedDict[bytes, bool] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._replies.values()))

    def remember(self, prompt: bytes, reply: Tokens) -> None:
        """`reply`: the generation prompt and what was generated, without the token that ended it.

        `prompt`: the `digest` of all that came before.
        """
        if len(reply) > self._max_tokens:
            return
        known = self._replies.setdefault(prompt, [])
        self._replies.move_to_end(prompt)
        if any(np.array_equal(reply, other) for other in known):
            return
        known.insert(0, reply)
        self._tokens += len(reply)
        for forgotten in known[_ALTERNATIVES:]:
            self._tokens -= len(forgotten)
        del known[_ALTERNATIVES:]
        while self._tokens > self._max_tokens:
            _, replies = self._replies.popitem(last=False)
            self._tokens -= sum(map(len, replies))

    def forget(self) -> None:
        """Forget all replies."""
        self._replies.clear()
        self._verdicts.clear()
        self._tokens = 0

    def applied(
        self, tokens: Tokens, spans: Sequence[Span], ends: Collection[int], same: Same, scope: int = 0
    ) -> tuple[Tokens, list[Span]]:
        """A rendered prompt with its scope's remembered replies in place of the history's, and its spans.

        `ends`: the tokens that end a reply.
        """
        if not self._replies:
            return tokens, list(spans)
        path = _path(scope)
        parts: list[Tokens] = []
        moved: list[Span] = []
        before = at = 0
        for index, span in enumerate(spans):
            gap, part = tokens[before : span.begin], tokens[span.begin : span.begin + span.length]
            path.update(gap.tobytes())
            if span.role == "assistant" and index < len(spans) - 1:
                part = self._replayed(path.digest(), part, ends, same)
            path.update(part.tobytes())
            moved.append(Span(span.role, at + len(gap), len(part)))
            parts += [gap, part]
            at += len(gap) + len(part)
            before = span.begin + span.length
        return np.concatenate([*parts, tokens[before:]]), moved

    def _replayed(self, prompt: bytes, part: Tokens, ends: Collection[int], same: Same) -> Tokens:
        """An assistant's message with the reply that it stands for."""
        known = self._replies.get(prompt)
        end = np.flatnonzero(np.isin(part, list(ends)))
        if not known or not len(end):
            return part
        self._replies.move_to_end(prompt)
        written = part[: end[0]]
        for reply in sorted(known, key=lambda reply: not np.array_equal(reply, written)):
            if self._equals(written, reply, same):
                return np.concatenate([reply, part[end[0] :]])
        return part

    def _equals(self, written: Tokens, reply: Tokens, same: Same) -> bool:
        """Decided once: a prompt must not change from turn to turn."""
        key = digest(np.concatenate([written, np.array([-1], np.int32), reply]))
        if key not in self._verdicts:
            self._verdicts[key] = same(written, reply)
        self._verdicts.move_to_end(key)
        if len(self._verdicts) > _VERDICTS:
            self._verdicts.popitem(last=False)
        return self._verdicts[key]


def same_message(a: Json, b: Json) -> bool:
    """Whether two parsed replies say the same: white space around texts and in arguments does not count."""
    return _essence(a) == _essence(b)


def _essence(message: Json) -> tuple[str, str, list[tuple[str, bytes]]]:
    calls = [call["function"] for call in message.get("tool_calls") or []]
    return (
        (message.get("reasoning_content") or "").strip(),
        (message.get("content") or "").strip(),
        [(call["name"], _canonical(call["arguments"])) for call in calls],
    )


def _canonical(arguments: str) -> bytes:
    """JSON without white space, with sorted keys and numbers in one form; what is no JSON stays as it is.

    As bytes, because 1 and true are equal in Python.
    """
    try:
        return msgspec.json.encode(_plain(msgspec.json.decode(arguments)), order="sorted")
    except (msgspec.DecodeError, RecursionError):
        return arguments.encode()


def _plain(value: Any) -> Any:
    """JSON with whole numbers as such: JavaScript and templates write 2.0 as 2."""
    match value:
        case dict():
            return {key: _plain(inner) for key, inner in value.items()}
        case list():
            return [_plain(inner) for inner in value]
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
    return value
