"""How long a running stream stands still while somebody else's long prompt is computed, on lcpd and llama-server.

    python -m benchmarks.stall --rounds 8
    python -m benchmarks.stall --model demo:hybrid --prompt-tokens 30000

In each round a stream is decoding when a long prompt arrives on the other slot; what counts is the 99th percentile of
the gaps between the stream's pieces of text until that prompt's first token.  Both servers run all the time, one of
them works at a time, and the order changes from round to round.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.client import TIMEOUT, Json, RequestFailed
from benchmarks.ratios import Interval, median_interval, pair_ratios
from benchmarks.servers import HOST, Equal, Server, ServerFailed, run_lcpd, run_peer
from lcpd.build import BuildMissing, require_active
from lcpd.engine.threads import free_cores
from lcpd.models import BadReference, ModelMissing, resolve
from lcpd.paths import dirs

GOAL = 0.5
"""The gap over llama-server's, at most."""
PERCENTILE = 99
WARM_PIECES = 20
"""Pieces of text of the stream before the long prompt is sent."""
STREAM_TOKENS = 4000
"""More than a stream generates in a round, after which it is closed."""
_TOKENS = range(300, 2000)
"""Ids that are ordinary text in the usual vocabularies."""


@dataclass(frozen=True)
class Stall:
    """One server in one round.  Times in seconds."""

    gap: float
    """The percentile of the stream's gaps."""
    longest: float
    pieces: int
    """Of the stream's text, while the prompt was computed."""
    prefill: float
    """From the long prompt's request to its first token."""


@dataclass(frozen=True)
class Round:
    """Both servers with the same prompts."""

    lcpd: Stall
    peer: Stall


class _Stream(threading.Thread):
    """Follows one endless reply on a connection of its own, and notes when text came."""

    def __init__(self, port: int, body: Json) -> None:
        super().__init__(daemon=True)
        self.instants: list[float] = []
        """Monotonic seconds."""
        self.warm = threading.Event()
        """Set when enough has come, or nothing more will."""
        self._problem = ""
        self._body = body
        self._connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT)

    def run(self) -> None:
        """Read until the end of the reply, or until `close`."""
        try:
            response = _post(self._connection, self._body)
            while line := response.readline():
                if has_text(line):
                    self.instants.append(time.monotonic())
                    if len(self.instants) == WARM_PIECES:
                        self.warm.set()
            self._problem = "the stream ended"
        except (OSError, ValueError, http.client.HTTPException, RequestFailed) as error:
            self._problem = repr(error)
        finally:
            self.warm.set()

    def check(self) -> None:
        """Raises RequestFailed when the stream is over, although nobody closed it."""
        if self._problem:
            raise RequestFailed(f"the running stream is over after {len(self.instants)} pieces: {self._problem}")

    def close(self) -> None:
        """Leave as a client that loses interest."""
        if self._connection.sock:
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self.join()
        self._connection.close()


def has_text(line: bytes) -> bool:
    """Whether a line of a completion's stream brings text."""
    if not line.startswith(b"data: {"):
        return False
    event = json.loads(line[len(b"data: ") :])
    if "error" in event:
        raise RequestFailed(str(event["error"]))
    return any(choice.get("text") for choice in event["choices"])


def gaps(instants: Sequence[float], begin: float, end: float) -> list[float]:
    """The times between two successive instants, where at least a part of that time lies in [begin, end]."""
    return [later - earlier for earlier, later in pairwise(instants) if later > begin and earlier < end]


def stall(instants: Sequence[float], begin: float, end: float) -> Stall:
    """What the stream's instants say about a prompt computed in [begin, end].  Raises RequestFailed without gaps."""
    found = gaps(instants, begin, end)
    if not found:
        raise RequestFailed("the running stream had no text around the long prompt")
    return Stall(
        gap=float(np.percentile(found, PERCENTILE)), longest=max(found), pieces=len(found), prefill=end - begin
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; status 0 for a finished measurement whatever its verdict, 1 where it could not be made."""
    options = _parser().parse_args(arguments)
    # Otherwise SIGTERM would leave the servers behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    console = Console(highlight=False)
    try:
        rounds = measure_rounds(options, console)
    except (BadReference, BuildMissing, ModelMissing, OSError, RequestFailed, ServerFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    interval = median_interval(pair_ratios([r.lcpd.gap for r in rounds], [r.peer.gap for r in rounds]))
    console.print(_table(rounds))
    console.print(f"gap over llama-server's: {interval.median:.3f} ({interval.low:.3f} to {interval.high:.3f})")
    console.print(f"goal, at most {GOAL}: {verdict(interval)}")
    if options.json:
        report = {"settings": {k: str(v) for k, v in vars(options).items()}, "rounds": [asdict(r) for r in rounds]}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def verdict(interval: Interval) -> str:
    """Whether the goal is reached, by the ends of the interval."""
    if interval.high <= GOAL:
        return "reached"
    return "missed" if interval.low > GOAL else "inconclusive"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stall", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6, metavar="N")
    parser.add_argument("--model", default="demo:smollm2", metavar="REF")
    parser.add_argument("--prompt-tokens", type=int, default=8000, metavar="N", help="of the long prompt")
    parser.add_argument("--threads", type=int, default=free_cores(), metavar="N")
    parser.add_argument("--flash-attn", choices=["on", "off"], default="off")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the prompts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    return parser


def measure_rounds(options: argparse.Namespace, console: Console) -> list[Round]:
    """All rounds.  Raises what `main` reports."""
    build = require_active()
    if build.peer is None:
        raise BuildMissing("the active build has no llama-server; run: lcpd build --target llama-server")
    equal = Equal(
        model=resolve(options.model, dirs()),
        threads=options.threads,
        ctx=options.prompt_tokens + 2 * STREAM_TOKENS,
        batch=2048,
        ubatch=512,
        flash_attn=options.flash_attn,
        slots=2,
    )
    draw = random.Random(options.seed)
    rounds = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        lcpd = stack.enter_context(run_lcpd(equal, folder))
        peer = stack.enter_context(run_peer(equal, build.peer, folder))
        for server in (lcpd, peer):
            _measure(server, _ids(draw, 64), _ids(draw, 512))  # warms it up
        for number in range(options.rounds):
            short, long = _ids(draw, 64), _ids(draw, options.prompt_tokens)
            order = (lcpd, peer) if number % 2 == 0 else (peer, lcpd)
            found = {server.name: _measure(server, short, long) for server in order}
            rounds.append(Round(found[lcpd.name], found[peer.name]))
            ours, theirs = rounds[-1].lcpd, rounds[-1].peer
            console.print(
                f"{number + 1:3}: gap {ours.gap * 1e3:6.0f} / {theirs.gap * 1e3:6.0f} ms"
                f"   prefill {ours.prefill:6.2f} / {theirs.prefill:6.2f} s"
            )
    return rounds


def _measure(server: Server, short: list[int], long: list[int]) -> Stall:
    """One round on one server."""
    stream = _Stream(server.port, _body(short, STREAM_TOKENS, stream=True))
    stream.start()
    try:
        stream.warm.wait()
        stream.check()
        begin = time.monotonic()
        connection = http.client.HTTPConnection(HOST, server.port, timeout=TIMEOUT)
        try:
            _post(connection, _body(long, 1, stream=False)).read()
        finally:
            connection.close()
        end = time.monotonic()
        pieces = len(stream.instants)
        # The gap in which the prompt was finished has to end too.
        while len(stream.instants) == pieces:
            stream.check()
            time.sleep(0.005)
        return stall(stream.instants, begin, end)
    finally:
        stream.close()


def _post(connection: http.client.HTTPConnection, body: Json) -> http.client.HTTPResponse:
    connection.request("POST", "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RequestFailed(f"status {response.status}: {response.read(2000).decode(errors='replace')}")
    return response


def _body(prompt: list[int], max_tokens: int, stream: bool) -> Json:
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": stream}


def _ids(draw: random.Random, count: int) -> list[int]:
    """Random tokens: no prompt shares a prefix with another one."""
    return draw.choices(_TOKENS, k=count)


def _table(rounds: Sequence[Round]) -> Table:
    table = Table("median over the rounds", "lcpd", "llama-server")
    rows = {
        f"{PERCENTILE}th percentile of the gaps, ms": lambda s: f"{s.gap * 1e3:.0f}",
        "longest gap, ms": lambda s: f"{s.longest * 1e3:.0f}",
        "pieces of text meanwhile": lambda s: f"{s.pieces:.0f}",
        "the long prompt's time to its first token, s": lambda s: f"{s.prefill:.2f}",
    }
    for label, show in rows.items():
        table.add_row(label, *(show(_median([getattr(r, name) for r in rounds])) for name in ("lcpd", "peer")))
    return table


def _median(stalls: Sequence[Stall]) -> Stall:
    """Field by field."""
    return Stall(**{name: median(getattr(s, name) for s in stalls) for name in Stall.__dataclass_fields__})


if __name__ == "__main__":
    sys.exit(main())
