"""What the worker's own Python costs in a decode step, beside computing and sampling.

    python -m benchmarks.step_overhead [--slots 4] [--profile]

The worker's loop runs in this process on a real model, with its real channel to a process that reads and forgets.  A
step's overhead is its time without what was spent inside libllama and the bridge's sampling.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lcpd.build import BuildMissing, require_active
from lcpd.engine.threads import free_cores
from lcpd.models import BadReference, ModelMissing, resolve
from lcpd.paths import dirs

if TYPE_CHECKING:
    from lcpd.engine.loop import DecodeLoop

GOAL = 300.0
"""Microseconds a step, by the median at 4 slots."""
PROMPT_TOKENS = 64
WARM_STEPS = 20
"""Decode steps before the measured ones."""
_TOKENS = range(300, 2000)
"""Ids that are ordinary text in the usual vocabularies."""
_SAMPLED = {"temperature": 0.7, "ignore_eos": True}


@dataclass(frozen=True)
class Step:
    """One decode step.  Seconds."""

    whole: float
    computing: float
    """Inside llama_decode and llama_synchronize."""
    sampling: float
    """Inside the bridge's sampling call."""
    cpu: float
    """CPU time of this thread outside these calls: as `overhead`, but without waiting for a core that others use."""

    @property
    def overhead(self) -> float:
        """What is left: Python, numpy, ctypes and messages."""
        return self.whole - self.computing - self.sampling


@dataclass(frozen=True)
class Figures:
    """Microseconds over all steps."""

    median: float
    p99: float


class Clock:
    """Adds up the time inside functions that it has wrapped."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.cpu = 0.0
        """Of the calling thread."""

    def reset(self) -> None:
        """Begin at 0."""
        self.seconds = self.cpu = 0.0

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        def timed(*arguments: Any) -> Any:
            begun, begun_cpu = time.perf_counter(), time.thread_time()
            try:
                return function(*arguments)
            finally:
                self.seconds += time.perf_counter() - begun
                self.cpu += time.thread_time() - begun_cpu

        return timed


def figures(seconds: Sequence[float]) -> Figures:
    """Raises ValueError without any."""
    if not seconds:
        raise ValueError("there are no steps")
    median, p99 = np.percentile(np.asarray(seconds) * 1e6, [50, 99])
    return Figures(float(median), float(p99))


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; status 0 for a finished measurement whatever its verdict, 1 where it could not be made."""
    options = _parser().parse_args(arguments)
    try:
        path = resolve(options.model, dirs())
        # Before anything imports llama_cpp.
        os.environ["LLAMA_CPP_LIB_PATH"] = str(require_active().lib_dir)
    except (BadReference, BuildMissing, ModelMissing) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    # As in the worker's environment (lcpd.assembly.children): numpy only moves arrays.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    profile = cProfile.Profile() if options.profile else None
    steps = measure(path, options.slots, options.steps, options.threads, options.emit_interval, profile)
    overhead = figures([step.overhead for step in steps])
    parts = {
        "whole step": figures([step.whole for step in steps]),
        "llama_decode and llama_synchronize": figures([step.computing for step in steps]),
        "sampling": figures([step.sampling for step in steps]),
        "the worker's Python": overhead,
        "the same, CPU time": figures([step.cpu for step in steps]),
    }
    print(f"{options.model}, {options.slots} slots, {options.threads} threads, {len(steps)} steps; microseconds a step")
    for name, part in parts.items():
        print(f"  {name:36} median {part.median:9.1f}   99th percentile {part.p99:9.1f}")
    print(f"goal, a median below {GOAL:g}: {'reached' if overhead.median < GOAL else 'missed'}")
    if profile:
        print("\nThe profiler itself costs some microseconds a call, so the figures above are too high this time.")
        pstats.Stats(profile).sort_stats("tottime").print_stats(options.profile)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.step_overhead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="demo:smollm2", metavar="REF")
    parser.add_argument("--slots", type=int, default=4, metavar="N")
    parser.add_argument("--steps", type=int, default=300, metavar="N")
    parser.add_argument("--threads", type=int, default=free_cores(), metavar="N")
    parser.add_argument("--emit-interval", type=float, default=0.05, metavar="SECONDS", help="as engine.emit_interval")
    parser.add_argument(
        "--profile", type=int, nargs="?", const=25, default=0, metavar="LINES", help="list what takes the time"
    )
    return parser


def measure(
    path: Path, slots: int, count: int, threads: int, emit_interval: float, profile: cProfile.Profile | None
) -> list[Step]:
    """`count` steps in which all slots decode."""
    import llama_cpp.llama_cpp as llama

    from lcpd.native import bridge

    computing, sampling = Clock(), Clock()
    llama.llama_decode = computing.wrap(llama.llama_decode)
    llama.llama_synchronize = computing.wrap(llama.llama_synchronize)
    library: Any = bridge._lib
    library.lcpd_sampler_step_many = sampling.wrap(library.lcpd_sampler_step_many)
    steps = []
    with running(path, slots, WARM_STEPS + count, threads, emit_interval) as (loop, receive):
        for number in range(WARM_STEPS + count):
            if profile and number == WARM_STEPS:
                profile.enable()
            computing.reset()
            sampling.reset()
            begun, begun_cpu = time.perf_counter(), time.thread_time()
            receive(0.0)
            loop.step()
            whole, cpu = time.perf_counter() - begun, time.thread_time() - begun_cpu
            if number >= WARM_STEPS:
                steps.append(Step(whole, computing.seconds, sampling.seconds, cpu - computing.cpu - sampling.cpu))
        if profile:
            profile.disable()
    return steps


Receive = Callable[[float], object]


@contextmanager
def running(
    path: Path, slots: int, count: int, threads: int, emit_interval: float, fields: Mapping[str, Any] = _SAMPLED
) -> Iterator[tuple[DecodeLoop, Receive]]:
    """The worker's loop with a reply in each slot that lasts for `count` more steps, and how it looks for commands.

    `fields`: how the replies are sampled.
    """
    import llama_cpp.llama_cpp as llama

    from lcpd.engine import protocol as p
    from lcpd.engine.loop import DecodeLoop
    from lcpd.ipc.channel import ChildChannel
    from lcpd.native import bridge
    from lcpd.native.context import Context, ContextSettings
    from lcpd.native.log import LogCapture
    from lcpd.native.model import Model, ModelSettings

    log = LogCapture()
    llama.llama_backend_init()
    model = Model(path, log, ModelSettings())
    ctx = slots * (PROMPT_TOKENS + count + 16)
    context = Context(
        model,
        ContextSettings(n_ctx=ctx, n_seq=slots + 1, n_batch=512, n_ubatch=512, threads=threads, flash_attn="off"),
        log,
    )
    ours, theirs = socket.socketpair()
    with subprocess.Popen(["cat"], stdin=theirs, stdout=subprocess.DEVNULL) as reader:
        theirs.close()
        channel: ChildChannel[p.ToWorker] = ChildChannel(ours, p.ToWorker)  # type: ignore[arg-type]
        loop = DecodeLoop(model, context, bridge.Params("--jinja"), channel.send, emit_interval=emit_interval)
        draw = random.Random(1)
        for seq in range(slots):
            prompt = np.array(draw.choices(_TOKENS, k=PROMPT_TOKENS), np.int32)
            loop.start(
                p.Start(
                    model="m",
                    request=seq,
                    seq=seq,
                    tokens=p.pack(prompt),
                    begin=0,
                    fields=json.dumps({**fields, "seed": seq}).encode(),
                    max_tokens=count + slots + 16,
                )
            )
        for _ in range(slots):  # every prompt is one chunk at most
            loop.step()
        try:
            yield loop, channel.receive
        finally:
            ours.close()
            reader.wait()
    context.close()
    model.close()


if __name__ == "__main__":
    sys.exit(main())
