"""The long forms: ``python -m tests.faults --minutes 60 --seed 1``, or one of them with its own counts.

Without counts: rounds of all three with new seeds until the time is over.  With --judge: the replies that
``python -m benchmarks.soak --replies FILE`` wrote, against the oracle.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harm.load import Ask, Said

from faults.corruption import corruptions
from faults.judging import WrongToken, judge
from faults.kills import COST, LOSS_WINDOW, daemon_kills, worker_kills
from oracle.process import Oracle
from support import model_path

_CTX = 16384
"""Cells of the oracle's context."""
_ONLY = ("worker", "daemon", "corruption")


class Failed(Exception):
    """A promise that was not kept."""


def main() -> int:
    """The exit status: 1 when a promise was not kept."""
    options = _parser().parse_args()
    # The daemon's own log would hide the result: it tells of every kill.
    logging.basicConfig(handlers=[logging.NullHandler()])
    until = time.monotonic() + 60 * options.minutes
    with Oracle(model_path("hybrid"), ctx=_CTX) as oracle:
        try:
            if options.judge:
                print(judge(oracle, read_replies(options.judge)), flush=True)
                return 0
            seed = options.seed
            while True:
                for name in options.only or _ONLY:
                    print(f"seed {seed}, {name}: ", end="", flush=True)
                    _RUNS[name](oracle, seed, options)
                seed += 1
                if time.monotonic() >= until:
                    return 0
        except (Failed, WrongToken) as error:
            print(f"FAILED: {error}")
            return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=0.0, help="go on with new seeds for so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=_ONLY)
    parser.add_argument("--kills", type=int, default=100, help="of the worker")
    parser.add_argument("--requests", type=int, default=200, help="during the kills of the worker, at least")
    parser.add_argument("--daemon-kills", type=int, default=50)
    parser.add_argument("--corruptions", type=int, default=2000)
    parser.add_argument("--judge", type=Path, metavar="FILE")
    return parser


def _worker(oracle: Oracle, seed: int, options: argparse.Namespace) -> None:
    result = asyncio.run(worker_kills(seed, options.kills, options.requests))
    print(result, flush=True)
    _promise(not result.errors, f"clients saw {result.errors}")
    excess = result.excess()
    _promise(not excess, f"more than {COST} tokens and the reply were computed again: {excess}")
    print(judge(oracle, result.replies), flush=True)


def _daemon(oracle: Oracle, seed: int, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(daemon_kills(seed, options.daemon_kills, Path(folder)))
    print(result, flush=True)
    _promise(not result.errors, f"clients saw {result.errors}")
    window = max(result.loss_window, result.tail_window)
    _promise(window < LOSS_WINDOW, f"what was {window:.1f} s old was lost")
    print(judge(oracle, [*result.replies, *result.again], solo=False), flush=True)


def _corruption(oracle: Oracle, seed: int, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(corruptions(oracle.tokenize, seed, options.corruptions, 44, Path(folder)))
    print(result, flush=True)
    _promise(not result.problems, "\n".join(result.problems))
    errors = [said.error for said in result.replies if said.error]
    _promise(not errors, f"clients saw {errors}")
    print(judge(oracle, result.replies, solo=False), flush=True)


_RUNS = {"worker": _worker, "daemon": _daemon, "corruption": _corruption}


def _promise(kept: bool, otherwise: str) -> None:
    if not kept:
        raise Failed(otherwise)


def read_replies(file: Path) -> Sequence[Said]:
    """One JSON object a line: prompt (text), tokens."""
    lines = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    return [Said(Ask(line["prompt"], len(line["tokens"])), 0.0, tokens=line["tokens"]) for line in lines]


if __name__ == "__main__":
    sys.exit(main())
