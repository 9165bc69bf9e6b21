"""kill -9 at random instants under load: of the worker, whose clients must notice nothing, and of the daemon."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from benchmarks.harm.daemon import Daemon
from benchmarks.harm.load import Ask, Load, Said, ask
from benchmarks.harm.talk import Shape, Talk

from faults.recompute import Loss
from faults.served import Served, served

INTERVAL = 1024
"""Tokens between checkpoints."""
BATCH = 256
COST = INTERVAL + INTERVAL // 16 + BATCH
"""Tokens of a prompt that a crash may cost: an interval and a sixteenth, and the batch that was under way."""
CLIENTS = 6
SLOTS = 4
SHAPE = Shape(head_lines=12, turn_lines=(2, 100), reply=(100, 500), most_lines=330)
_MEAN_LIFE = 0.8
"""Seconds that a worker lives on the average before it is killed."""
_DISK = 1 << 30
LOSS_WINDOW = 35.0
"""Seconds: a tail is saved after 30 s at most (cache.save_every), and then written."""
FLUSH_INTERVAL = 512
"""Tokens between checkpoints where the daemon is killed."""
_NEXT = (300, 301, 302, 303)
"""Tokens that continue a conversation."""
_BEHIND = 16
"""Tokens that may be computed although all was found: what continues it, and the last one of before."""


@dataclass
class WorkerKills:
    """What came of killing the worker."""

    kills: int = 0
    replies: list[Said] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def errors(self) -> list[str]:
        """What clients saw."""
        return [said.error for said in self.replies if said.error]

    def excess(self) -> list[Loss]:
        """Requests that computed more again than docs/reliability.md allows, and the tokens of their own reply."""
        return [loss for loss in self.losses if loss.again > COST + loss.generated]

    def __str__(self) -> str:
        again = sorted(loss.again for loss in self.losses)
        middle = again[len(again) // 2] if again else 0
        return (
            f"{self.kills} kills during {len(self.replies)} requests in {self.seconds:.0f} s: "
            f"{len(self.errors)} errors; {len(self.losses)} times a request went on, computing again "
            f"{middle} tokens (median), {max(again, default=0)} (most), {sum(again)} (all)"
        )


async def worker_kills(seed: int, kills: int, requests: int, kind: str = "hybrid") -> WorkerKills:
    """Kill the worker `kills` times while at least so many requests run, and follow all of them to their end."""
    cache = {"ram": 512 << 20, "checkpoint_interval": INTERVAL}
    model = {"slots": SLOTS, "batch": BATCH, "ubatch": BATCH}
    begun = time.monotonic()
    async with served(kind, model=model, cache=cache) as daemon:
        result = WorkerKills()
        load = Load(daemon.client, daemon.url)
        killing = asyncio.create_task(_kill_workers(daemon, seed, kills, result))

        def go_on() -> bool:
            return not killing.done() or len(load.over) + len(load.active) < requests

        talks = [Talk(f"worker kills {seed} {number}", SHAPE) for number in range(CLIENTS)]
        await load.run(talks, go_on)
        await killing
        result.replies, result.losses = load.over, daemon.losses.found
        result.seconds = time.monotonic() - begun
        return result


async def _kill_workers(daemon: Served, seed: int, kills: int, result: WorkerKills) -> None:
    draw = random.Random(seed)
    while result.kills < kills:
        await asyncio.sleep(draw.expovariate(1 / _MEAN_LIFE))
        old = daemon.hurt(signal.SIGKILL)
        if old is not None:
            result.kills += 1
            await daemon.until_replaced(old)


@dataclass(frozen=True)
class Probe:
    """A conversation that had been answered before a kill, and that is continued afterwards.  Counts in tokens."""

    kill: int
    age: float
    """Seconds from the end of its reply to the kill."""
    prompt: int
    """Of the old prompt."""
    reply: int
    """Of the old reply."""
    computed: int
    """Of both and the few that follow."""

    @property
    def intervals_found(self) -> bool:
        """Whether what is flushed while a prompt is computed is used: at most the reply and the last interval are not.

        Positions of checkpoints are not exact, so it is allowed an interval more; short prompts say nothing.
        """
        return self.computed <= self.reply + 2 * FLUSH_INTERVAL

    @property
    def tail_found(self) -> bool:
        """Whether all of it is used."""
        return self.computed <= _BEHIND


@dataclass
class DaemonKills:
    """What came of killing the daemon."""

    kills: int = 0
    replies: list[Said] = field(default_factory=list)
    """To requests that were under way at a kill: as they were tried again."""
    probes: list[Probe] = field(default_factory=list)
    again: list[Said] = field(default_factory=list)
    """The probes' replies."""
    start_seconds: list[float] = field(default_factory=list)
    retries: int = 0

    @property
    def errors(self) -> list[str]:
        """What clients saw other than a connection that was gone."""
        return [said.error for said in [*self.replies, *self.again] if said.error]

    @property
    def loss_window(self) -> float:
        """Seconds: the age of the oldest conversation of which an interval was lost; 0: of none."""
        return max((probe.age for probe in self.long_probes if not probe.intervals_found), default=0.0)

    @property
    def tail_window(self) -> float:
        """The same for tails: what lies behind the last interval, and the reply."""
        return max((probe.age for probe in self.probes if not probe.tail_found), default=0.0)

    @property
    def long_probes(self) -> list[Probe]:
        """Those of prompts with intervals to lose."""
        return [probe for probe in self.probes if probe.prompt > 2 * FLUSH_INTERVAL]

    def __str__(self) -> str:
        found = sum(probe.intervals_found for probe in self.long_probes)
        tails = sum(probe.tail_found for probe in self.probes)
        return (
            f"{self.kills} kills, {len(self.replies)} requests ({self.retries} tries for nothing), "
            f"{len(self.errors)} errors; intervals: found of {found} in {len(self.long_probes)} long prompts, the "
            f"oldest loss was {self.loss_window:.1f} s old; tails: {tails} of {len(self.probes)} found, the oldest "
            f"loss was {self.tail_window:.1f} s old; ready after {max(self.start_seconds, default=0):.1f} s at most"
        )


async def daemon_kills(seed: int, kills: int, folder: Path, life: tuple[float, float] = (3.0, 12.0)) -> DaemonKills:
    """Kill the daemon `kills` times under load; `life`: least and most seconds that one runs under load."""
    environment = {
        "LCPD_CACHE__DIR": str(folder / "prompts"),
        "LCPD_CACHE__DISK": str(_DISK),
        "LCPD_CACHE__RAM": str(256 << 20),
        "LCPD_CACHE__CHECKPOINT_INTERVAL": str(FLUSH_INTERVAL),
        "OMP_NUM_THREADS": "1",
    }
    flags = ("--threads", "1", "--slots", str(SLOTS), "--ctx", "8192", "--flash-attn", "off", "--batch", "256")
    daemon = Daemon(folder, flags, environment)
    result, draw = DaemonKills(), random.Random(seed)
    try:
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None)) as client:
            await daemon.start()
            talks = [Talk(f"daemon kills {seed} {number}", SHAPE) for number in range(CLIENTS)]
            load = Load(client, daemon.url, retry=True)
            for _ in range(kills):
                await _one_life(daemon, load, talks, draw.uniform(*life), client, result)
            result.replies, result.retries = load.over, load.retries
            assert await daemon.end() == 0, daemon.log
    finally:
        await daemon.kill()
    result.start_seconds = daemon.start_seconds
    return result


async def _one_life(
    daemon: Daemon, load: Load, talks: Sequence[Talk], seconds: float, client: httpx.AsyncClient, result: DaemonKills
) -> None:
    """Load for so long, a kill, a start, and the prompts of this life once more."""
    going, known = True, len(load.over)
    running = asyncio.create_task(load.run(talks, lambda: going))
    try:
        await asyncio.sleep(seconds)
        await daemon.end(signal.SIGKILL)
        killed = time.monotonic()
        result.kills += 1
        await daemon.start()
    finally:
        going = False
        # What was under way is tried again until it is answered; nothing new is asked.
        await running
    finished = [said for said in load.over[known:] if said.over < killed and not said.error]
    for said in _spread(finished, 6):
        before = await _tokens(client, daemon.url, said)
        again = await ask(client, daemon.url, Ask([*before, *said.tokens, *_NEXT], 24))
        result.again.append(again)
        age = killed - said.over
        result.probes.append(Probe(result.kills, age, len(before), len(said.tokens), again.computed))


async def _tokens(client: httpx.AsyncClient, url: str, said: Said) -> list[int]:
    """Of a prompt, as the daemon sees it."""
    response = await client.post(f"{url}/tokenize", json={"content": said.ask.prompt, "add_special": True})
    response.raise_for_status()
    tokens: list[int] = response.json()["tokens"]
    assert len(tokens) == said.prompt, f"{len(tokens)} tokens instead of {said.prompt}"
    return tokens


def _spread(replies: Sequence[Said], count: int) -> list[Said]:
    """At most `count` of them, evenly over their ends, the last one included."""
    if len(replies) <= count:
        return list(replies)
    return [replies[-1 - round(i * (len(replies) - 1) / (count - 1))] for i in range(count)]
