"""What replies that obey a grammar cost in a step, when their samplers work side by side and one after the other.

    python -m benchmarks.grammar_step [--slots 4] [--steps 200]

The worker's loop in this process; every slot writes JSON by the same demanding schema.  The two ways take turns step by
step, on the same replies, so that what else happens on the machine meets both alike.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.step_overhead import running
from lcpd.build import require_active
from lcpd.engine.threads import free_cores
from lcpd.models import resolve
from lcpd.paths import dirs

WARM_STEPS = 20
_NAMES = ("reader", "writer", "parser", "router", "ledger", "socket", "record", "folder", "signal", "worker")
_ITEM = {
    "type": "object",
    "properties": {
        **{f"{name}_kind": {"enum": [f"{name}_{other}" for other in _NAMES]} for name in _NAMES},
        "stamp": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}$"},
        "sizes": {"type": "array", "items": {"type": "integer"}, "minItems": 3},
    },
    "required": [*(f"{name}_kind" for name in _NAMES), "stamp", "sizes"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": _ITEM, "minItems": 200}
"""More items than a reply has room for: the grammar never lets it end."""


def measure(path: Path, slots: int, count: int, threads: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of (sampling, whole step) for each way."""
    import lcpd.engine.sampling

    sampling: Any = lcpd.engine.sampling
    side_by_side = sampling.step_many
    times: dict[str, list[tuple[float, float]]] = {"side by side": [], "one by one": []}
    spent = 0.0
    way = ""

    def timed(samplers: Sequence[Any], ctx: int, rows: Sequence[int]) -> Any:
        nonlocal spent
        begun = time.perf_counter()
        if way == "side by side":
            tokens = side_by_side(samplers, ctx, rows)
        else:
            tokens = [
                token
                for sampler, row in zip(samplers, rows, strict=True)
                for token in side_by_side([sampler], ctx, [row])
            ]
        spent += time.perf_counter() - begun
        return tokens

    sampling.step_many = timed
    fields = {"temperature": 0.7, "ignore_eos": True, "json_schema": SCHEMA}
    with running(path, slots, WARM_STEPS + count, threads, 0.05, fields) as (loop, receive):
        for number in range(WARM_STEPS + count):
            # Not simply in turn: what a grammar costs can have a rhythm of its own.
            way = ("side by side", "one by one", "one by one", "side by side")[number % 4]
            spent, begun = 0.0, time.perf_counter()
            receive(0.0)
            loop.step()
            if number >= WARM_STEPS:
                times[way].append((spent, time.perf_counter() - begun))
    return times


def report(times: dict[str, list[tuple[float, float]]]) -> list[str]:
    """The lines to print."""
    lines = []
    for way, steps in times.items():
        sampled, whole = (np.array(part) * 1e3 for part in zip(*steps, strict=True))
        lines.append(
            f"  {way:13} sampling: median {np.median(sampled):7.2f} ms, mean {sampled.mean():7.2f}, "
            f"99th percentile {np.percentile(sampled, 99):7.2f}; whole step: median {np.median(whole):7.2f}"
        )
    together, single = ([step for step, _ in times[way]] for way in ("side by side", "one by one"))
    lines.append(
        f"  side by side takes {statistics.mean(together) / statistics.mean(single):.3f} of the time, by the means"
    )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.grammar_step",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="demo:smollm2", metavar="REF")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=free_cores())
    options = parser.parse_args(arguments)
    path = resolve(options.model, dirs())
    os.environ["LLAMA_CPP_LIB_PATH"] = str(require_active().lib_dir)
    times = measure(path, options.slots, options.steps, options.threads)
    print(f"{options.model}, {options.slots} replies by one schema, {options.threads} threads, {options.steps} steps")
    print("\n".join(report(times)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
