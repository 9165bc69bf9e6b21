"""How much of a prompt is novel: the tokens that no earlier prompt or reply had as prefix.

No cache can compute less.  Prompts are rendered and tokenised by our own chat process, and the servers' counts are
compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from benchmarks.agentic_text import Json
from lcpd.cache.trie import common_prefix
from lcpd.chat.client import ChatClient, ChatRefused
from lcpd.engine.protocol import Tokens, unpack


class Known:
    """All that one server has decoded so far."""

    def __init__(self) -> None:
        self._sequences: list[Tokens] = []

    def add(self, tokens: Tokens) -> None:
        """Note a prompt, or a prompt with its reply."""
        self._sequences.append(tokens)

    def novel(self, tokens: Tokens) -> int:
        """Tokens behind the longest known prefix; at least 1, because the last one is decoded in any case."""
        longest = max((common_prefix(tokens, known) for known in self._sequences), default=0)
        return max(1, len(tokens) - longest)


def with_reply(prompt: Tokens, continued: Tokens, generated: int) -> Tokens:
    """What was decoded for a prompt and a reply of `generated` tokens.

    `continued` is a later prompt with the reply in its history.  Where it does not continue `prompt`, the reply's
    tokens are unknown and count as not there.  The last token of a reply is sampled, but never decoded.
    """
    if common_prefix(prompt, continued) < len(prompt):
        return prompt
    return continued[: len(prompt) + max(0, generated - 1)]


class Renderer:
    """Tokens of chat bodies, by the chat process."""

    def __init__(self, chat: ChatClient) -> None:
        self._chat = chat

    async def prompt(self, body: Json) -> Tokens:
        """The prompt's tokens.  Raises ChatRefused."""
        return unpack((await self._chat.render("chat", msgspec.json.encode(body))).tokens)

    async def decoded(self, body: Json, prompt: Tokens, reply: Json, generated: int) -> Tokens:
        """The prompt and what of the reply was decoded."""
        # A tool's result, because a user's message would make the template drop the reply's thinking.
        call_id = (reply.get("tool_calls") or [{"id": "call_0"}])[0]["id"]
        after = {"role": "tool", "tool_call_id": call_id, "content": "Done."}
        try:
            continued = await self.prompt({**body, "messages": [*body["messages"], reply, after]})
        except ChatRefused:  # by a template that has no such message: the reply counts as not there
            return prompt
        return with_reply(prompt, continued, generated)

    async def behind_history(self, body: Json, prompt: Tokens) -> int:
        """Tokens of the last message and of what follows it: all that is new to who has foreseen the history."""
        messages: Sequence[dict[str, Any]] = body["messages"]
        foreseen = await self.prompt({**body, "messages": [*messages[:-1], {**messages[-1], "content": "0"}]})
        return max(1, len(prompt) - common_prefix(prompt, foreseen))
