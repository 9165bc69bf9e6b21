"""A dispatcher whose engine is a test: what it sends is looked at, and words to answer with."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from fakes.clock import FakeClock
from fakes.worker import Kind, load, model_info
from lcpd.cache.arena import Arena
from lcpd.cache.cache import PromptCache
from lcpd.engine import protocol as p
from lcpd.engine.supervisor import NotReadyError
from lcpd.metrics import Metrics
from lcpd.scheduler.dispatcher import Dispatcher
from lcpd.scheduler.generation import (
    Begun,
    Event,
    Generation,
    Prompt,
)
from lcpd.scheduler.policy import Policy
from lcpd.scheduler.report import NOTHING
from lcpd.scheduler.slots import Span


class Engine:
    """A dispatcher, what it sent, and words to answer with."""

    def __init__(
        self,
        slots: int = 1,
        kind: Kind = "attention",
        n_ctx: int = 4096,
        ram: int = 1 << 20,
        alignment: int = 1,
        **policy: Any,
    ) -> None:
        self.sent: list[p.ToWorker] = []
        self.metrics = Metrics()
        self.clock = FakeClock()
        self.info = model_info(load(slots), kind, n_ctx, alignment)
        self.ready = True
        self.arena = Arena(ram)
        self.cache = PromptCache(self.arena, clock=self.clock.now)
        self.dispatcher = Dispatcher(
            "fake", slots, Policy(**{"follow_min": 4, **policy}), self.cache, self._send, self.metrics, self.clock
        )

    def _send(self, message: p.ToWorker) -> None:
        if not self.ready:
            raise NotReadyError("the engine is restarting")
        self.sent.append(message)

    def up(self) -> Engine:
        self.dispatcher.on_up(self.info)
        return self

    def take(self) -> list[p.ToWorker]:
        """What was sent since the last time."""
        sent, self.sent = self.sent, []
        return sent

    def start(self) -> p.Start:
        """The Start that was sent, and nothing else."""
        (message,) = self.take()
        assert isinstance(message, p.Start)
        return message

    def say(self, *messages: p.FromWorker) -> None:
        for message in messages:
            self.dispatcher.on_message(message)

    def run(self, start: p.Start, reply: str = "xy", reason: p.Reason = "stop") -> None:
        """Carry a Start out: prefill, a token for each letter, one more that ends it."""
        self.prefill(start)
        for token in [*reply.encode(), 0]:
            self.say(p.Step([p.Output(start.request, [token], chr(token) if token else "")]))
        self.say(finished(start.request, reply, reason))

    def prefill(self, start: p.Start) -> None:
        """Begin, and compute all of the prompt."""
        r = start.request
        self.say(p.Started(r, start.begin))
        for at, extent in sorted(start.checkpoints.items()):
            self.say(p.Prefilled(r, at, 0.1), p.Checkpointed(r, at, extent, piece(extent)))
        self.say(p.Prefilled(r, len(start.tokens) // 4 + len(start.reply) // 4, 0.1))

    def save(self) -> list[p.ToWorker]:
        """Carry out the Saves among what was sent, and those that are sent meanwhile; returns the rest."""
        rest: list[p.ToWorker] = []
        while self.sent:
            message = self.sent.pop(0)
            if isinstance(message, p.Save):
                segments = [p.Segment(cut.begin, cut.end, piece(cut.extent)) for cut in message.cuts]
                checkpoint = piece(message.checkpoint) if message.checkpoint else None
                self.say(p.Saved(message.seq, segments, checkpoint))
            else:
                rest.append(message)
        return rest

    def figure(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


def text(tokens: bytes) -> str:
    return bytes(p.unpack(tokens).tolist()).decode()


def replace_info(info: p.ModelInfo, **changes: Any) -> p.ModelInfo:
    return msgspec.structs.replace(info, **changes)


def piece(extent: p.Extent) -> p.Piece:
    return p.Piece(extent, b"0123456789abcdef")


def parked(request: int, text: str, done: int, generated: str = "", seq: int = 0) -> p.Parked:
    """`generated`: tokens so far, of which the last is not held."""
    tokens = np.array(list(generated.encode()), np.int32)
    return p.Parked(request, seq, done, p.pack(tokens[:-1]), p.pack(tokens))


def finished(request: int, held: str = "", reason: p.Reason = "stop", text: str = "", stop: str = "") -> p.Finished:
    return p.Finished(
        request=request,
        reason=reason,
        text=text,
        stop=stop,
        generated=len(held) + 1,
        held=p.pack(np.array(list(held.encode()), np.int32)),
        prefill_seconds=0.5,
        decode_seconds=0.25,
    )


def prompt(text: str, *spans: Span, max_tokens: int = 10, **rest: Any) -> Prompt:
    return Prompt(np.array(list(text.encode()), np.int32), spans, b"{}", max_tokens, **rest)


async def events(generation: Generation) -> list[Event]:
    """All events of a generation that is over, without cache reports; raises its error."""
    result: list[Event] = []
    async with asyncio.timeout(10):
        async for batch in generation.batches():
            result += [replace(event, report=NOTHING) if isinstance(event, Begun) else event for event in batch]
    return result


def pending(generation: Generation) -> bool:
    return not generation.over


def held(engine: Engine, seq: int = 0) -> str:
    return bytes(engine.dispatcher.slots[seq].tokens.astype(np.uint8)).decode()


# "SSSS" system, "uu" user, "R" reply, "vv" user; then "G", the generation prompt.
TURN_1 = prompt("SSSSuuG", Span("system", 0, 4), Span("user", 4, 2))
TURN_2 = prompt("SSSSuuRvvG", Span("system", 0, 4), Span("user", 4, 2), Span("assistant", 6, 1), Span("user", 7, 2))
TEXT = "a prompt that is long enough to be told from others"
