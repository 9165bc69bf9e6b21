"""Decode and prefill speed of lcpd against llama-server from the same build with equal settings.

    python -m benchmarks.engine_parity --pairs 20 --streams 1,2,4,8

Both servers run all the time, and one of them works at a time.  A pair is one round on either with the same prompts;
the order changes from pair to pair, so that a drift of the machine favours neither.  Each number of streams is a
measurement of its own with as many slots.  docs/performance.md describes the method and holds results.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.client import Json, Rates, RequestFailed, chat_body, measure
from benchmarks.machine import OTHERS_LIMIT, others_share, usage, wait_until_quiet
from benchmarks.ratios import MIN_PAIRS, Interval, Verdict, judge, median_interval, pair_ratios, spread
from benchmarks.servers import Equal, Server, ServerFailed, run_lcpd, run_peer
from lcpd.build import BuildMissing, require_active
from lcpd.engine.threads import free_cores
from lcpd.models import BadReference, ModelMissing, resolve
from lcpd.paths import dirs

WORDS = (
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state"),
    *("family", "student", "group", "country", "hand", "part", "place", "case", "week", "company", "number", "point"),
)
"""Each is about one token in the usual vocabularies."""
IDLE_WINDOW = 2.0
"""Seconds over which the idle servers' CPU time is watched."""
IDLE_LIMIT = 0.05
"""Share of one core that an idle server may use."""
LABELS = {
    "prefill": "prefill, seen by the client",
    "decode": "decode, seen by the client",
    "total": "replies over the whole round",
    "server_prefill": "prefill, reported by the server",
    "server_decode": "decode, reported by the server",
}
"""By field of Rates."""


class Unfair(RuntimeError):
    """An idle server burns CPU time, so the rates of the other mean nothing."""


@dataclass(frozen=True)
class Pair:
    """A round on either server."""

    lcpd: Rates
    peer: Rates
    others: float
    """Share of a core that other processes used meanwhile."""

    @property
    def disturbed(self) -> bool:
        """Whether the rates say more about the other processes."""
        return self.others > OTHERS_LIMIT


@dataclass(frozen=True)
class Figure:
    """One kind of rate over all pairs.  Rates in tokens per second."""

    name: str
    lcpd: list[float]
    peer: list[float]
    ratios: list[float]
    interval: Interval
    verdict: Verdict


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; status 0 for a finished measurement whatever its verdict, 1 where it could not be made."""
    options = _parser().parse_args(arguments)
    # Otherwise SIGTERM would leave the servers behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    console = Console(highlight=False)
    reports = []
    for streams in options.streams:
        try:
            settings, pairs = measure_pairs(options, streams, console)
        except (BadReference, BuildMissing, ModelMissing, OSError, RequestFailed, ServerFailed, Unfair) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        used, note = choose(pairs)
        figures = [_figure(name, used) for name in LABELS]
        console.print(f"{streams} stream{'s' * (streams > 1)}: {note}")
        console.print(_table(figures))
        for figure in figures:
            console.print(f"{figure.name}: {figure.verdict.outcome} ({figure.verdict.reason})")
        reports.append(
            {"settings": settings, "pairs": [asdict(p) for p in pairs], "figures": [asdict(f) for f in figures]}
        )
        if options.json:  # after each, so that what was measured is not lost with a later failure
            options.json.write_text(json.dumps(reports, indent=2) + "\n", encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine_parity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pairs", type=int, default=20, metavar="N", help="undisturbed pairs to collect")
    parser.add_argument("--model", default="demo:smollm2", metavar="REF")
    parser.add_argument("--prompt-tokens", type=int, default=512, metavar="N", help="about as many in each prompt")
    parser.add_argument("--gen-tokens", type=int, default=128, metavar="N")
    parser.add_argument(
        "--streams", type=counts, default=[1], metavar="N[,N...]", help="requests at once, and as many slots"
    )
    parser.add_argument("--threads", type=int, default=free_cores(), metavar="N")
    parser.add_argument("--flash-attn", choices=["on", "off"], default="off")
    parser.add_argument(
        "--max-stall",
        type=float,
        metavar="MS",
        help="lcpd's scheduler.max_stall_ms; llama-server bounds no gap, so a large one makes them equal in that too",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the prompts")
    parser.add_argument(
        "--patience", type=float, default=300, metavar="SECONDS", help="to wait for a quiet machine, for each N"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every rate there")
    return parser


def counts(text: str) -> list[int]:
    """Positive numbers with commas between them.  Raises argparse.ArgumentTypeError."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no number and no list like 1,2,4") from error
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{min(numbers)} streams are too few")
    return numbers


def measure_pairs(options: argparse.Namespace, streams: int, console: Console) -> tuple[Json, list[Pair]]:
    """The settings, and all pairs: as many undisturbed ones as asked for, or fewer when patience ran out.

    Raises what `main` reports.
    """
    build = require_active()
    if build.peer is None:
        raise BuildMissing("the active build has no llama-server; run: lcpd build --target llama-server")
    equal = Equal(
        model=resolve(options.model, dirs()),
        threads=options.threads,
        ctx=streams * (2 * options.prompt_tokens + options.gen_tokens + 256),
        batch=2048,
        ubatch=512,
        flash_attn=options.flash_attn,
        slots=streams,
        environment={} if options.max_stall is None else {"LCPD_SCHEDULER__MAX_STALL_MS": f"{options.max_stall:g}"},
    )
    words = random.Random(options.seed)
    pairs: list[Pair] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        lcpd = stack.enter_context(run_lcpd(equal, folder))
        peer = stack.enter_context(run_peer(equal, build.peer, folder))
        _pair(lcpd, peer, words, options, streams, lcpd_first=True)  # warms both up
        check_idle([lcpd, peer])
        give_up = time.monotonic() + options.patience
        while (missing := options.pairs - sum(not pair.disturbed for pair in pairs)) > 0:
            wait_until_quiet([lcpd, peer], give_up - time.monotonic())
            if time.monotonic() > give_up and len(pairs) >= options.pairs:
                console.print(f"patience is over: {missing} undisturbed pairs are missing")
                break
            pairs.append(_pair(lcpd, peer, words, options, streams, lcpd_first=len(pairs) % 2 == 0))
            console.print(_line(len(pairs), pairs[-1]))
    settings = asdict(equal) | {
        "model": options.model,
        "build": build.key,
        "prompt_tokens": options.prompt_tokens,
        "gen_tokens": options.gen_tokens,
    }
    return settings, pairs


def _pair(
    lcpd: Server, peer: Server, words: random.Random, options: argparse.Namespace, streams: int, lcpd_first: bool
) -> Pair:
    """The same fresh prompts on either server, one server after the other."""
    bodies = [chat_body(prompt(words, options.prompt_tokens), options.gen_tokens) for _ in range(streams)]
    before = usage([lcpd, peer])
    rates = {server.name: measure(server.port, bodies) for server in ((lcpd, peer) if lcpd_first else (peer, lcpd))}
    return Pair(rates[lcpd.name], rates[peer.name], others_share(before, usage([lcpd, peer])))


def prompt(words: random.Random, count: int) -> str:
    """Words in random order: two prompts share no prefix beyond the template's head, so nothing else is reused."""
    return " ".join(words.choices(WORDS, k=count))


def check_idle(servers: Sequence[Server]) -> None:
    """Raises Unfair when a server that has nothing to do uses CPU time, for example in spinning threads."""
    before = [server.cpu_seconds() for server in servers]
    time.sleep(IDLE_WINDOW)
    for server, begun in zip(servers, before, strict=True):
        share = (server.cpu_seconds() - begun) / IDLE_WINDOW
        if share > IDLE_LIMIT:
            raise Unfair(f"{server.name} uses {share:.0%} of a core while idle")


def choose(pairs: Sequence[Pair]) -> tuple[list[Pair], str]:
    """The undisturbed pairs, or all where those are too few to say anything; and a sentence about it."""
    clean = [pair for pair in pairs if not pair.disturbed]
    dropped = len(pairs) - len(clean)
    if len(clean) >= MIN_PAIRS:
        return clean, f"{len(clean)} pairs count; {dropped} were left out because other processes disturbed them"
    return list(pairs), f"all {len(pairs)} pairs count, although other processes disturbed {dropped} of them"


def _figure(name: str, pairs: Sequence[Pair]) -> Figure:
    ours, theirs = [getattr(p.lcpd, name) for p in pairs], [getattr(p.peer, name) for p in pairs]
    ratios = pair_ratios(ours, theirs)
    interval = median_interval(ratios)
    verdict = judge(interval, len(ratios), spread(ours), spread(theirs))
    return Figure(LABELS[name], ours, theirs, ratios, interval, verdict)


def _line(number: int, pair: Pair) -> str:
    ours, theirs = pair.lcpd, pair.peer
    return (
        f"{number:3}: prefill {ours.prefill:7.1f} / {theirs.prefill:7.1f} = {ours.prefill / theirs.prefill:.3f}"
        f"   decode {ours.decode:6.2f} / {theirs.decode:6.2f} = {ours.decode / theirs.decode:.3f}"
        f"   total {ours.total:6.2f} / {theirs.total:6.2f} = {ours.total / theirs.total:.3f}"
        + (f"   disturbed: others used {pair.others:.0%} of a core" if pair.disturbed else "")
    )


def _table(figures: list[Figure]) -> Table:
    table = Table("tokens/s (median)", "lcpd", "llama-server", "ratio", "95 % interval", "verdict")
    for figure in figures:
        table.add_row(
            figure.name,
            *(f"{median(rates):.1f} (spread {spread(rates):.0%})" for rates in (figure.lcpd, figure.peer)),
            f"{figure.interval.median:.3f}",
            f"{figure.interval.low:.3f} to {figure.interval.high:.3f}",
            figure.verdict.outcome,
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
