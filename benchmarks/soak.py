"""Mixed load with faults for as long as wanted, and whether anything grows without bound.

    python -m benchmarks.soak --minutes 120 --report docs/soak.md
    python -m benchmarks.soak --minutes 60 --replies replies.jsonl && python -m tests.faults --judge replies.jsonl

Clients hold growing conversations, some slowly, some go away; meanwhile the worker is killed and stopped, clients read
nothing or send half a request, and in the first half of the run the daemon is killed and restarted.  In the second half
one daemon lives on: what it leaks shows there (the rule: benchmarks/harm/growth.py).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import httpx

from benchmarks.harm import rude
from benchmarks.harm.daemon import CHAT, WORKER, Daemon, DaemonFailed
from benchmarks.harm.growth import Rule, Verdict, descriptors, disk_bytes, judge, own_bytes
from benchmarks.harm.load import Ask, Load, Said
from benchmarks.harm.talk import Shape, Talk
from lcpd.build import BuildMissing
from lcpd.engine.threads import free_cores
from lcpd.models import BadReference, ModelMissing

MIB = 1 << 20
RAM, DISK = 256 * MIB, 512 * MIB
_SAMPLES = 240
"""In a whole run; at most one in two seconds."""
_SHAPE = Shape(turn_lines=(2, 60), reply=(20, 400), most_lines=200)
_HEARTBEAT = 4.0
"""Seconds: how long a stopped worker is waited for."""
RULES = (
    Rule("daemon, own memory", "MiB", 16),
    Rule("chat process, own memory", "MiB", 16),
    Rule("worker, own memory", "MiB", 32),
    Rule("daemon, open files", "", 8),
    Rule("chat process, open files", "", 4),
    Rule("worker, open files", "", 4),
    Rule("arena in use", "MiB", RAM / MIB, cap=RAM / MIB),
    Rule("disk in use", "MiB", DISK / MIB, cap=DISK / MIB),
)


class MixedTalk(Talk):
    """Some clients are slow, some go away, some do not ask for the ids of tokens."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed, _SHAPE)
        self._mood = random.Random(f"mood {seed}")

    def next(self) -> Ask:
        what, draw = super().next(), self._mood.random()
        if draw < 0.1:
            return replace(what, pause=0.05)
        if draw < 0.2:
            return replace(what, leave_after=self._mood.randint(1, 20))
        return replace(what, ids=draw < 0.7)


@dataclass
class Soak:
    """What a run has seen so far."""

    daemon: Daemon
    folder: Path
    begun: float = field(default_factory=time.monotonic)
    series: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {rule.name: [] for rule in RULES})
    faults: Counter[str] = field(default_factory=Counter)
    unread: list[socket.socket] = field(default_factory=list)
    """Of rude clients."""

    async def sample(self) -> None:
        """One value for each series; nothing of a process that is just not there."""
        now = time.monotonic() - self.begun
        pids = {"daemon": self.daemon.pid, "chat process": self.daemon.child(CHAT), "worker": self.daemon.child(WORKER)}
        for name, pid in pids.items():
            if pid is None:
                continue
            if (own := own_bytes(pid)) is not None:
                self.series[f"{name}, own memory"].append((now, own / MIB))
            if (files := descriptors(pid)) is not None:
                self.series[f"{name}, open files"].append((now, files))
        self.series["disk in use"].append((now, disk_bytes(self.folder) / MIB))
        with suppress(httpx.TransportError):
            used = await self.daemon.metric("lcpd_cache_used_bytes", tier="ram")
            self.series["arena in use"].append((now, used / MIB))

    def verdicts(self) -> list[Verdict]:
        """Of every series.  ValueError where there are too few samples."""
        return [judge(rule, self.series[rule.name]) for rule in RULES]


Fault = Callable[[Soak, random.Random], None]


def kill_worker(soak: Soak, draw: random.Random) -> None:
    """kill -9."""
    soak.daemon.signal_child(WORKER, signal.SIGKILL)


def stop_worker(soak: Soak, draw: random.Random) -> None:
    """It hangs until the daemon gives it up."""
    soak.daemon.signal_child(WORKER, signal.SIGSTOP)


def kill_chat(soak: Soak, draw: random.Random) -> None:
    """kill -9 of the chat process."""
    soak.daemon.signal_child(CHAT, signal.SIGKILL)


def deaf_client(soak: Soak, draw: random.Random) -> None:
    """A client that reads nothing, until a later fault of its kind makes room for it."""
    body = rude.stream_body(Talk(str(draw.random()), _SHAPE).next().prompt, 2000, n_probs=10)
    _hold(soak, draw, lambda: rude.never_reads(soak.daemon.port, body))


def half_request(soak: Soak, draw: random.Random) -> None:
    """A client that sends a part of its request."""
    body = rude.stream_body(Talk(str(draw.random()), _SHAPE).next().prompt, 100)
    share = draw.random()
    _hold(soak, draw, lambda: rude.half_open(soak.daemon.port, body, share))


def _hold(soak: Soak, draw: random.Random, connect: Callable[[], socket.socket]) -> None:
    with suppress(OSError):
        soak.unread.append(connect())
    if len(soak.unread) > 4:
        old = soak.unread.pop(0)
        if draw.random() < 0.5:
            rude.reset(old)
        else:
            old.close()


FAULTS: Sequence[tuple[str, float, Fault]] = (
    ("worker killed", 4, kill_worker),
    ("worker stopped", 1, stop_worker),
    ("chat process killed", 1, kill_chat),
    ("client that never reads", 3, deaf_client),
    ("half a request", 3, half_request),
)
"""Name, how often relative to the others, what is done."""


async def run(options: argparse.Namespace, folder: Path) -> tuple[Soak, Load]:
    """The whole run.  Raises DaemonFailed."""
    prompts = folder / "prompts"
    environment = {
        "LCPD_CACHE__DIR": str(prompts),
        "LCPD_CACHE__DISK": str(DISK),
        "LCPD_CACHE__DISK_FLOOR": "0",
        "LCPD_CACHE__RAM": str(RAM),
        "LCPD_CACHE__CHECKPOINT_INTERVAL": "512",
        "LCPD_ENGINE__HEARTBEAT_TIMEOUT": str(_HEARTBEAT),
        "LCPD_ENGINE__CRASH_LIMIT": "100",
        "LCPD_SERVER__CLIENT_TIMEOUT": "5",
    }
    flags = ("--model", options.model, "--slots", "4", "--ctx", "8192", "--threads", str(options.threads))
    daemon = Daemon(folder, flags, environment)
    await daemon.start()
    soak = Soak(daemon, prompts)
    end = soak.begun + 60 * options.minutes
    try:
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None)) as client:
            load = Load(client, daemon.url, retry=True)
            talks = [MixedTalk(f"soak {options.seed} {number}") for number in range(options.clients)]
            sampling = asyncio.create_task(_sample(soak, end))
            hurting = asyncio.create_task(_hurt(soak, end, options))
            loading = asyncio.create_task(load.run(talks, lambda: time.monotonic() < end))
            await _all_or_none(sampling, hurting, loading)
        status = await daemon.end()
        if status:
            raise DaemonFailed(f"it ended with {status}:\n{daemon.log[-4000:]}")
        return soak, load
    finally:
        for sock in soak.unread:
            sock.close()
        await daemon.kill()


async def _all_or_none(*tasks: asyncio.Task[None]) -> None:
    """Wait for all; the first error ends the others and is raised."""
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _sample(soak: Soak, end: float) -> None:
    pause = max(2.0, (end - soak.begun) / _SAMPLES)
    while time.monotonic() < end:
        await asyncio.sleep(pause)
        await soak.sample()


async def _hurt(soak: Soak, end: float, options: argparse.Namespace) -> None:
    draw = random.Random(f"faults {options.seed}")
    middle = (soak.begun + end) / 2
    restarts = _restart_moments(soak.begun, middle)
    names = [name for name, _, _ in FAULTS]
    weights = [weight for _, weight, _ in FAULTS]
    calls = {name: call for name, _, call in FAULTS}
    while True:
        await asyncio.sleep(draw.expovariate(1 / options.fault_every))
        if time.monotonic() >= end:
            return
        if restarts and time.monotonic() >= restarts[0]:
            restarts.pop(0)
            number, name = draw.choice([(signal.SIGKILL, "daemon killed"), (signal.SIGTERM, "daemon restarted")])
            await soak.daemon.end(number)
            await soak.daemon.start()
        else:
            name = draw.choices(names, weights)[0]
            # A big request is on its way while somebody else may be waiting for the loop.
            await asyncio.to_thread(calls[name], soak, draw)
        soak.faults[name] += 1


def _restart_moments(begin: float, end: float, most: int = 8) -> list[float]:
    """Of the daemon: evenly over the first part of the run, none in the last fifth of it, at least 20 s apart."""
    count = max(1, min(most, int((end - begin) / 20)))
    return [begin + (number + 1) / (count + 1) * 0.8 * (end - begin) for number in range(count)]


def report(soak: Soak, load: Load, options: argparse.Namespace, verdicts: Sequence[Verdict]) -> str:
    """The run in markdown."""
    left = sum(said.left for said in load.over)
    tokens = sum(said.generated for said in load.over)
    passed = all(verdict.bounded for verdict in verdicts) and not load.errors
    faults = ", ".join(f"{name} {count}" for name, count in sorted(soak.faults.items()))
    lines = [
        f"### {options.minutes:g} minutes, {datetime.now(UTC):%Y-%m-%d}: {'passed' if passed else 'FAILED'}",
        "",
        f"`python -m benchmarks.soak --minutes {options.minutes:g} --seed {options.seed} --model {options.model}`, "
        f"{options.threads} threads, {options.clients} clients, 4 slots, {RAM // MIB} MiB RAM, {DISK // MIB} MiB disk.",
        "",
        f"{len(load.over)} requests, {tokens} tokens, {left} left by their clients, {load.retries} tries while no "
        f"daemon listened or it died, **{len(load.errors)} errors**. Faults: {faults}. Daemons were ready after "
        f"{max(soak.daemon.start_seconds):.1f} s at most.",
        "",
        "| | samples | first quarter | last quarter | highest | growth over the second half | |",
        "|---|---|---|---|---|---|---|",
    ]
    for verdict in verdicts:
        rule = verdict.rule
        unit = f" {rule.unit}" if rule.unit else ""
        cap = f" (cap {rule.cap:g})" if rule.cap is not None else ""
        lines.append(
            f"| {rule.name}{unit and ',' + unit} | {verdict.samples} | {verdict.early:.1f} | {verdict.late:.1f} | "
            f"{verdict.highest:.1f}{cap} | {verdict.growth:+.1f} | {'bounded' if verdict.bounded else '**GROWS**'} |"
        )
    if load.errors:
        lines += ["", "Errors:", "", *(f"- {said.error[:300]}" for said in load.errors[:20])]
    return "\n".join(lines) + "\n"


def write_replies(file: Path, replies: Sequence[Said], most: int = 500) -> None:
    """The replies whose tokens are known, the last `most` of them: one JSON object a line."""
    known = [said for said in replies if said.ask.ids and said.tokens][-most:]
    lines = (json.dumps({"prompt": said.ask.prompt, "tokens": said.tokens}) for said in known)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """0: nothing grows and no client saw an error; 1: something does; 2: it could not be run."""
    options = _parser().parse_args(arguments)
    # Otherwise SIGTERM would leave the daemon behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            soak, load = asyncio.run(run(options, folder))
            verdicts = soak.verdicts()
        except (BadReference, BuildMissing, DaemonFailed, ModelMissing, OSError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    text = report(soak, load, options, verdicts)
    print(text)
    if options.report:
        options.report.write_text(text, encoding="utf-8")
    if options.replies:
        write_replies(options.replies, load.over)
    return int(bool(load.errors) or not all(verdict.bounded for verdict in verdicts))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=120.0, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--model", default="demo:hybrid", metavar="REF")
    parser.add_argument("--clients", type=int, default=6, metavar="N")
    parser.add_argument("--threads", type=int, default=free_cores(), metavar="N")
    parser.add_argument("--fault-every", type=float, default=10.0, metavar="SECONDS", help="on the average")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="for logs and the cache; default: a temporary one")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the report there (markdown)")
    parser.add_argument("--replies", type=Path, metavar="FILE", help="write replies there, for tests.faults --judge")
    return parser


if __name__ == "__main__":
    sys.exit(main())
