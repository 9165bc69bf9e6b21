"""A generation as its consumer sees it: what to run, the events it yields, and the errors that can end it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal

from lcpd.scheduler.slots import Span, Tokens

Reason = Literal["stop", "stop-string", "length", "cancelled"]


@dataclass(frozen=True)
class Prompt:
    """What to run."""

    tokens: Tokens
    spans: tuple[Span, ...]
    """Messages, where the prompt is a chat."""
    sampling: bytes
    """Fields for the engine's sampler (JSON)."""
    max_tokens: int
    """At least 1; prompt and reply together fit into the context."""


@dataclass(frozen=True)
class Begun:
    """The prompt runs; its first `cached` tokens were already in the slot."""

    cached: int


@dataclass(frozen=True)
class Progress:
    """`done` of the prompt's tokens are computed."""

    done: int


@dataclass(frozen=True)
class Text:
    """Sampled tokens, and the text that can be shown now."""

    tokens: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Done:
    """The reply is complete.  Times in seconds."""

    reason: Reason
    text: str
    """The rest of the text."""
    stop: str
    """The stop string that ended it, or ""."""
    cached: int
    generated: int
    prefill_seconds: float
    decode_seconds: float


Event = Begun | Progress | Text | Done


class QueueFull(RuntimeError):
    """Too many requests wait already; try again later."""


class EngineFailed(RuntimeError):
    """The engine cannot run requests, and will not be able to without help."""


class EngineDied(RuntimeError):
    """The engine died while this request's reply was under way."""


class GenerationRefused(ValueError):
    """The request's own fields keep the engine from running it."""


class GenerationFailed(RuntimeError):
    """The engine could not compute this request."""


@dataclass(eq=False)
class Generation:
    """A submitted prompt.  Iterate over its events; `close` it in any case."""

    id: int
    prompt: Prompt
    arrived: float
    """Monotonic seconds."""
    on_close: Callable[[Generation], None]
    _events: asyncio.Queue[Event | Exception] = field(default_factory=asyncio.Queue)
    cached: int = 0
    done: int = 0
    """Prompt tokens that the slot holds."""
    emitted: bool = False
    """Whether a token has been given out; until then the request can be run anew unnoticed."""
    attempts: int = 0
    closed: bool = False
    """Whether nobody listens any more while it still runs."""
    over: bool = False

    def emit(self, event: Event | Exception) -> None:
        """Hand an event, or the error that ends the generation, to the consumer."""
        self.over = self.over or isinstance(event, Done | Exception)
        self._events.put_nowait(event)

    async def batches(self) -> AsyncIterator[list[Event]]:
        """All events up to Done, each time as many as have come; raises the error that ended the generation."""
        while True:
            batch = [await self._events.get()]
            while not self._events.empty():
                batch.append(self._events.get_nowait())
            events = [event for event in batch if not isinstance(event, Exception)]
            if events:
                yield events
            if error := next((event for event in batch if isinstance(event, Exception)), None):
                raise error
            if isinstance(events[-1], Done):
                return

    def close(self) -> None:
        """Stop computing if it is not over; what was computed stays in the slot."""
        if not self.over:
            self.on_close(self)
