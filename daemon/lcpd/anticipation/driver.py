"""Computes ahead, one conversation after the other, while nobody else wants anything.

    a turn is      when
    ---------      ----
    pending        its reply is complete; it takes the place of an earlier turn of the same conversation
    tried          for `patience` no next turn has come, the engine is idle, and it is the newest of those pending
    pending again  something else wanted the engine meanwhile; tried again when the next reply is complete
    forgotten      its next turn has come; it was computed; nothing is gained; it cannot be rendered; it is the oldest
                   of more than `_MOST_TURNS` or `_MOST_BYTES`

Nothing here is waited for by a request, and no error of it reaches one.  Only the chat process may still be rendering
for this when one comes, which is why a quick tool's result is waited for first.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import msgspec

from lcpd.anticipation.decide import Ahead, Rendering, continuations, goes_on, plan
from lcpd.cache.isolation import marked, number_of, plain
from lcpd.cache.trie import common_prefix
from lcpd.chat.client import ChatClient, ChatCrashed, ChatRefused, ChatUnavailable
from lcpd.chat.protocol import Dialect, Rendered
from lcpd.engine.protocol import unpack
from lcpd.scheduler.dispatcher import Dispatcher
from lcpd.scheduler.generation import (
    Done,
    EngineFailed,
    GenerationFailed,
    GenerationRefused,
    Prompt,
    Quarantined,
    QueueFull,
    QueueTimedOut,
)
from lcpd.scheduler.slots import Span, Tokens

log = logging.getLogger(__name__)
_MOST_TURNS = 8
_MOST_BYTES = 64 * 2**20
_EXPECTED = (
    ChatCrashed,
    ChatRefused,
    ChatUnavailable,
    EngineFailed,
    GenerationFailed,
    GenerationRefused,
    Quarantined,
    QueueFull,
    QueueTimedOut,
)
"""What can happen to any request; here it only means that nothing is computed ahead."""


@dataclass(frozen=True)
class Asked:
    """A chat as it was rendered: the arguments of `ChatClient.render`."""

    dialect: Dialect
    body: bytes
    overrides: bytes | None = None
    scope: int = 0


@dataclass(frozen=True, eq=False)
class FinishedTurn:
    """A chat with its complete reply."""

    asked: Asked
    prompt: Prompt
    generated: Tokens
    message: dict[str, Any]
    """The reply in OpenAI's shape."""


class Anticipator:
    """Owns the turns whose next ones are still to come.  For one event loop."""

    def __init__(self, chat: ChatClient, dispatcher: Dispatcher, patience: float = 0.25) -> None:
        """`patience`: seconds."""
        self.patience = patience
        self._chat = chat
        self._dispatcher = dispatcher
        self._pending: list[FinishedTurn] = []
        """The newest last."""
        self._task: asyncio.Task[None] | None = None

    @property
    def pending(self) -> int:
        """Turns that are still to be tried, or tried again."""
        return len(self._pending)

    @property
    def working(self) -> bool:
        """Whether something is being rendered or computed ahead."""
        return self._task is not None and not self._task.done()

    def finished(self, turn: FinishedTurn) -> None:
        """A reply is complete: compute ahead if there is time."""
        self.begun(turn.prompt)
        self._pending.append(turn)
        while len(self._pending) > _MOST_TURNS or sum(len(one.asked.body) for one in self._pending) > _MOST_BYTES:
            del self._pending[0]
        if not self.working:
            self._task = asyncio.create_task(self._work())

    def begun(self, prompt: Prompt) -> None:
        """A prompt has come: the turns that it follows on are not waited for any more."""
        self._pending = [turn for turn in self._pending if not follows(prompt, turn.prompt)]

    def forget(self) -> None:
        """Compute nothing ahead of the conversations that were seen so far."""
        self._pending.clear()

    async def stop(self) -> None:
        """End what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        tried: list[FinishedTurn] = []
        while turn := next((one for one in reversed(self._pending) if one not in tried), None):
            tried = [*(one for one in tried if one in self._pending), turn]
            await asyncio.sleep(self.patience)
            try:
                over = await self._try(turn)
            except _EXPECTED as error:
                log.debug("nothing is computed ahead: %s", error)
                over = True
            except Exception:
                # There is nobody to tell, and the conversation goes on without this.
                log.exception("computing ahead failed")
                over = True
            if over:
                self._pending = [other for other in self._pending if other is not turn]

    async def _try(self, turn: FinishedTurn) -> bool:
        """Returns whether the turn is done with."""
        if not self._wanted(turn):
            return False
        ahead = await self._ahead(turn)
        if not self._wanted(turn):
            return False
        if ahead is None:
            return True
        tokens = marked(ahead.tokens, number_of(turn.prompt.tokens))
        prompt = Prompt(tokens, ahead.spans, b"{}", 0, priority="background", kind="prefill")
        generation = self._dispatcher.submit(prompt)
        over = False
        try:
            async for events in generation.batches():
                over = any(isinstance(event, Done) and event.reason != "cancelled" for event in events)
        finally:
            generation.close()
        return over

    async def _ahead(self, turn: FinishedTurn) -> Ahead | None:
        info = await self._dispatcher.model_info()
        before = Rendering(plain(turn.prompt.tokens), turn.prompt.spans)
        first, second = continuations(turn.message)
        one = await self._rendered(turn.asked, first)
        if goes_on(before, turn.generated, one) or len(one.tokens) > info.n_ctx or not self._wanted(turn):
            return None
        other = await self._rendered(turn.asked, second)
        return plan(before, turn.generated, (one, other), rolls_back=info.rolls_back)

    async def _rendered(self, asked: Asked, more: list[dict[str, Any]]) -> Rendering:
        rendered = await self._chat.render(
            asked.dialect, asked.body, asked.overrides, msgspec.json.encode(more), asked.scope
        )
        return rendering(rendered)

    def _wanted(self, turn: FinishedTurn) -> bool:
        """Whether its next turn has not come and nobody else wants anything."""
        return turn in self._pending and not self._dispatcher.running and not self._dispatcher.waiting


def rendering(rendered: Rendered) -> Rendering:
    """What the chat process answered, as arrays."""
    return Rendering(unpack(rendered.tokens), spans_of(rendered))


def spans_of(rendered: Rendered) -> tuple[Span, ...]:
    """The messages of a rendered prompt."""
    return tuple(Span(span.role, span.begin, span.length) for span in rendered.spans)


def follows(prompt: Prompt, earlier: Prompt) -> bool:
    """Whether a prompt belongs to the conversation of an earlier one.

    Where reasoning leaves the history, a next turn can differ from behind the first user message on.
    """
    first = next((span for span in earlier.spans if span.role == "user"), None)
    start = len(earlier.tokens) if first is None else first.begin + first.length
    return common_prefix(prompt.tokens, earlier.tokens) >= start
