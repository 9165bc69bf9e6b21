"""New random traces for as long as wanted: ``python -m tests.differential --minutes 10 --seed 1``.

Stops at the first trace that fails, and prints it with the command that runs just that one again.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from differential.judge import judge
from differential.play import TraceFailed, play
from differential.trace import Trace, make
from oracle.process import Oracle
from support import model_path

KINDS = ("hybrid", "hybrid", "recurrent", "attention", "hybrid", "swa")
"""In turn; the hybrid computes fastest."""
CTX = 4096
"""Cells of the oracle's context."""


class Oracles:
    """One for each model and type of KV cache, started when it is first needed."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._running: dict[tuple[str, str, str], Oracle] = {}

    def of(self, trace: Trace) -> Oracle:
        """The one for a trace."""
        setup = trace.setup
        key = (setup.kind, setup.kv, setup.flash_attn)
        if key not in self._running:
            oracle = Oracle(model_path(setup.kind), CTX, setup.kv, setup.flash_attn)
            self._running[key] = self._stack.enter_context(oracle)
        return self._running[key]


def main() -> int:
    """The exit status: 1 when a trace failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1, help="of the first trace; each one more takes the next")
    parser.add_argument("--kind", choices=sorted(set(KINDS)), help="only on this kind of model")
    parser.add_argument("--rounds", type=int, default=40, help="of each trace")
    parser.add_argument("--traces", type=int, default=sys.maxsize, help="stop after so many")
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    seen: Counter[str] = Counter()
    worst: dict[str, float] = {}
    with ExitStack() as stack:
        oracles = Oracles(stack)
        for number in range(options.traces):
            if time.monotonic() >= until:
                break
            kind = options.kind or KINDS[(options.seed + number) % len(KINDS)]
            trace = make(options.seed + number, kind, options.rounds, vary_kv=True)
            oracle = oracles.of(trace)
            try:
                played = asyncio.run(play(trace, oracle.tokenize))
                verdict = judge(oracle, played.replies)
            except AssertionError as error:
                print(error if isinstance(error, TraceFailed) else f"{error}\n{trace.text()}")
                again = f"--seed {trace.seed} --kind {kind} --rounds {options.rounds} --traces 1"
                print(f"again: python -m tests.differential {again}")
                return 1
            seen += played.seen + Counter(traces=1, replies=len(played.replies), twice=verdict.looked_twice)
            seen["tokens"] += sum(len(reply.tokens) for reply in played.replies)
            worst[kind] = max(worst.get(kind, 0.0), verdict.worst)
            print(f"seed {trace.seed} {kind}: {dict(played.seen)}, worst {verdict.worst:.2f} bounds", flush=True)
    print(f"all passed: {dict(seen)}; worst, in bounds: { ({k: round(v, 2) for k, v in worst.items()}) }")
    return 0


if __name__ == "__main__":
    sys.exit(main())
