"""One request from its rendered prompt to its parsed reply, whatever the dialect.

Text from the engine is gathered while the parser is busy, so a slow parser costs fewer and larger deltas, never a
growing backlog.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from lcpd.chat.client import ChatClient, Reply
from lcpd.chat.protocol import Rendered
from lcpd.chat.replies import add_delta
from lcpd.scheduler.generation import Begun, Done, Generation, Text

Json = dict[str, Any]


@dataclass(frozen=True)
class Delta:
    """One OpenAI chat delta."""

    delta: Json


@dataclass(frozen=True)
class Finished:
    """The whole reply."""

    message: Json
    done: Done


TurnEvent = Begun | Delta | Finished


@dataclass
class Usage:
    """Token counts of one request."""

    prompt: int
    cached: int = 0
    generated: int = 0

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


@dataclass
class Turn:
    """A running chat request."""

    chat: ChatClient
    generation: Generation
    reply: Reply
    usage: Usage
    message: Json = field(default_factory=lambda: {"role": "assistant", "content": None})
    """The deltas so far, put together."""

    @classmethod
    def begin(cls, chat: ChatClient, generation: Generation, rendered: Rendered) -> Turn:
        """Follow a generation that has been submitted for a rendered prompt."""
        return cls(chat, generation, chat.open_reply(rendered.fields), Usage(len(generation.prompt.tokens)))

    async def events(self) -> AsyncIterator[TurnEvent]:
        """Begun, then deltas, then Finished; raises the errors of the generation and of the chat process."""
        async for batch in self.generation.batches():
            text = ""
            done: Done | None = None
            for event in batch:
                if isinstance(event, Begun):
                    self.usage.cached = event.cached
                    yield event
                elif isinstance(event, Text):
                    self.usage.generated += len(event.tokens)
                    text += event.text
                elif isinstance(event, Done):
                    text += event.text
                    self.usage.generated = event.generated
                    done = event
            if text or done:
                deltas, message = await self.chat.push(self.reply, text, final=done is not None)
                for delta in deltas:
                    add_delta(self.message, delta)
                    yield Delta(delta)
                if done:
                    yield Finished(message or self.message, done)

    async def close(self) -> None:
        """Stop what is still running.  To be called in any case."""
        self.generation.close()
        await self.chat.close_reply(self.reply)


def timings(usage: Usage, done: Done) -> Json:
    """What was computed and how fast, in llama-server's words and units (milliseconds)."""
    computed = usage.prompt - usage.cached
    return {
        "cache_n": usage.cached,
        "prompt_n": computed,
        "prompt_ms": done.prefill_seconds * 1e3,
        "prompt_per_second": computed / done.prefill_seconds if done.prefill_seconds else 0.0,
        "predicted_n": done.generated,
        "predicted_ms": done.decode_seconds * 1e3,
        # The first token comes out of the prefill; decoding makes the others.
        "predicted_per_second": (done.generated - 1) / done.decode_seconds if done.decode_seconds else 0.0,
    }
