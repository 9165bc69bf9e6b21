"""Decode and prefill speed of lcpd against llama-server from the same build with equal settings.

    python -m benchmarks.engine_parity --pairs 20

Both servers run all the time, and one of them works at a time.  A pair is one round on either with the same prompts;
the order changes from pair to pair, so that a drift of the machine favours neither.  docs/performance.md describes
the method and holds results.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.client import Json, Rates, RequestFailed, chat_body, measure
from benchmarks.ratios import Interval, Verdict, judge, median_interval, pair_ratios, spread
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
"""Seconds over which the idle server's CPU time is watched."""
IDLE_LIMIT = 0.05
"""Share of one core that an idle server may use."""
FIGURES = {"prefill": "prefill", "decode": "decode", "server_prefill": "prefill", "server_decode": "decode"}
"""Field of Rates -> what it measures."""


class Unfair(RuntimeError):
    """The idle server burns CPU time, so the rates of the other mean nothing."""


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
    console = Console()
    try:
        figures, facts = run(options, console)
    except (BadReference, BuildMissing, ModelMissing, RequestFailed, ServerFailed, Unfair) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    console.print(_table(figures))
    for figure in figures:
        console.print(f"{figure.name}: {figure.verdict.outcome} ({figure.verdict.reason})", highlight=False)
    if options.json:
        report = {"settings": facts, "figures": [asdict(figure) for figure in figures]}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_parity", description=__doc__)
    parser.add_argument("--pairs", type=_positive, default=20)
    parser.add_argument("--model", default="demo:smollm2", metavar="REF")
    parser.add_argument("--prompt-tokens", type=_positive, default=512, metavar="N", help="about as many")
    parser.add_argument("--gen-tokens", type=_positive, default=64, metavar="N")
    parser.add_argument("--streams", type=_positive, default=1, metavar="N", help="requests at once; as many slots")
    parser.add_argument("--threads", type=_positive, default=free_cores(), metavar="N")
    parser.add_argument("--flash-attn", choices=["on", "off"], default="off")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every rate there")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def run(options: argparse.Namespace, console: Console) -> tuple[list[Figure], Json]:
    """All pairs.  Raises what `main` lists."""
    build = require_active()
    if build.peer is None:
        raise BuildMissing("the active build has no llama-server; run: lcpd build --target llama-server")
    equal = Equal(
        model=resolve(options.model, dirs()),
        threads=options.threads,
        ctx=options.streams * (options.prompt_tokens * 2 + options.gen_tokens + 256),
        batch=2048,
        ubatch=512,
        flash_attn=options.flash_attn,
        slots=options.streams,
    )
    words = random.Random(options.seed)
    lcpd_rates: list[Rates] = []
    peer_rates: list[Rates] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        lcpd = stack.enter_context(run_lcpd(equal, folder))
        peer = stack.enter_context(run_peer(equal, build.peer, folder))
        for number in range(-1, options.pairs):  # the pair -1 warms both up
            bodies = [
                chat_body(_prompt(words, options.prompt_tokens), options.gen_tokens) for _ in range(options.streams)
            ]
            for server in (lcpd, peer) if number % 2 else (peer, lcpd):
                result = measure(server.port, bodies)
                if number >= 0:
                    (lcpd_rates if server is lcpd else peer_rates).append(result)
            if number < 0:
                check_idle(lcpd, peer)
            else:
                console.print(_progress(number, lcpd_rates[-1], peer_rates[-1]), highlight=False)
    facts: Json = {
        "build": build.key,
        **{name: str(value) if isinstance(value, Path) else value for name, value in asdict(equal).items()},
        "prompt_tokens": options.prompt_tokens,
        "gen_tokens": options.gen_tokens,
    }
    return [_figure(name, lcpd_rates, peer_rates) for name in FIGURES], facts


def check_idle(*servers: Server) -> None:
    """Raises Unfair when a server that has nothing to do uses CPU time, for example in spinning threads."""
    before = [server.cpu_seconds() for server in servers]
    time.sleep(IDLE_WINDOW)
    for server, begun in zip(servers, before, strict=True):
        share = (server.cpu_seconds() - begun) / IDLE_WINDOW
        if share > IDLE_LIMIT:
            raise Unfair(f"{server.name} uses {share:.0%} of a core while idle")


def _prompt(words: random.Random, count: int) -> str:
    """Words in random order: two prompts share no prefix beyond the template's head, so nothing is reused."""
    return " ".join(words.choices(WORDS, k=count))


def _figure(name: str, lcpd: list[Rates], peer: list[Rates]) -> Figure:
    ours, theirs = [getattr(rates, name) for rates in lcpd], [getattr(rates, name) for rates in peer]
    ratios = pair_ratios(ours, theirs)
    interval = median_interval(ratios)
    label = f"{FIGURES[name]}, {'server' if name.startswith('server') else 'client'}"
    return Figure(label, ours, theirs, ratios, interval, judge(interval, len(ratios), spread(ours), spread(theirs)))


def _progress(number: int, lcpd: Rates, peer: Rates) -> str:
    return (
        f"pair {number + 1:3}: prefill {lcpd.prefill:7.1f} / {peer.prefill:7.1f} = {lcpd.prefill / peer.prefill:.3f}"
        f"   decode {lcpd.decode:6.2f} / {peer.decode:6.2f} = {lcpd.decode / peer.decode:.3f}"
    )


def _table(figures: list[Figure]) -> Table:
    table = Table("tokens/s", "lcpd", "llama-server", "ratio", "95 % interval", "verdict")
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
