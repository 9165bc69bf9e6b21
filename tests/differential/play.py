"""Runs a trace on a daemon's parts with a real worker, and checks what must hold whatever was asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from differential.sessions import Sessions
from differential.trace import Ask, Trace
from e2e.e2e_parts import Parts, Reply, follow, running_parts
from lcpd.cache.cache import PromptCache
from lcpd.engine import protocol as p
from lcpd.scheduler.generation import Begun, Done, Event

_CANCELLED_RESTORE = "the request was cancelled before its state was there"


class TraceFailed(AssertionError):
    """What must not happen, and the whole trace for which it did."""

    def __init__(self, trace: Trace, what: str) -> None:
        super().__init__(f"{what}\n{trace.text()}")


@dataclass
class Played:
    """What became of a trace."""

    replies: list[Reply] = field(default_factory=list)
    """Of all requests that got as far as a token."""
    seen: Counter[str] = field(default_factory=Counter)
    """How often what a trace is there for really happened."""


def cache_of(parts: Parts) -> PromptCache:
    """The daemon's prompt cache, which nobody but its owner and these tests reaches into."""
    cache: PromptCache = parts.dispatcher._state.keeper._cache
    return cache


async def play(trace: Trace, tokenize: Callable[[str], Sequence[int]]) -> Played:
    """Start a daemon, ask all of a trace, stop the daemon.  Raises TraceFailed."""
    async with running_parts(trace.setup.kind, **trace.setup.sections()) as parts:
        player = _Player(trace, parts, tokenize)
        for number, asks in enumerate(trace.rounds):
            try:
                await player.round(asks)
            except Exception as error:
                raise TraceFailed(trace, f"round {number}: {error!r}") from error
        return player.played


class _Player:
    def __init__(self, trace: Trace, parts: Parts, tokenize: Callable[[str], Sequence[int]]) -> None:
        self._parts = parts
        self._cache = cache_of(parts)
        self._arena = self._cache._store.arena
        self._sessions = Sessions(tokenize, trace.setup.longest)
        self._failed_starts = 0
        """In this round: those that had to begin at 0."""
        self._checked = 0
        """Messages of the worker that were looked at."""
        self.played = Played()
        listen = parts.dispatcher.on_message

        def hear(message: p.FromWorker) -> None:
            listen(message)
            used, size = self._arena.used, self._arena.size
            assert used <= size, f"{used} of {size} bytes of the arena are in use"

        parts.dispatcher.on_message = hear

    async def round(self, asks: Sequence[Ask]) -> None:
        """Ask all at once, wait for the end of all, and check."""
        prompts = [self._sessions.prompt(ask) for ask in asks]
        generations = [self._parts.dispatcher.submit(prompt) for prompt, _ in prompts]
        replies = await asyncio.gather(*map(self._followed, generations, asks))
        for ask, (_, session), reply in zip(asks, prompts, replies, strict=True):
            self._check_reply(ask, reply)
            self._sessions.commit(ask, session, reply.tokens)
        self.played.replies += [reply for reply in replies if reply.tokens]
        await self._check_rest([generation.id for generation in generations])

    async def _followed(self, generation, ask: Ask) -> Reply:
        left = ask.cancel
        if left == 0:
            generation.close()
            return Reply(generation.prompt.tokens.tolist())

        def enough(event: Event) -> bool:
            nonlocal left
            left = left and left - 1
            return left == 0

        return await follow(generation, enough)

    def _check_reply(self, ask: Ask, reply: Reply) -> None:
        dones = sum(isinstance(event, Done) for event in reply.events)
        begins = sum(isinstance(event, Begun) for event in reply.events)
        assert begins <= 1, f"it began {begins} times: {ask}"
        if ask.cancel is not None and not reply.reason:
            self.played.seen["cancelled"] += 1
            assert not dones
        else:
            assert (reply.reason, len(reply.tokens), dones, begins) == ("length", ask.length, 1, 1), (
                f"{reply} for {ask}"
            )

    async def _check_rest(self, requests: Sequence[int]) -> None:
        parts = self._parts
        await parts.until_idle()
        await parts.until(lambda: self._cache.stats().reserved_bytes == 0, "all commands are answered")
        assert not any(slot.busy for slot in parts.dispatcher.slots), "a slot is leaked"
        self._cache.check_integrity()
        stats = self._cache.stats()
        assert stats.lingering_bytes == 0, f"something is still pinned: {stats}"
        new, self._checked = parts.messages[self._checked :], len(parts.messages)
        ended = Counter(m.request for m in new if isinstance(m, p.Finished | p.Failed))
        began = {m.request for m in new if isinstance(m, p.Started)}
        assert began <= set(requests), f"requests {began} began, {requests} were sent"
        assert all(count == 1 for count in ended.values()) and began <= set(ended), f"{began} began, {ended} ended"
        self._failed_starts = 0
        for message in new:
            self._look_at(message)

    def _look_at(self, message: p.FromWorker) -> None:
        seen = self.played.seen
        match message:
            case p.Failed():
                raise AssertionError(f"{message}")
            case p.Started(problem=problem):
                # One whose source was to be brought to its place by a Start that failed before.
                no_source = self._failed_starts > 0 and problem.startswith("sequence ")
                assert problem in ("", _CANCELLED_RESTORE) or no_source, problem
                self._failed_starts += problem != ""
                seen["no source"] += no_source
                seen["resumed"] += message.begin > 0
                seen["restored"] += message.runs > 0
            case p.Saved(problem=problem):
                assert not problem, problem
                seen["saved"] += 1
            case p.Parked():
                seen["parked"] += 1
            case p.Checkpointed():
                seen["checkpoints"] += message.piece is not None
