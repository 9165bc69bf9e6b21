"""A simulated day of coding agents: what is computed again, with lcpd's policies and with llama-server's.

    python -m benchmarks.simulate

Neither a model nor a server runs: the economics are those of a 27B hybrid model on a 24 GB card.  lcpd's side is its
real scheduler, prompt cache, retention and checkpoint plan; llama-server's is a model of its source.  Both serve the
same clients, whose next request waits for the last reply, so the slower one has the longer day.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.sim_engine import Economics, Simulation, Tally
from benchmarks.sim_lcpd import LcpdPolicy, Tuning
from benchmarks.sim_peer import PeerPolicy
from benchmarks.sim_traffic import day
from lcpd.cache import checkpoints

GIB = 2**30
LABEL = 38
"""Characters of the tables' first column."""


@dataclass(frozen=True)
class Result:
    """One policy's day."""

    policy: str
    ram: int
    """Bytes of host RAM for the cache."""
    tally: Tally
    ssd_bytes: int | None
    """What a write-behind SSD tier would have written; None: the policy has no such tier."""
    extra_ram: int
    """Bytes of host RAM at most that the policy uses beyond `ram`."""
    wall: float
    """Seconds that simulating it took."""

    @property
    def ratio(self) -> float:
        """Computed tokens, as a multiple of the least that any cache must compute."""
        return self.tally.computed / self.tally.novel


def main(arguments: list[str] | None = None) -> int:
    """Simulate, print, and write the figures where asked for."""
    options = _parser().parse_args(arguments)
    console = Console(highlight=False)
    tuning = Tuning(interval=options.interval, limit=options.limit, gap=options.gap)
    results = []
    for gib in options.ram:
        ram = int(gib * GIB)
        if "llama-server" in options.policies:
            results.append(run_peer(options.seed, options.projects, options.sessions, ram))
        if "lcpd" in options.policies:
            results.append(run_lcpd(options.seed, options.projects, options.sessions, ram, tuning, options.mapped))
    console.print(_totals(results))
    console.print(_kinds(results))
    if options.json:
        settings = {
            name: getattr(options, name)
            for name in ("seed", "projects", "sessions", "interval", "limit", "gap", "mapped")
        }
        report = {"settings": settings, "economics": asdict(Economics()), "results": [as_json(r) for r in results]}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def run_lcpd(seed: int, projects: int, sessions: int, ram: int, tuning: Tuning, mapped: bool = False) -> Result:
    """lcpd's day.  `mapped`: see `sim_traffic.day`."""
    policy = LcpdPolicy(Economics(), ram, tuning)
    try:
        tally, wall = _timed(Simulation(policy, Economics()).run, day(seed, projects, sessions, mapped))
        policy.cache.check_integrity()
        return Result("lcpd", ram, tally, policy.ssd_bytes, 0, wall)
    finally:
        policy.close()


def run_peer(seed: int, projects: int, sessions: int, ram: int) -> Result:
    """llama-server's day."""
    policy = PeerPolicy(Economics(), ram)
    tally, wall = _timed(Simulation(policy, Economics()).run, day(seed, projects, sessions))
    return Result("llama-server", ram, tally, None, policy.uncounted, wall)


def as_json(result: Result) -> dict[str, Any]:
    """The figures of a day; tokens, bytes and seconds."""
    # Not by asdict, which takes counters for lists of pairs.
    tally = {name: value for name, value in vars(result.tally).items() if name != "first_token"}
    waits = sorted(result.tally.first_token)
    return {
        "policy": result.policy,
        "ram": result.ram,
        "ratio": result.ratio,
        **tally,
        "first_token_median": median(waits),
        "first_token_p95": waits[int(0.95 * len(waits))],
        "ssd_bytes": result.ssd_bytes,
        "extra_ram": result.extra_ram,
    }


def _timed(run: Callable[[Any], Tally], clients: Any) -> tuple[Tally, float]:
    begin = time.perf_counter()
    return run(clients), time.perf_counter() - begin


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the traffic")
    parser.add_argument("--projects", type=int, default=3, metavar="N", help="with one or two people each")
    parser.add_argument("--sessions", type=int, default=4, metavar="N", help="of each person, one after the other")
    parser.add_argument("--ram", type=float, nargs="+", default=[8, 32], metavar="GIB", help="sizes of the host cache")
    parser.add_argument("--policies", nargs="+", default=["llama-server", "lcpd"], choices=["llama-server", "lcpd"])
    parser.add_argument("--interval", type=int, default=checkpoints.INTERVAL, metavar="TOKENS")
    parser.add_argument("--limit", type=int, default=checkpoints.LIMIT, metavar="N", help="checkpoints of one prompt")
    parser.add_argument("--gap", type=int, metavar="TOKENS", help="between two checkpoints, at least")
    parser.add_argument(
        "--mapped",
        action="store_true",
        help="lcpd puts the tokens it generated in the place of tool calls that clients send back differently",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser


def _columns(results: list[Result], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("", min_width=LABEL)
    for result in results:
        table.add_column(f"{result.policy}\n{result.ram / GIB:g} GiB", justify="right")
    return table


def _totals(results: list[Result]) -> Table:
    table = _columns(results, "a day")

    def row(name: str, figure: Callable[[Result], str]) -> None:
        table.add_row(name, *(figure(result) for result in results))

    row("requests", lambda r: f"{r.tally.requests:,}")
    row("prompt tokens", lambda r: f"{r.tally.prompt:,}")
    row("novel tokens (the least)", lambda r: f"{r.tally.novel:,}")
    row("computed tokens", lambda r: f"{r.tally.computed:,}")
    row("computed / novel", lambda r: f"{r.ratio:.2f}")
    for reason in results[0].tally.again:
        row(f"  again: {reason}", lambda r, reason=reason: f"{r.tally.again[reason]:,}")  # type: ignore[misc]
    for tier in ("slot", "other slot", "ram", "nothing"):
        row(f"starts from {tier}", lambda r, tier=tier: f"{r.tally.tiers[tier]:,}")  # type: ignore[misc]
    row("first token, median s", lambda r: f"{median(r.tally.first_token):.2f}")
    row("first token, 95 % s", lambda r: f"{as_json(r)['first_token_p95']:.1f}")
    row("copied to host, GB", lambda r: f"{r.tally.saved / 1e9:,.0f}")
    row("copied to device, GB", lambda r: f"{r.tally.restored / 1e9:,.0f}")
    row("copying, s", lambda r: f"{r.tally.copy_seconds:,.0f}")
    row("streams stalled by it, s", lambda r: f"{r.tally.stall_seconds:,.0f}")
    row("SSD writes, GB", lambda r: "-" if r.ssd_bytes is None else f"{r.ssd_bytes / 1e9:,.0f}")
    row("host RAM beyond the cap, GiB", lambda r: f"{r.extra_ram / GIB:.1f}")
    row("hours", lambda r: f"{r.tally.seconds / 3600:.1f}")
    row("simulated in, s", lambda r: f"{r.wall:.0f}")
    return table


def _kinds(results: list[Result]) -> Table:
    table = _columns(results, "computed / novel, by kind of request")
    for kind in results[0].tally.kinds:
        ratios = [result.tally.kinds[kind] for result in results]
        table.add_row(kind, *(f"{counts['computed'] / counts['novel']:.2f}" for counts in ratios))
    return table


if __name__ == "__main__":
    raise SystemExit(main())
