"""The engine of the simulation: clients, a queue, sequences that prefill and decode, and the clock.

Between two events every rate is constant, so time jumps from event to event.  Prefills share the prefill speed;
while both go on, decoding keeps `DECODE_SHARE` of the time.  A copy of state holds up everything.  What is kept,
where a prompt resumes and where state is copied is up to a policy.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from benchmarks.sim_novelty import Everything
from benchmarks.sim_traffic import Client, Pause, Request, Spawn, Tokens

DECODE_SHARE = 0.15
_CLOSE = 1e-6
"""Tokens by which rounding may miss a position."""


@dataclass(frozen=True)
class Economics:
    """Sizes and speeds of a 27B hybrid model with a q8_0 KV cache on a 24 GB card."""

    token_bytes: int = 34 * 1024
    checkpoint_bytes: int = 156_893_184
    prefill: float = 1000.0
    """Tokens a second."""
    decode: float = 35.0
    """Tokens a second of each stream."""
    copy: float = 12e9
    """Bytes a second between device and host."""
    slots: int = 4
    cells: int = 131_072


@dataclass(eq=False)
class Job:
    """A request on its way."""

    id: int
    request: Request
    client: Client
    arrived: float
    known: int
    """Tokens of the prompt that were a prefix of something before."""
    begin: int = 0
    done: float = 0.0
    """Prompt tokens that the sequence holds."""
    generated: float = 0.0
    stops: list[int] = field(default_factory=list)
    """Positions, ascending, of which the policy wants to be told."""
    answered: bool = False
    """Whether its first token was counted."""

    @property
    def length(self) -> int:
        """Of the prompt."""
        return len(self.request.tokens)

    @property
    def prefilling(self) -> bool:
        """Whether the prompt is not yet complete."""
        return self.done < self.length

    @property
    def held(self) -> Tokens:
        """What the sequence holds at the end: the last token of the reply is never decoded."""
        return np.concatenate([self.request.tokens, self.request.reply[:-1]])


@dataclass(frozen=True)
class Placement:
    """How a prompt starts."""

    begin: int
    """Tokens that need not be computed."""
    tier: str
    """Where they come from."""
    held: int
    """The longest prefix of the prompt whose KV the chosen source holds."""
    anywhere: int
    """The longest prefix of the prompt whose KV is held anywhere."""
    stops: list[int]
    saved: int = 0
    """Bytes that were copied to the host before."""
    restored: int = 0
    """Bytes that were copied to the device before."""


class Policy(Protocol):
    """What is kept, and where prompts resume."""

    def start(self, waiting: Sequence[Job], running: Sequence[Job], now: float) -> tuple[Job, Placement] | None:
        """One job of those that wait, in order of arrival, and how it starts; None: all of them have to wait."""

    def reached(self, job: Job, position: int, now: float) -> int:
        """The job's sequence holds exactly `position` tokens; how many bytes were copied because of that."""

    def finished(self, job: Job, now: float) -> int:
        """The job's sequence is idle; how many bytes were copied because of that."""


@dataclass
class Tally:
    """What happened.  Tokens, seconds and bytes."""

    requests: int = 0
    prompt: int = 0
    novel: int = 0
    computed: int = 0
    tiers: Counter[str] = field(default_factory=Counter)
    """Requests by where their prefix came from."""
    reused: Counter[str] = field(default_factory=Counter)
    """Tokens by where they came from."""
    again: Counter[str] = field(default_factory=Counter)
    """Tokens computed though they were known once, by reason."""
    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    saved: int = 0
    restored: int = 0
    copy_seconds: float = 0.0
    stall_seconds: float = 0.0
    """Copy time multiplied by the running streams that waited meanwhile."""
    first_token: list[float] = field(default_factory=list)
    """Seconds from arrival to the end of the prefill."""
    seconds: float = 0.0
    """The length of the day."""


class Simulation:
    """Runs clients against a policy until all are through."""

    def __init__(self, policy: Policy, economics: Economics) -> None:
        self._policy = policy
        self._economics = economics
        self._now = 0.0
        self._free_at = 0.0
        """Until then copies hold up the engine."""
        self._order = itertools.count()
        self._wakes: list[tuple[float, int, Client]] = []
        self._parents: dict[Client, list[Client]] = {}
        self._children: Counter[Client] = Counter()
        self._waiting: list[Job] = []
        self._running: list[Job] = []
        self._everything = Everything()
        self.tally = Tally()

    def run(self, clients: Iterable[Client]) -> Tally:
        """The whole day.  Raises RuntimeError where the policy leaves requests waiting for nothing."""
        for client in clients:
            self._wake(client, 0.0)
        while self._wakes or self._running or self._waiting:
            self._advance(self._next_event())
            self._progress()
            while self._wakes and self._wakes[0][0] <= self._now:
                self._resume(heapq.heappop(self._wakes)[2])
            self._place()
        self.tally.seconds = self._now
        return self.tally

    # ---- time ------------------------------------------------------------------------------------------

    def _rate(self, job: Job) -> float:
        prefilling = sum(other.prefilling for other in self._running)
        decoding = len(self._running) - prefilling
        if job.prefilling:
            return self._economics.prefill / prefilling * (1 - DECODE_SHARE if decoding else 1)
        return self._economics.decode * (DECODE_SHARE if prefilling else 1)

    def _next_event(self) -> float:
        start = max(self._now, self._free_at)
        times = [start + self._left(job) / self._rate(job) for job in self._running]
        if self._wakes:
            times.append(self._wakes[0][0])
        if not times:
            raise RuntimeError(f"{len(self._waiting)} requests wait and nothing runs")
        return max(self._now, min(times))

    def _left(self, job: Job) -> float:
        if job.prefilling:
            return (job.stops[0] if job.stops else job.length) - job.done
        return len(job.request.reply) - job.generated

    def _advance(self, to: float) -> None:
        seconds = max(0.0, to - max(self._now, self._free_at))
        for job, rate in [(job, self._rate(job)) for job in self._running]:
            if job.prefilling:
                job.done += seconds * rate
            else:
                job.generated += seconds * rate
        self._now = to

    def _copy(self, count: int, others: int) -> None:
        """`count` bytes are copied while `others` streams wait."""
        seconds = count / self._economics.copy
        self._free_at = max(self._free_at, self._now) + seconds
        self.tally.copy_seconds += seconds
        self.tally.stall_seconds += seconds * others

    def _progress(self) -> None:
        for job in list(self._running):
            if job.stops and job.done >= job.stops[0] - _CLOSE:
                position = job.stops.pop(0)
                job.done = position
                self._save(self._policy.reached(job, position, self._now), job)
            elif not job.stops and not job.answered and job.done >= job.length - _CLOSE:
                job.done, job.answered = job.length, True
                self.tally.first_token.append(self._now - job.arrived)
            elif job.generated >= len(job.request.reply) - _CLOSE:
                self._running.remove(job)
                self._everything.add(job.held)
                self._save(self._policy.finished(job, self._now), job)
                self._wake(job.client, self._now)

    def _save(self, count: int, job: Job) -> None:
        self.tally.saved += count
        self._copy(count, sum(other is not job for other in self._running))

    # ---- clients ---------------------------------------------------------------------------------------

    def _wake(self, client: Client, at: float) -> None:
        heapq.heappush(self._wakes, (at, next(self._order), client))

    def _resume(self, client: Client) -> None:
        match next(client, None):
            case None:
                for parent in self._parents.pop(client, []):
                    self._children[parent] -= 1
                    if not self._children[parent]:
                        self._wake(parent, self._now)
            case Pause(seconds):
                self._wake(client, self._now + seconds)
            case Spawn(clients, join):
                for child in clients:
                    self._wake(child, self._now)
                    if join:
                        self._parents[child] = [client]
                        self._children[client] += 1
                if not join:
                    self._wake(client, self._now)
            case Request() as request:
                # The last token is always computed, because logits are not part of the state.
                known = min(self._everything.known(request.tokens), len(request.tokens) - 1)
                self._everything.add(request.tokens)
                self._waiting.append(Job(next(self._order), request, client, self._now, known))

    def _place(self) -> None:
        while self._waiting and (started := self._policy.start(self._waiting, self._running, self._now)):
            job, placement = started
            self._waiting.remove(job)
            job.begin, job.done = placement.begin, float(placement.begin)
            job.stops = [stop for stop in placement.stops if placement.begin < stop < job.length]
            self._count(job, placement)
            self._copy(placement.saved + placement.restored, len(self._running))
            self._running.append(job)

    def _count(self, job: Job, placement: Placement) -> None:
        tally = self.tally
        novel, computed = job.length - job.known, job.length - placement.begin
        tally.requests += 1
        tally.prompt += job.length
        tally.novel += novel
        tally.computed += computed
        tally.tiers[placement.tier] += 1
        tally.reused[placement.tier] += placement.begin
        tally.saved += placement.saved
        tally.restored += placement.restored
        # What another prefill will only have known later is counted as not held anywhere yet.
        anywhere = min(max(placement.anywhere, placement.begin), max(job.known, placement.begin))
        held = min(max(placement.held, placement.begin), anywhere)
        tally.again["evicted or not yet computed"] += max(job.known - anywhere, 0)
        tally.again["held elsewhere"] += anywhere - held
        tally.again["no checkpoint"] += held - placement.begin
        kind = tally.kinds.setdefault(job.request.kind, Counter())
        kind.update({"requests": 1, "novel": novel, "computed": computed})
