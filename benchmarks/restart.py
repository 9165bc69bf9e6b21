"""A long conversation's next turn, warm and after everything that can end: time to its first token, tokens computed.

    python -m benchmarks.restart [--model demo:hybrid --prompt-tokens 30000] [--json FILE]
    python -m benchmarks.restart --model demo:smollm2 --prompt-tokens 8000

The conversation is computed once (cold); each later step asks it again with another short last message.  lcpd has a
disk tier; llama-server from the same source saves its slot to a file before it ends and restores it when it is back,
both over its own API, which is all that it offers.  Each server runs alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.agentic_client import ask, chat_body
from benchmarks.agentic_text import Json, Writer
from benchmarks.client import TIMEOUT, RequestFailed
from benchmarks.harm.daemon import WORKER, alive, children
from benchmarks.servers import Equal, Server, ServerFailed, run_lcpd, run_peer
from lcpd.build import BuildMissing, require_active
from lcpd.engine.threads import free_cores
from lcpd.models import BadReference, ModelMissing, resolve
from lcpd.paths import dirs

GOAL = 0.02
"""Of the prompt, computed again after a restart, at most."""
RAM_MIB, DISK = 4096, 16 << 30
REPLY = 8
"""Tokens of each reply."""
FLUSH = 15.0
"""Seconds from the last reply to a kill that gives no warning: tails are saved after 5 s, and then written."""
_TURN_WORDS = 300
_SLOT_FILE = "conversation.bin"
_SERVERS = ("lcpd", "llama-server")


@dataclass(frozen=True)
class Step:
    """One measured turn.  Times in seconds, counts in tokens."""

    server: str
    name: str
    prompt: int
    computed: int
    ttft: float
    ready: float = 0.0
    """From the start of the process to its first healthy answer; 0: it was not started for this."""
    restore: float = 0.0
    """What the server's own command for restoring took, which a client has to wait for too."""

    @property
    def share(self) -> float:
        """Of the prompt."""
        return self.computed / self.prompt


class Conversation:
    """A long history, and a new last message for each step."""

    def __init__(self, words: int) -> None:
        writer = Writer("restart")
        self._history: list[Json] = [{"role": "system", "content": writer.prose(_TURN_WORDS)}]
        for number in range(max(1, words // _TURN_WORDS - 1)):
            role = ("user", "assistant")[number % 2]
            self._history.append({"role": role, "content": writer.prose(_TURN_WORDS)})
        if self._history[-1]["role"] == "user":
            self._history.append({"role": "assistant", "content": "I have read it."})
        self._writer = writer

    def body(self) -> Json:
        """The next request."""
        message = {"role": "user", "content": f"{self._writer.sentence()} What follows?"}
        return chat_body([*self._history, message], (), REPLY, ignore_eos=True)


async def turn(server: Server, conversation: Conversation, name: str, ready: float = 0.0, restore: float = 0.0) -> Step:
    """Ask and measure.  Raises RequestFailed or httpx.TransportError."""
    async with httpx.AsyncClient(timeout=TIMEOUT) as client:
        answer = await ask(client, server.url, conversation.body())
    return Step(server.name, name, answer.prompt, answer.computed, answer.ttft, ready, restore)


class Bench:
    """One server's life after life, and what was measured."""

    def __init__(self, start: Callable[[], AbstractContextManager[Server]], console: Console) -> None:
        self._start = start
        self._console = console
        self.steps: list[Step] = []

    @contextmanager
    def life(self) -> Iterator[tuple[Server, float]]:
        """A server from its start on, and the seconds until it was healthy; ended at the end, if it still lives."""
        begun = time.monotonic()
        with self._start() as server:
            yield server, time.monotonic() - begun

    def note(self, step: Step) -> None:
        """Keep a measurement."""
        self.steps.append(step)
        self._console.print(
            f"{step.server}, {step.name}: first token after {step.ttft:.2f} s, "
            f"{step.computed} of {step.prompt} computed"
        )


def measure_lcpd(options: argparse.Namespace, equal: Equal, folder: Path, console: Console) -> list[Step]:
    """All steps of lcpd."""
    conversation = Conversation(options.words)
    prompts = folder / "prompts"
    bench = Bench(partial(run_lcpd, equal, folder), console)

    def next_turn(server: Server, name: str, ready: float = 0.0) -> None:
        bench.note(asyncio.run(turn(server, conversation, name, ready)))

    with bench.life() as (server, ready):
        next_turn(server, "cold", ready)
        for _ in range(options.rounds):
            next_turn(server, "warm")
        for _ in range(options.rounds):
            # An idle slot is saved to RAM after a while; the worker dies after that.
            time.sleep(FLUSH)
            _kill_worker(server)
            next_turn(server, "after kill -9 of the worker")
    for _ in range(options.rounds):
        with bench.life() as (server, ready):
            next_turn(server, "after SIGTERM and start", ready)
    for _ in range(options.rounds):
        with bench.life() as (server, _):
            asyncio.run(turn(server, conversation, "between"))
            time.sleep(FLUSH)
            _kill(server)
        with bench.life() as (server, ready):
            next_turn(server, "after kill -9 and start", ready)
    for _ in range(options.rounds):
        how = drop_page_cache([equal.model, *prompts.rglob("*")])
        with bench.life() as (server, ready):
            next_turn(server, f"as after a reboot ({how})", ready)
    return bench.steps


def measure_peer(options: argparse.Namespace, equal: Equal, binary: Path, folder: Path, console: Console) -> list[Step]:
    """All steps of llama-server."""
    conversation = Conversation(options.words)
    slots = folder / "slots"
    slots.mkdir()
    bench = Bench(partial(run_peer, equal, binary, folder, ("--slot-save-path", f"{slots}/")), console)

    def next_turn(server: Server, name: str, ready: float = 0.0, restore: float = 0.0) -> None:
        bench.note(asyncio.run(turn(server, conversation, name, ready, restore)))

    with bench.life() as (server, ready):
        next_turn(server, "cold", ready)
        for _ in range(options.rounds):
            next_turn(server, "warm")
        _slot(server, "save")
    with bench.life() as (server, ready):
        next_turn(server, "after any end and start, nothing restored", ready)
        _slot(server, "save")
    for name, drop in (("after any end and start, slot restored", False), ("as after a reboot, slot restored", True)):
        for _ in range(options.rounds):
            how = f" ({drop_page_cache([equal.model, *slots.iterdir()])})" if drop else ""
            with bench.life() as (server, ready):
                seconds = _slot(server, "restore")
                next_turn(server, f"{name}{how}", ready, seconds)
    return bench.steps


def _slot(server: Server, action: str) -> float:
    """Save or restore slot 0; returns the seconds.  Raises RequestFailed."""
    begun = time.monotonic()
    response = httpx.post(
        f"{server.url}/slots/0", params={"action": action}, json={"filename": _SLOT_FILE}, timeout=TIMEOUT
    )
    if response.status_code != 200:
        raise RequestFailed(f"{action} of the slot: status {response.status_code}: {response.text[:500]}")
    return time.monotonic() - begun


def _kill_worker(server: Server) -> None:
    """kill -9, and wait until another one has loaded."""
    pid = next(pid for pid in children(server.process.pid) if _runs(pid, WORKER))
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + TIMEOUT
    while alive(pid) or httpx.get(f"{server.url}/health", timeout=30).json()["status"] != "ok":
        if time.monotonic() > deadline:
            raise ServerFailed(f"no new worker within {TIMEOUT:g} s; the log ends:\n{server.log_tail()}")
        time.sleep(0.02)


def _runs(pid: int, module: str) -> bool:
    return module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()


def _kill(server: Server) -> None:
    """kill -9, and wait until none of its processes is left."""
    family = children(server.process.pid)
    server.process.kill()
    server.process.wait()
    while any(alive(pid) for pid in family):
        time.sleep(0.02)


def drop_page_cache(files: list[Path]) -> str:
    """Make the next reader of these files wait for the disk; returns how that was done, for the table.

    The whole page cache where this process may; else only the pages of these files that nobody has mapped.
    """
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
        return "page cache dropped"
    except OSError:
        pass
    for file in files:
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
    return "only the pages of its files dropped: the rest of the page cache may not be"


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; status 0 for a finished measurement whatever its verdict, 1 where it could not be made."""
    options = _parser().parse_args(arguments)
    # Otherwise SIGTERM would leave the servers behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    console = Console(highlight=False)
    try:
        steps, settings = measure(options, console)
    except (
        *(BadReference, BuildMissing, ModelMissing, ServerFailed, OSError),
        *(RequestFailed, httpx.TransportError),
    ) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    console.print(_table(steps))
    for line in verdicts(steps):
        console.print(line)
    if options.json:
        report = {"settings": settings, "steps": [asdict(step) for step in steps]}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(options: argparse.Namespace, console: Console) -> tuple[list[Step], Json]:
    """Every step, and the settings.  Raises what `main` reports."""
    build = require_active()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        equal = Equal(
            model=resolve(options.model, dirs()),
            threads=options.threads,
            ctx=options.prompt_tokens + 2048,
            batch=2048,
            ubatch=512,
            flash_attn=options.flash_attn,
            cache_ram=RAM_MIB,
            environment={
                "LCPD_CACHE__DIR": str(folder / "prompts"),
                "LCPD_CACHE__DISK": str(DISK),
                "LCPD_CACHE__DISK_FLOOR": "0",
            },
        )
        options.words = _words(equal, folder, options.prompt_tokens)
        steps: list[Step] = []
        if "lcpd" in (options.server or _SERVERS):
            steps += measure_lcpd(options, equal, folder, console)
        if "llama-server" in (options.server or _SERVERS):
            if build.peer is None:
                raise BuildMissing("the active build has no llama-server; run: lcpd build --target llama-server")
            steps += measure_peer(options, equal, build.peer, folder, console)
    named = {"model": options.model, "build": build.key, "prompt_tokens": options.prompt_tokens}
    return steps, named | {"threads": options.threads, "rounds": options.rounds, "flash_attn": options.flash_attn}


def _words(equal: Equal, folder: Path, tokens: int) -> int:
    """About how many words make so many tokens; a little less, so that all fits."""
    probe = Conversation(3000)
    body = probe.body()
    with run_lcpd(equal, folder) as server:
        count = httpx.post(
            f"{server.url}/v1/messages/count_tokens",
            json={"messages": [m for m in body["messages"] if m["role"] != "system"]},
            timeout=TIMEOUT,
        )
        count.raise_for_status()
        each = count.json()["input_tokens"] / (3000 - _TURN_WORDS)
    return int(0.99 * tokens / each)


def _table(steps: list[Step]) -> Table:
    table = Table("server", "step", title="the next turn of a long conversation (medians)")
    for heading in ("ready, s", "restore, s", "TTFT, s", "computed", "of the prompt"):
        table.add_column(heading, justify="right")
    for (server, name), group in grouped(steps).items():
        table.add_row(
            server,
            name,
            *(_seconds(median(getattr(step, field) for step in group)) for field in ("ready", "restore", "ttft")),
            f"{median(step.computed for step in group):.0f}",
            f"{100 * median(step.share for step in group):.2f} %",
        )
    return table


def grouped(steps: list[Step]) -> dict[tuple[str, str], list[Step]]:
    """By server and name, in the order in which they came."""
    groups: dict[tuple[str, str], list[Step]] = {}
    for step in steps:
        groups.setdefault((step.server, step.name), []).append(step)
    return groups


def verdicts(steps: list[Step]) -> list[str]:
    """Whether lcpd kept its promise after each kind of end, by the worst round."""
    lines = []
    for (server, name), group in grouped(steps).items():
        if server == "lcpd" and name != "cold":
            worst = max(step.share for step in group)
            lines.append(f"{'met' if worst < GOAL else 'MISSED'}: {name}: {100 * worst:.2f} % of the prompt computed")
    return lines


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value else "-"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.restart", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo:hybrid", metavar="REF")
    parser.add_argument("--prompt-tokens", type=int, default=30000, metavar="N", help="of the conversation, about")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of each step but the cold one")
    parser.add_argument("--server", action="append", choices=_SERVERS, help="default: both")
    parser.add_argument("--threads", type=int, default=free_cores(), metavar="N")
    parser.add_argument("--flash-attn", choices=["on", "off"], default="off")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="on the disk to measure; default: the temporary one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
