"""How fast state comes back from RAM: a worker's Start with segments, beside libllama's own calls on the same bytes.

    python -m benchmarks.restore_speed [--model demo:hybrid] [--tokens 8192] [--segment 2048] [--verify once]

All in one process, round by round in changing order.  The goal is 95 % of the speed of `set_data` alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lcpd.build import require_active
from lcpd.cache.arena import Arena, ArenaView, checksum
from lcpd.engine import protocol as p
from lcpd.models import resolve
from lcpd.paths import dirs

if TYPE_CHECKING:
    from lcpd.native.context import Context
    from lcpd.native.model import Model

GOAL = 0.95
_FIELDS = b'{"temperature": 0, "ignore_eos": true}'


@dataclass
class Bench:
    """A decode loop whose sequence 0 is brought back again and again."""

    context: Context
    arena: Arena
    loop: Any
    said: list[p.FromWorker]
    tokens: p.Tokens
    segments: list[p.Segment] = field(default_factory=list)
    checkpoint: p.Piece | None = None
    requests: int = 0

    @property
    def pieces(self) -> list[p.Piece]:
        """All that is read for one restore."""
        own = [self.checkpoint] if self.checkpoint else []
        return [*(segment.piece for segment in self.segments), *own]

    @property
    def bytes(self) -> int:
        """Of all pieces."""
        return sum(piece.extent.size for piece in self.pieces)

    def save(self, segment: int) -> None:
        """Compute the prompt and export it in pieces of `segment` tokens."""
        end = len(self.tokens) - 1
        room = self.arena.allocate(max(self.context.state_size(0, partial=True), 1) + (16 << 20))
        assert room is not None
        rolls_back = self.context.rolls_back
        self._run(begin=0, checkpoints={} if rolls_back else {end: room})
        taken = [m.piece for m in self.said if isinstance(m, p.Checkpointed)]
        self.checkpoint = taken[0] if taken else None
        each = -(-self.context.state_size(0, partial=False) // len(self.tokens)) + 64
        for begin in range(0, end, segment):
            upto = min(begin + segment, end)
            extent = self.arena.allocate(each * (upto - begin) + (1 << 20))
            assert extent is not None, "the arena is too small"
            self.loop.save(p.Save("m", 0, [p.Cut(begin, upto, extent)]))
            while self.loop.busy:
                self.loop.step()
            saved = next(m for m in reversed(self.said) if isinstance(m, p.Saved))
            assert not saved.problem, saved.problem
            self.segments += saved.segments

    def restore(self) -> float:
        """Seconds that a Start needs to bring the sequence back, as the worker reports them."""
        self.context.clear(0)
        self._run(begin=len(self.tokens) - 1, segments=self.segments, restore=self.checkpoint)
        started = next(m for m in reversed(self.said) if isinstance(m, p.Started))
        assert not started.problem, started.problem
        return started.restore_seconds

    def _run(self, **more: Any) -> None:
        self.requests += 1
        start = p.Start(
            model="m", request=self.requests, seq=0, tokens=p.pack(self.tokens), fields=_FIELDS, max_tokens=1, **more
        )
        self.loop.start(start)
        while self.loop.busy:
            self.loop.step()


class Raw:
    """The same bytes with nothing but single calls, each timed by itself."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._context = bench.context
        view = ArenaView(bench.arena.fd, bench.arena.size)
        self._segments = [view.array(segment.piece.extent) for segment in bench.segments]
        self._checkpoint = view.array(bench.checkpoint.extent) if bench.checkpoint else None
        self._copy = np.empty(max(map(len, self._segments)), np.uint8)
        self._bounds = [(segment.begin, segment.end) for segment in bench.segments]

    def set_data(self) -> float:
        """Seconds in `set_data`: every segment into the empty scratch sequence, and the checkpoint."""
        seconds = 0.0
        for data, (begin, end) in zip(self._segments, self._bounds, strict=True):
            seconds += _seconds(lambda data=data: self._context.read_state(self._context.scratch, data, partial=False))
            self._context.share(self._context.scratch, 0, begin, end)
            self._context.clear(self._context.scratch)
        if self._checkpoint is not None:
            seconds += _seconds(lambda: self._context.read_state(0, self._checkpoint, partial=True))
        self._context.clear(0)
        return seconds

    def book_keeping(self) -> float:
        """Seconds for handing cells from scratch to the sequence and emptying scratch, without the copies."""
        seconds = 0.0
        for data, (begin, end) in zip(self._segments, self._bounds, strict=True):
            self._context.read_state(self._context.scratch, data, partial=False)

            def hand_over(begin: int = begin, end: int = end) -> None:
                self._context.share(self._context.scratch, 0, begin, end)
                self._context.clear(self._context.scratch)

            seconds += _seconds(hand_over)
        self._context.clear(0)
        return seconds

    def checksums(self) -> float:
        """Seconds for the checksums of all pieces."""
        return sum(_seconds(lambda data=data: checksum(data)) for data in self._all())

    def memcpy(self) -> float:
        """Seconds for copying all pieces elsewhere in memory."""
        return sum(_seconds(lambda data=data: np.copyto(self._copy[: len(data)], data)) for data in self._fitting())

    def _all(self) -> list[Any]:
        return [*self._segments, *([] if self._checkpoint is None else [self._checkpoint])]

    def _fitting(self) -> list[Any]:
        if self._checkpoint is not None and len(self._checkpoint) > len(self._copy):
            self._copy = np.empty(len(self._checkpoint), np.uint8)
        return self._all()


def _seconds(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def measure(bench: Bench, rounds: int) -> dict[str, list[float]]:
    """Seconds of every way, round by round; the first round does not count."""
    raw = Raw(bench)
    ways: list[tuple[str, Callable[[], float]]] = [
        ("restore", bench.restore),
        ("set_data", raw.set_data),
        ("checksums", raw.checksums),
        ("book-keeping", raw.book_keeping),
        ("memcpy", raw.memcpy),
    ]
    times: dict[str, list[float]] = {name: [] for name, _ in ways}
    for number in range(rounds + 1):
        bench.context.clear(0)
        for name, way in ways if number % 2 else reversed(ways):
            seconds = way()
            if number:
                times[name].append(seconds)
            bench.context.clear(0)
    return times


def report(bench: Bench, times: dict[str, list[float]]) -> list[str]:
    """The lines to print."""
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    lines = [f"{len(bench.tokens)} tokens, {len(bench.segments)} segments, {bench.bytes / 1e6:.1f} MB"]
    for name, seconds in medians.items():
        share = medians["set_data"] / seconds
        lines.append(
            f"  {name:13} {seconds * 1e3:9.3f} ms {bench.bytes / seconds / 1e9:8.2f} GB/s {share:8.3f} of set_data"
        )
    ratios = sorted(raw / own for raw, own in zip(times["set_data"], times["restore"], strict=True))
    low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
    ratio = statistics.median(ratios)
    rest = medians["restore"] - medians["set_data"] - medians["checksums"] - medians["book-keeping"]
    lines += [
        f"  restore reaches {ratio:.3f} of set_data's speed ({low:.3f} to {high:.3f} in 8 of 10 rounds); goal {GOAL}: "
        + ("reached" if ratio >= GOAL else "missed"),
        "  what a restore does beside set_data: checksums {:.1%}, book-keeping {:.1%}, everything else {:.1%}".format(
            *(part / medians["restore"] for part in (medians["checksums"], medians["book-keeping"], rest))
        ),
    ]
    return lines


def make_bench(model: Model, log: Any, options: argparse.Namespace) -> Bench:
    """A loop with a prompt of `--tokens` tokens, computed and exported."""
    from lcpd.engine.loop import DecodeLoop
    from lcpd.native import bridge
    from lcpd.native.context import Context, ContextSettings

    settings = ContextSettings(
        n_ctx=options.tokens * 2 + 256,  # a segment is read beside what is there already
        n_seq=2,
        n_batch=2048,
        n_ubatch=512,
        threads=options.threads,
        kv_type=options.kv,
        flash_attn=options.flash_attn,
    )
    context = Context(model, settings, log)
    arena = Arena(options.arena << 20)
    said: list[p.FromWorker] = []
    view = ArenaView(arena.fd, arena.size)
    loop = DecodeLoop(
        model,
        context,
        bridge.Params("--jinja"),
        said.append,
        arena=view,
        max_stall=60.0,
        verify_once=options.verify == "once",
    )
    draw = np.random.default_rng(1)
    tokens = draw.integers(300, min(model.n_vocab, 4000), options.tokens).astype(np.int32)
    bench = Bench(context, arena, loop, said, tokens)
    bench.save(options.segment)
    return bench


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status is 1 when the goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restore_speed", description=__doc__)
    parser.add_argument("--model", default="demo:hybrid")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--segment", type=int, default=2048, help="tokens of a segment, as the prompt cache makes them")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--verify", default="always", choices=("always", "once"), help="as cache.verify")
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--flash-attn", default="off", choices=("off", "on"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--arena", type=int, default=1024, help="MiB")
    options = parser.parse_args(arguments)
    os.environ["LLAMA_CPP_LIB_PATH"] = str(require_active().lib_dir)
    import llama_cpp.llama_cpp as llama

    from lcpd.native.log import LogCapture
    from lcpd.native.model import Model, ModelSettings

    log = LogCapture()
    llama.llama_backend_init()
    model = Model(resolve(options.model, dirs()), log, ModelSettings())
    bench = make_bench(model, log, options)
    times = measure(bench, options.rounds)
    print(f"{options.model}, KV {options.kv}: " + "\n".join(report(bench, times)))
    ratio = statistics.median(a / b for a, b in zip(times["set_data"], times["restore"], strict=True))
    bench.context.close()
    model.close()
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    raise SystemExit(main())
