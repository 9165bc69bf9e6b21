"""One request from its rendered prompt to its parsed reply, whatever the dialect.

Text from the engine is gathered while the parser is busy, so a slow parser costs fewer and larger deltas, never a
growing backlog.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lcpd.api import cache_report
from lcpd.cache.isolation import number_of, plain
from lcpd.chat import replay
from lcpd.chat.client import ChatClient, Reply
from lcpd.chat.protocol import Rendered
from lcpd.scheduler.generation import Begun, Done, Event, Generation, Text, TokenProbs
from lcpd.scheduler.report import CacheReport

Json = dict[str, Any]


@dataclass(frozen=True)
class Delta:
    """One OpenAI chat delta."""

    delta: Json
    probs: tuple[TokenProbs, ...] = ()
    """Those of the tokens since the last event that had some; they need not be the delta's very tokens."""


@dataclass(frozen=True)
class Finished:
    """The whole reply."""

    message: Json
    done: Done
    probs: tuple[TokenProbs, ...] = ()
    """As in `Delta`."""


TurnEvent = Begun | Delta | Finished


@dataclass
class Usage:
    """Token counts of one request."""

    prompt: int
    cached: int = 0
    generated: int = 0
    report: CacheReport | None = None
    """Where the prompt's tokens came from; None before that is known."""

    def openai(self) -> Json:
        """As in OpenAI's usage objects."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    def anthropic(self) -> Json:
        """As in Anthropic's usage objects, where input_tokens leaves out what was cached."""
        return {
            "input_tokens": self.prompt - self.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.cached,
            "output_tokens": self.generated,
        }


def total(usages: Sequence[Usage]) -> Usage:
    """The counts of several replies to one prompt, which is counted once."""
    cached = min(usage.cached for usage in usages)
    return Usage(usages[0].prompt, cached, sum(usage.generated for usage in usages), usages[0].report)


@dataclass(frozen=True)
class Gathered:
    """What a batch of events says."""

    text: str
    probs: tuple[TokenProbs, ...]
    done: Done | None
    """The end, if it is among them."""


def gather(batch: list[Event], usage: Usage) -> Gathered:
    """The text of a batch of events, and its end if it is in it; `usage` is brought up to date."""
    text = ""
    probs: tuple[TokenProbs, ...] = ()
    done: Done | None = None
    for event in batch:
        if isinstance(event, Begun):
            usage.cached, usage.report = event.cached, event.report
        elif isinstance(event, Text):
            usage.generated += len(event.tokens)
            text += event.text
            probs += event.probs
        elif isinstance(event, Done):
            usage.generated = event.generated
            text += event.text
            done = event
    return Gathered(text, probs, done)


@dataclass
class Turn:
    """A running chat request."""

    chat: ChatClient
    generation: Generation
    reply: Reply
    usage: Usage
    remembers: bool = True
    """Whether the reply is to be repeated as it was generated when it comes back as history."""
    generated: list[int] = field(default_factory=list)
    """Tokens of the reply so far."""
    finished: Finished | None = None
    """The whole reply, when it is complete."""

    @classmethod
    def begin(cls, chat: ChatClient, generation: Generation, rendered: Rendered, remembers: bool = True) -> Turn:
        """Follow a generation that has been submitted for a rendered prompt."""
        prompt = generation.prompt.tokens
        reply = chat.open_reply(rendered.fields, number_of(prompt))
        return cls(chat, generation, reply, Usage(len(prompt)), remembers)

    async def events(self) -> AsyncIterator[TurnEvent]:
        """Begun, then deltas, then Finished; raises the errors of the generation and of the chat process."""
        probs: tuple[TokenProbs, ...] = ()
        async for batch in self.generation.batches():
            new = gather(batch, self.usage)
            probs += new.probs
            for event in batch:
                self.generated.extend(event.tokens if isinstance(event, Text) else ())
            if begun := next((event for event in batch if isinstance(event, Begun)), None):
                yield begun
            if new.text or new.done:
                cut = new.done is not None and new.done.reason in ("length", "cancelled")
                deltas, message = await self.chat.push(self.reply, new.text, new.done is not None, cut)
                for delta in deltas:
                    yield Delta(delta, probs)
                    probs = ()
                if new.done:
                    assert message is not None, "a final push returns the whole message"
                    self.finished = Finished(message, new.done, probs)
                    self._remember(new.done)
                    yield self.finished

    def _remember(self, done: Done) -> None:
        """Before the client can send the reply back: the chat process takes one call after the other."""
        if not self.remembers or not self.generation.prompt.store or done.reason not in ("stop", "length"):
            return
        prompt = self.generation.prompt
        tokens = plain(prompt.tokens)
        start = replay.reply_start([(span.role, span.begin) for span in prompt.spans])
        if start is not None:
            generated = self.generated[:-1] if done.reason == "stop" else self.generated
            opening = tokens[start:]
            reply = np.concatenate([opening, np.array(generated, np.int32)])
            self.chat.remember(replay.digest(tokens[:start], number_of(prompt.tokens)), reply)


def headers(name: str, usage: Usage) -> dict[str, str]:
    """A reply's id and, where it is known already, where its prompt came from."""
    known = {"x-lcpd-cache": cache_report.header(usage.report)} if usage.report else {}
    return {"x-lcpd-request-id": name, **known}


async def close(turns: Sequence[Turn]) -> None:
    """Stop what is still running of these turns.  To be called in any case."""
    for turn in turns:  # all of them before anything can be interrupted
        turn.generation.close()
    for turn in turns:
        await turn.chat.close_reply(turn.reply)


def timings(usage: Usage, done: Done) -> Json:
    """What was computed and how fast, in llama-server's words and units (milliseconds); and why it was computed."""
    computed = usage.prompt - usage.cached
    # The first token comes out of the prefill; decoding makes the others.
    decoded = done.generated - 1
    report = {"cache": cache_report.brief(usage.report)} if usage.report else {}
    return {
        "cache_n": usage.cached,
        "prompt_n": computed,
        "prompt_ms": done.prefill_seconds * 1e3,
        "prompt_per_token_ms": done.prefill_seconds * 1e3 / computed if computed else 0.0,
        "prompt_per_second": computed / done.prefill_seconds if done.prefill_seconds else 0.0,
        "predicted_n": done.generated,
        "predicted_ms": done.decode_seconds * 1e3,
        "predicted_per_token_ms": done.decode_seconds * 1e3 / decoded if decoded > 0 else 0.0,
        "predicted_per_second": decoded / done.decode_seconds if done.decode_seconds else 0.0,
        **report,
    }
