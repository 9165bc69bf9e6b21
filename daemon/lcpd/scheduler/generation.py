"""A generation as its consumer sees it: what to run, the events it yields, and the errors that can end it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal

from lcpd.engine.protocol import Reason, TokenProbs
from lcpd.scheduler.backlog import Backlog
from lcpd.scheduler.events import Begun, Done, Event, Progress, Text
from lcpd.scheduler.slots import Span, Tokens

__all__ = [
    "Begun",
    "Done",
    "EngineFailed",
    "Event",
    "Generation",
    "GenerationFailed",
    "GenerationRefused",
    "Kind",
    "Priority",
    "Progress",
    "Prompt",
    "Quarantined",
    "QueueFull",
    "QueueTimedOut",
    "Reason",
    "Text",
    "TokenProbs",
]

Priority = Literal["interactive", "background"]
Kind = Literal["generate", "prefill"]
"""prefill: only compute the prompt, while nobody else wants anything, so that the slot holds what comes next."""


@dataclass(frozen=True)
class Prompt:
    """What to run."""

    tokens: Tokens
    """With the mark of its API key where keys are kept apart (:mod:`lcpd.cache.isolation`)."""
    spans: tuple[Span, ...]
    """Messages, where the prompt is a chat."""
    sampling: bytes
    """Fields for the engine's sampler (JSON)."""
    max_tokens: int
    """At least 1, and 0 for kind "prefill"; prompt and reply together fit into the context."""
    min_tokens: int = 0
    """Generated tokens before an end-of-generation token may be sampled."""
    priority: Priority = "interactive"
    client: str = ""
    """Whom it is for: clients take turns in the queue."""
    kind: Kind = "generate"
    """A "prefill" runs only while no other request runs or waits, on the slot that holds its beginning or on an empty
    one; where that is not so (any more) it ends with Done("cancelled"), and what it computed stays in the slot.  All of
    it is computed, the last token too, unless it is known: a prompt that goes on from there needs no checkpoint."""
    store: bool = True
    """Whether its state, its tokens and its reply may be kept when it has left its slot."""
    streamed: bool = False
    """Whether its client is shown the reply as it comes."""
    name: str = ""
    """The public id, under which its cache report can be asked for; "": nobody will."""
    key: str = ""
    """Name of the API key that it came with, for the metrics; "": none."""
    program: str = "other"
    """The kind of program that sent it, for the metrics; one of a fixed list."""
    received: float | None = None
    """When its HTTP request came, in monotonic seconds; None: it came when it was submitted."""
    normalised: tuple[str, ...] = ()
    """What was put right in the request before it was rendered, for its cache report."""


class QueueFull(RuntimeError):
    """Too many requests wait already; try again after about `retry_after` seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueTimedOut(RuntimeError):
    """The request waited too long for its turn; try again after about `retry_after` seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineFailed(RuntimeError):
    """The engine cannot run requests, and will not be able to without help."""


class Quarantined(RuntimeError):
    """This request is believed to have crashed the engine twice, and is not run any more for now."""


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
    _backlog: Backlog = field(default_factory=Backlog)
    _more: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False
    answered: bool = False
    """See `close`."""

    def emit(self, event: Event | Exception) -> None:
        """Hand an event, or the error that ends the generation, to the consumer."""
        self.over = self.over or isinstance(event, Done | Exception)
        self._backlog.add(event)
        self._more.set()

    @property
    def asked(self) -> float:
        """When somebody began to wait for it: before it `arrived` here, the prompt was read and rendered."""
        return self.arrived if self.prompt.received is None else min(self.prompt.received, self.arrived)

    @property
    def unread(self) -> int:
        """Events that the consumer has not taken yet; consecutive ones of a kind are one."""
        return len(self._backlog)

    async def batches(self) -> AsyncIterator[list[Event]]:
        """All events up to Done, each time as many as have come; raises the error that ended the generation."""
        while True:
            await self._more.wait()
            self._more.clear()
            events, error = self._backlog.take()
            if events:
                yield events
            if error is not None:
                raise error
            if events and isinstance(events[-1], Done):
                return

    def close(self, answered: bool = False) -> None:
        """Stop computing if it is not over; what was computed stays in the slot.

        `answered`: its consumer has all that it wants, and will not come back for the rest.
        """
        if not self.over:
            self.answered = self.answered or answered
            self.on_close(self)
