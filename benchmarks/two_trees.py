"""Has a change cost speed?  Two checkouts of lcpd, side by side on one machine, with the same build of llama.cpp.

    git worktree add ../before COMMIT
    python -m benchmarks.two_trees --before ../before [--streams 1,4] [--pairs 12] [--scrape 5]

Both daemons are up, one works at a time, on the same fresh prompts; which begins changes from pair to pair.  The figure
is all generated tokens over a whole round, the new tree over the old one.  With `--scrape` the new daemon's metrics are
read every so many seconds meanwhile.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import httpx

from benchmarks.client import chat_body, measure
from benchmarks.engine_parity import counts, prompt
from benchmarks.ratios import median_interval, pair_ratios
from benchmarks.servers import Equal, Server, run_lcpd
from lcpd.engine.threads import free_cores
from lcpd.models import resolve
from lcpd.paths import dirs

HERE = Path(__file__).resolve().parents[1]


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each number of streams."""
    options = _parser().parse_args(arguments)
    for streams in options.streams:
        print(compare(options, streams), flush=True)
    return 0


def compare(options: argparse.Namespace, streams: int) -> str:
    """The ratio of the rates at so many streams, in words."""
    equal = Equal(
        model=resolve(options.model, dirs()),
        threads=free_cores(),
        ctx=streams * 2 * (options.prompt_tokens + options.gen_tokens + 64),
        batch=2048,
        ubatch=512,
        flash_attn="off",
        slots=streams,
    )
    words = random.Random(options.seed)
    rates: dict[str, list[float]] = {"before": [], "now": []}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(
                run_lcpd(
                    replace(equal, environment={"PYTHONPATH": str(tree / "daemon")}),
                    Path(stack.enter_context(tempfile.TemporaryDirectory())),
                )
            )
            for name, tree in (("before", options.before.resolve()), ("now", HERE))
        }
        if options.scrape:
            stack.enter_context(_scraped(servers["now"], options.scrape))
        for pair in range(-1, options.pairs):
            bodies = [chat_body(prompt(words, options.prompt_tokens), options.gen_tokens) for _ in range(streams)]
            for name in ("before", "now") if pair % 2 else ("now", "before"):
                total = measure(servers[name].port, bodies).total
                if pair >= 0:  # the first pair warms both up
                    rates[name].append(total)
    found = median_interval(pair_ratios(rates["now"], rates["before"]))
    return (
        f"{streams} streams, {options.pairs} pairs: {found.median:.3f} of the old tree's tokens/s "
        f"(95 % interval {found.low:.3f} to {found.high:.3f})"
    )


@contextmanager
def _scraped(server: Server, every: float) -> Iterator[None]:
    """Read its metrics every so many seconds."""
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(every):
            httpx.get(f"{server.url}/metrics", timeout=30).raise_for_status()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.two_trees", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, required=True, metavar="FOLDER", help="a checkout of the old tree")
    parser.add_argument("--model", default="demo:smollm2", metavar="REF")
    parser.add_argument("--streams", type=counts, default=[1, 4], metavar="N,...")
    parser.add_argument("--pairs", type=int, default=12, metavar="N")
    parser.add_argument("--prompt-tokens", type=int, default=128, metavar="N")
    parser.add_argument("--gen-tokens", type=int, default=256, metavar="N")
    parser.add_argument("--scrape", type=float, default=0.0, metavar="SECONDS", help="read the new daemon's metrics")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
