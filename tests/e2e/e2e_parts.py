"""A daemon's parts in this process, with a real worker: what HTTP hides can be seen, such as token ids and chunks."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lcpd.assembly.parts import start_parts
from lcpd.assembly.plan import make_plan
from lcpd.config import Settings
from lcpd.engine import protocol as p
from lcpd.scheduler.generation import Begun, Done, Event, Generation, Progress, Prompt, Text
from support import model_path

WITHIN = 60.0
"""Seconds after which what is waited for will not come."""
_ENDLESS = {"temperature": 0, "ignore_eos": True}


@dataclass
class Reply:
    """What a generation said."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    events: list[Event] = field(default_factory=list)
    reason: str = ""
    """Why it ended; "" where it was not followed to its end."""

    def take(self, event: Event) -> None:
        """Add one event."""
        self.events.append(event)
        if isinstance(event, Text):
            self.tokens += event.tokens
            self.text += event.text
        elif isinstance(event, Done):
            self.reason = event.reason
            self.text += event.text


class Parts:
    """The dispatcher, its worker, and every message that the worker has sent."""

    def __init__(self, context: Any) -> None:
        self.dispatcher = context.dispatcher
        self.supervisor = context.supervisor
        self.messages: list[p.FromWorker] = []
        self._registry = context.metrics.registry
        self._heard = asyncio.Event()
        listen = self.dispatcher.on_message

        def hear(message: p.FromWorker) -> None:
            self.messages.append(message)
            listen(message)
            self._heard.set()

        self.dispatcher.on_message = hear

    def submit(self, prompt: Sequence[int], length: int, **terms: Any) -> Generation:
        """Queue a prompt for a greedy reply of exactly `length` tokens."""
        tokens = np.array(prompt, np.int32)
        return self.dispatcher.submit(Prompt(tokens, (), json.dumps(_ENDLESS).encode(), length, **terms))

    async def run(self, prompt: Sequence[int], length: int, **terms: Any) -> Reply:
        """As `submit`, followed to its end."""
        return await follow(self.submit(prompt, length, **terms))

    def of(self, kind: type[Any], request: int | None = None) -> list[Any]:
        """The messages of a kind, in order."""
        found = [m for m in self.messages if isinstance(m, kind)]
        return found if request is None else [m for m in found if m.request == request]

    def chunks(self, request: int) -> list[tuple[int, int]]:
        """The parts [begin, end) of a request's tokens that were prefilled, in order."""
        chunks = []
        at = 0
        for message in self.messages:
            if isinstance(message, p.Started) and message.request == request:
                at = message.begin
            elif isinstance(message, p.Prefilled) and message.request == request:
                chunks.append((at, message.done))
                at = message.done
        return chunks

    def computed(self, requests: Sequence[int]) -> int:
        """Prompt tokens that were prefilled for these requests."""
        return sum(end - begin for request in requests for begin, end in self.chunks(request))

    def metric(self, name: str) -> float:
        """The sum of a metric's samples over all labels."""
        samples = (sample for family in self._registry.collect() for sample in family.samples)
        return sum(sample.value for sample in samples if sample.name == name)

    async def until(self, true: Callable[[], bool], what: str) -> None:
        """Wait until a message of the worker made something true; AssertionError when none does."""
        try:
            async with asyncio.timeout(WITHIN):
                while not true():
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError as error:
            raise AssertionError(f"not within {WITHIN:g} s: {what}; {self.dispatcher.snapshot()}") from error

    async def until_idle(self) -> None:
        """Wait until nothing runs and nothing waits."""
        await self.until(lambda: not self.dispatcher.running and not self.dispatcher.waiting, "everything is over")


async def follow(generation: Generation, stop: Callable[[Event], bool] = lambda event: False) -> Reply:
    """Everything a generation says, to its end or to the event at which it is closed."""
    reply = Reply(generation.prompt.tokens.tolist())
    try:
        async for events in generation.batches():
            for event in events:
                reply.take(event)
                if stop(event):
                    return reply
        return reply
    finally:
        generation.close()


def generated(count: int) -> Callable[[Event], bool]:
    """Whether so many tokens have come."""
    seen = 0

    def enough(event: Event) -> bool:
        nonlocal seen
        seen += len(event.tokens) if isinstance(event, Text) else 0
        return seen >= count

    return enough


def prefilled(least: int) -> Callable[[Event], bool]:
    """Whether so many of the prompt's tokens are computed."""
    return lambda event: isinstance(event, Progress | Begun) and getattr(event, "done", 0) >= least


@asynccontextmanager
async def running_parts(kind: str, **sections: dict[str, Any]) -> AsyncIterator[Parts]:
    """The parts of a daemon whose model is loaded.  `sections`: settings that differ from these tests' usual ones."""
    # As for the other tests' daemons: several of them run on the machine's few cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    usual = {"ref": str(model_path(kind)), "threads": 1, "flash_attn": "off", "ctx": 4096}
    sections = {**sections, "model": {**usual, **sections.get("model", {})}}
    async with AsyncExitStack() as stack:
        context = await start_parts(make_plan(Settings(**sections)), stack)
        await context.dispatcher.model_info()
        yield Parts(context)


async def gather(replies: Sequence[Awaitable[Reply]]) -> list[Reply]:
    """All replies; the first error is raised."""
    return list(await asyncio.gather(*replies))
