"""A coding agent's traffic replayed against lcpd and llama-server: what each computes of what no cache can avoid.

    python -m benchmarks.agentic [--json FILE]
    python -m benchmarks.agentic --ram

Both servers get the same requests, one server after the other in each round; the history of a session holds the
server's own replies, as a client's does.  docs/performance.md describes the phases.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.agentic_client import Answer, ask, chat_body
from benchmarks.agentic_count import Known, Renderer
from benchmarks.agentic_memory import saved_bytes
from benchmarks.agentic_report import Goal, Memory, Phase, Record, memory_goal, phases, replay_goals, total
from benchmarks.agentic_text import Json, Writer
from benchmarks.agentic_trace import SESSIONS, Round, Session, agentic_trace, memory_trace
from benchmarks.client import TIMEOUT, RequestFailed
from benchmarks.servers import Equal, Server, ServerFailed, run_lcpd, run_peer
from lcpd.build import BuildMissing, require_active
from lcpd.chat.client import ChatClient, ChatCrashed, ChatRefused, ChatSettings, ChatUnavailable
from lcpd.engine.threads import free_cores
from lcpd.models import BadReference, ModelMissing, resolve
from lcpd.paths import dirs

UBATCH = 512
_SERVERS = ("lcpd", "llama-server")
_CHAT_MEMORY = 4 << 30
_CHAT_TIMEOUT = 60.0

REPLAY_SHARE = 0.01
"""By how much lcpd may count other prompts: it takes its replies in the history as they were generated, which can be a
few tokens more or less than the template's rendering of them."""


class Miscounted(RuntimeError):
    """A server's prompt is not the one that was counted, so its novel tokens mean nothing."""


class Seat:
    """One server with its clients' sessions and what was measured."""

    def __init__(self, server: Server, client: httpx.AsyncClient, renderer: Renderer, gen_tokens: int) -> None:
        self.server = server
        self.records: list[Record] = []
        self.memory: dict[str, Memory] = {}
        """At the end of each phase so far."""
        self.bodies: list[Json] = []
        """Everything that was sent, in order."""
        self._client = client
        self._renderer = renderer
        self._gen_tokens = gen_tokens
        self._known = Known()
        self._sessions: dict[str, Session] = {}
        self._at_start = 0

    async def warm_up(self) -> None:
        """One short request that nothing else resembles; memory counts from here on."""
        text = Writer("warm-up").prose(40)
        await ask(self._client, self.server.url, chat_body([{"role": "user", "content": text}], (), self._gen_tokens))
        self._at_start = self.server.memory()

    async def run(self, round_: Round) -> None:
        """Send a round's requests at once and note what came of them.  Raises what `main` reports."""
        bodies = []
        for turn in round_.turns:
            session = self._sessions.setdefault(turn.session, Session())
            messages = session.send(turn.action)
            bodies.append(chat_body(messages, session.tools, self._gen_tokens, **session.fields))
        prompts = [await self._renderer.prompt(body) for body in bodies]
        novel = []
        for prompt in prompts:
            novel.append(self._known.novel(prompt))
            self._known.add(prompt)
        answers = await asyncio.gather(*(ask(self._client, self.server.url, body) for body in bodies))
        self.bodies += bodies
        for turn, body, prompt, new, answer in zip(round_.turns, bodies, prompts, novel, answers, strict=True):
            if abs(answer.prompt - len(prompt)) > (REPLAY_SHARE * len(prompt) if self.server.name == "lcpd" else 0):
                raise Miscounted(
                    f"{self.server.name} counts {answer.prompt} tokens in a prompt of {turn.phase!r}, not {len(prompt)}"
                )
            fresh = await self._renderer.behind_history(body, prompt)
            self._known.add(await self._renderer.decoded(body, prompt, answer.message, answer.generated))
            self._sessions[turn.session].answer(answer.message)
            self.records.append(_record(turn.phase, turn.session, new, fresh, answer))
        saved = await saved_bytes(self._client, self.server)
        growth = self.server.memory() - self._at_start
        self.memory[round_.turns[0].phase] = Memory(growth, saved)

    def phases(self) -> list[Phase]:
        """The sums so far."""
        return phases(self.records, self.memory)


def _record(phase: str, session: str, novel: int, fresh: int, answer: Answer) -> Record:
    return Record(
        phase=phase,
        session=session,
        prompt=answer.prompt,
        computed=answer.computed,
        novel=novel,
        fresh=fresh,
        ttft=answer.ttft,
        generated=answer.generated,
        called="tool_calls" in answer.message,
    )


def main(arguments: list[str] | None = None) -> int:
    """Replay and print; status 0 for a finished replay whatever its verdict, 1 where it could not be made."""
    options = _parser().parse_args(arguments)
    # Otherwise SIGTERM would leave the servers behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    console = Console(highlight=False)
    try:
        seats, settings = replay(options, console)
    except (
        *(BadReference, BuildMissing, ModelMissing, ServerFailed, OSError),
        *(RequestFailed, httpx.TransportError, Miscounted, ChatRefused, ChatCrashed, ChatUnavailable),
    ) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    sums = {seat.server.name: seat.phases() for seat in seats}
    goals = _goals(sums, options.ram)
    console.print(_table(sums))
    for line in _remarks(seats):
        console.print(line)
    for name, found in goals.items():
        for goal in found:
            console.print(f"{name}: {'met' if goal.met else 'MISSED'}: {goal.name}: {goal.measured}")
    if options.json:
        report = {
            "settings": settings,
            "records": {seat.server.name: [asdict(record) for record in seat.records] for seat in seats},
            "phases": {name: [asdict(part) for part in parts] for name, parts in sums.items()},
            "goals": {name: [asdict(goal) for goal in found] for name, found in goals.items()},
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.agentic", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo:hybrid", metavar="REF")
    parser.add_argument("--server", action="append", choices=_SERVERS, help="default: both")
    parser.add_argument("--ram", action="store_true", help="ten sessions with one head: compare the host memory")
    parser.add_argument("--scale", type=float, default=1.0, metavar="X", help="of all texts' lengths")
    parser.add_argument(
        "--ctx",
        type=int,
        metavar="N",
        help="cells of the KV cache; default: 16384, with --ram 32768, more where --scale is above 1",
    )
    parser.add_argument("--slots", type=int, metavar="N", help=f"default: 4, with --ram {SESSIONS}")
    parser.add_argument("--cache-ram", type=int, default=1024, metavar="MIB", help="of either server")
    parser.add_argument("--gen-tokens", type=int, default=96, metavar="N", help="a reply has at most so many")
    parser.add_argument(
        "--pause", type=float, default=1.0, metavar="SECONDS", help="the user's typing before stripped turns"
    )
    parser.add_argument("--threads", type=int, default=free_cores(), metavar="N")
    parser.add_argument("--flash-attn", choices=["on", "off"], default="off")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    return parser


def replay(options: argparse.Namespace, console: Console) -> tuple[list[Seat], Json]:
    """Each server's seat after the whole trace, and the settings.  Raises what `main` reports."""
    build = require_active()
    names = options.server or _SERVERS
    cells = round((32768 if options.ram else 16384) * max(1.0, options.scale))
    equal = Equal(
        model=resolve(options.model, dirs()),
        threads=options.threads,
        ctx=options.ctx or cells,
        batch=2048,
        ubatch=UBATCH,
        flash_attn=options.flash_attn,
        slots=options.slots or (SESSIONS if options.ram else 4),
        cache_ram=options.cache_ram,
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = []
        if "lcpd" in names:
            servers.append(stack.enter_context(run_lcpd(equal, folder)))
        if "llama-server" in names:
            if build.peer is None:
                raise BuildMissing("the active build has no llama-server; run: lcpd build --target llama-server")
            servers.append(stack.enter_context(run_peer(equal, build.peer, folder)))
        chat = ChatClient(ChatSettings(equal.model, None, build.lib_dir, _CHAT_MEMORY, _CHAT_TIMEOUT))
        trace = memory_trace(options.scale) if options.ram else agentic_trace(options.scale, options.pause)
        seats = asyncio.run(_replay(servers, chat, trace, options.gen_tokens, console))
    named = {"model": options.model, "build": build.key, "scale": options.scale, "gen_tokens": options.gen_tokens}
    return seats, asdict(equal) | named


async def _replay(
    servers: Sequence[Server], chat: ChatClient, trace: Sequence[Round], gen_tokens: int, console: Console
) -> list[Seat]:
    await chat.start()
    try:
        async with httpx.AsyncClient(timeout=TIMEOUT) as client:
            seats = [Seat(server, client, Renderer(chat), gen_tokens) for server in servers]
            for seat in seats:
                await seat.warm_up()
            for number, round_ in enumerate(trace):
                await asyncio.sleep(round_.pause)
                # Turn about, so that a drift of the machine favours neither.
                for seat in seats if number % 2 == 0 else reversed(seats):
                    await seat.run(round_)
                console.print(f"{number + 1:3} of {len(trace)}: {round_.turns[0].phase}")
            return seats
    finally:
        await chat.stop()


def _goals(sums: dict[str, list[Phase]], ram: bool) -> dict[str, list[Goal]]:
    if not ram:
        return {name: replay_goals(parts, UBATCH) for name, parts in sums.items()}
    if len(sums) < len(_SERVERS):
        return {}
    return {"lcpd": [memory_goal(*(sums[name] for name in _SERVERS))]}


def _remarks(seats: Sequence[Seat]) -> list[str]:
    """What has to be known to read the figures."""
    lines = []
    for seat in seats:
        called = sum(record.called for record in seat.records)
        lines.append(f"{seat.server.name}: {called} of {len(seat.records)} replies call a tool")
    if len(seats) > 1:
        ours, theirs = (seat.bodies for seat in seats)
        differing = sum(a != b for a, b in zip(ours, theirs, strict=True))
        lines.append(f"{differing} of {len(ours)} requests differ between the servers, because earlier replies did")
    return lines


def _table(sums: dict[str, list[Phase]]) -> Table:
    table = Table("phase", "server", title="tokens computed of those that no earlier prompt or reply had as prefix")
    for heading in ("requests", "prompt", "novel", "computed", "ratio", "TTFT, ms", "kept, MiB", "growth, MiB"):
        table.add_column(heading, justify="right")
    by_phase = zip(*([*parts, total(parts)] for parts in sums.values()), strict=True)
    for row in by_phase:
        for name, part in zip(sums, row, strict=True):
            table.add_row(part.name, name, *_cells(part), end_section=name == list(sums)[-1])
    return table


def _cells(part: Phase) -> list[str]:
    saved = part.memory.saved
    return [
        *(str(count) for count in (part.requests, part.prompt, part.novel, part.computed)),
        f"{part.ratio:.2f}",
        f"{part.ttft * 1e3:.0f}",
        "-" if saved is None else f"{saved / 2**20:.1f}",
        f"{part.memory.growth / 2**20:.1f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
