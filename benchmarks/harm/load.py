"""Streamed requests whose replies are kept token by token, and what a client saw of errors."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

Json = dict[str, Any]
SILENCE = 120.0
"""Seconds without a byte after which a client gives up; signs of life count as bytes."""


@dataclass(frozen=True)
class Ask:
    """A greedy text completion of exactly `length` tokens."""

    prompt: str | Sequence[int]
    length: int
    pause: float = 0.0
    """Seconds that the client takes for each piece: a slow one."""
    leave_after: int | None = None
    """Pieces of text after which the client goes away."""
    ids: bool = True
    """Whether to be told the ids of the reply's tokens: with the probability of each."""

    def body(self) -> Json:
        """As it is sent."""
        prompt = self.prompt if isinstance(self.prompt, str) else list(self.prompt)
        body: Json = {
            "prompt": prompt,
            "max_tokens": self.length,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return {**body, "n_probs": 1} if self.ids else body


@dataclass(eq=False)
class Said:
    """What a client got for an `Ask`, so far or in the end.  Instants in monotonic seconds."""

    ask: Ask
    sent: float
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    pieces: int = 0
    prompt: int = 0
    """Tokens of the prompt, as the server counts them."""
    generated: int = 0
    """Tokens of the reply, as the server counts them."""
    computed: int = 0
    """Tokens of the prompt that were not reused at the first start."""
    finish: str = ""
    error: str = ""
    """What a client would have shown to its user; "" without an error."""
    lost_connection: bool = False
    """Whether the error is that nobody was there, or no longer: a client would try again."""
    over: float = 0.0
    """When it ended."""

    left: bool = False
    """Whether the client went away on purpose."""

    def check(self) -> None:
        """Note as an error what is wrong with a reply that ended well as far as HTTP says."""
        if self.error or self.left:
            return
        if self.finish != "length":
            self.error = f"it ended with {self.finish!r}"
        elif not self.prompt:
            self.error = "the stream told no usage"
        elif self.ask.ids and len(self.tokens) != self.ask.length:
            self.error = f"{len(self.tokens)} tokens came instead of {self.ask.length}"
        elif self.generated != self.ask.length:
            self.error = f"{self.generated} tokens were counted instead of {self.ask.length}"


async def ask(client: httpx.AsyncClient, url: str, what: Ask, said: Said | None = None) -> Said:
    """Send a request and follow its stream to the end; errors are told in the result, never raised."""
    said = said or Said(what, time.monotonic())
    try:
        async with client.stream("POST", f"{url}/v1/completions", json=what.body(), timeout=SILENCE) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode(errors="replace")
                said.error = f"status {response.status_code}: {text[:500]}"
                return said
            await _follow(response, said)
    except httpx.TransportError as error:
        said.error, said.lost_connection = repr(error), True
    finally:
        said.over = time.monotonic()
        said.check()
    return said


async def _follow(response: httpx.Response, said: Said) -> None:
    done = False
    async for line in response.aiter_lines():
        if line == "data: [DONE]":
            done = True
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[len("data: ") :])
        if "error" in event:
            said.error = str(event["error"])
            return
        _take(event, said)
        if said.pieces == said.ask.leave_after:
            said.left = True
            return
        if said.ask.pause:
            await asyncio.sleep(said.ask.pause)
    if not done:
        said.error = "the stream ended without [DONE]"


def _take(event: Json, said: Said) -> None:
    if usage := event.get("usage"):
        said.prompt, said.generated = usage["prompt_tokens"], usage["completion_tokens"]
    if timings := event.get("timings"):
        said.computed = timings["prompt_n"]
    for choice in event["choices"]:
        said.finish = choice.get("finish_reason") or said.finish
        said.text += choice["text"]
        said.tokens += [token["id"] for token in (choice.get("logprobs") or {}).get("content") or []]
        said.pieces += bool(choice["text"])


class Asker(Protocol):
    """A source of requests that takes in their replies, as `benchmarks.harm.talk.Talk`."""

    def next(self) -> Ask: ...
    def answered(self, text: str) -> None: ...


class Load:
    """Several clients at once, each sending its next request when the one before is over."""

    def __init__(self, client: httpx.AsyncClient, url: str, retry: bool = False) -> None:
        """`retry`: ask again as long as nobody is there, as clients do; the error is not counted then."""
        self._client = client
        self._url = url
        self._retry = retry
        self.active: set[Said] = set()
        self.over: list[Said] = []
        """In the order in which they ended; those that were tried again only with their last try."""
        self.retries = 0

    @property
    def errors(self) -> list[Said]:
        """Those that a client saw fail."""
        return [said for said in self.over if said.error]

    async def run(self, askers: Sequence[Asker], go_on: Callable[[], bool]) -> None:
        """Until `go_on` is false for every client and what is under way is over."""
        await asyncio.gather(*(self._one(asker, go_on) for asker in askers))

    async def _one(self, asker: Asker, go_on: Callable[[], bool]) -> None:
        while go_on():
            said = await self._send(asker.next())
            asker.answered(said.text)
            self.over.append(said)

    async def _send(self, what: Ask) -> Said:
        while True:
            said = Said(what, time.monotonic())
            self.active.add(said)
            try:
                await ask(self._client, self._url, what, said)
            finally:
                self.active.discard(said)
            if not (self._retry and said.lost_connection):
                return said
            self.retries += 1
            await asyncio.sleep(0.1)
