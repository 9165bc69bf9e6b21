"""How fast sequence states leave and enter the device, beside plain copies of as many bytes.

Times are the best of `REPEATS`; GB/s are 10^9 bytes of state per second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from check_gpu.child import Options, run
from check_gpu.cudart import TO_DEVICE, TO_HOST, Cudart
from check_gpu.engine import PARTIAL, Backend, Engine, Setting, words
from check_gpu.outcome import Findings
from lcpd.native import bridge
from lcpd.native.context import Bytes

REPEATS = 5
LENGTHS = {"cuda": (1024, 8192, 32768, 98304), "cpu": (1024, 4096)}
"""Tokens.  The embedded model's KV has 1 KiB a token in f16."""
INTERLEAVED = 512


def check_copies(options: Options, findings: Findings) -> None:
    backend = Backend(gpu=options.gpu)
    lengths = LENGTHS[options.backend]
    cuda = Cudart.of_this_process()
    if cuda is None:
        findings.notes.append("no CUDA runtime in this build: pageable memory only, and memcpy as the baseline")
    data = np.zeros(1 << 20, np.uint8)
    pinned = bridge.pin_host(data)
    if pinned:
        bridge.unpin_host(data)
    there = "there is a GPU" if cuda else "there is no GPU"
    findings.check("memory is pinned just where there is a GPU", pinned == (cuda is not None), f"{pinned}, {there}")
    for kv_type in ("f16", "q8_0"):
        engine = backend.engine(Setting(n_ctx=lengths[-1] + 512, n_seq=3, kv_type=kv_type))
        sizes = _contiguous(engine, kv_type, lengths, cuda, findings)
        _interleaved(engine, kv_type, findings)
        engine.close()
        if kv_type == "f16":
            _baseline(sizes, cuda, findings)


def _contiguous(
    engine: Engine, kv: str, lengths: tuple[int, ...], cuda: Cudart | None, findings: Findings
) -> list[int]:
    """States of one sequence of growing length, whose cells lie in one run; returns their sizes in bytes."""
    tokens = words(engine.model, 3, lengths[-1])
    sizes, begin, intact = [], 0, True
    for length in lengths:
        engine.prefill(tokens, begin, length, 0)
        begin = length
        data = engine.get(0)
        sizes.append(len(data))
        original = data.copy()
        _both_ways(engine, f"{kv} {length} tokens, pageable", data, findings)
        if cuda is not None:
            with cuda.pinned(data):
                _both_ways(engine, f"{kv} {length} tokens, pinned", data, findings)
        intact = intact and np.array_equal(engine.get(0), original)
    checkpoint = engine.get(0, PARTIAL)
    seconds = best_of(lambda: engine.get(0, PARTIAL, checkpoint))
    findings.figure(f"{kv} checkpoint out ({len(checkpoint)} B)", seconds * 1e3, "ms")
    seconds = best_of(lambda: engine.put(0, checkpoint, PARTIAL))
    findings.figure(f"{kv} checkpoint in", seconds * 1e3, "ms")
    largest = f"up to {max(sizes) / 1e6:.1f} MB"
    findings.check(f"{kv}: states went out and in without changing a byte", intact, largest)
    engine.context.clear(0)
    return sizes


def _both_ways(engine: Engine, name: str, data: Bytes, findings: Findings) -> None:
    """Time the state of sequence 0 out and in; the sequence holds the same as before."""
    out = best_of(lambda: engine.get(0, into=data))
    findings.figure(f"{name}, out ({len(data) / 1e6:.1f} MB)", len(data) / out / 1e9, "GB/s")

    def put() -> None:
        if not engine.put(0, data):
            raise RuntimeError(f"a state of {len(data)} bytes was refused")

    into = best_of(put, before=lambda: engine.context.clear(0))
    findings.figure(f"{name}, in", len(data) / into / 1e9, "GB/s")


def _interleaved(engine: Engine, kv: str, findings: Findings) -> None:
    """Two sequences that were decoded together: their cells alternate, and each is copied by itself."""
    tokens = words(engine.model, 4, INTERLEAVED)
    for position in range(INTERLEAVED):
        pair = np.repeat(tokens[position : position + 1], 2)
        positions, seqs = np.full(2, position, np.int32), np.array([0, 1], np.int32)
        engine.context.decode(pair, positions, seqs, np.ones(2, np.int8))
    engine.context.synchronize()
    data = engine.get(0)
    seconds = best_of(lambda: engine.get(0, into=data))
    findings.figure(f"{kv} {INTERLEAVED} tokens in one-cell runs, out", seconds * 1e3, "ms")
    engine.context.clear(0)
    engine.context.clear(1)
    engine.put(0, data)
    seconds = best_of(lambda: engine.get(0, into=data))
    findings.figure(f"{kv} {INTERLEAVED} tokens in one run, out", seconds * 1e3, "ms")
    engine.context.clear(0)


def _baseline(sizes: list[int], cuda: Cudart | None, findings: Findings) -> None:
    for size in sizes:
        data = np.ones(size, np.uint8)
        name = f"{size / 1e6:.1f} MB"
        if cuda is None:
            other = np.zeros_like(data)
            findings.figure(f"memcpy {name}", size / best_of(partial(np.copyto, other, data)) / 1e9, "GB/s")
            continue
        with cuda.device_memory(size) as device:
            _plain_copies(cuda, data, device, f"cudaMemcpy {name}, pageable", findings)
            with cuda.pinned(data):
                _plain_copies(cuda, data, device, f"cudaMemcpy {name}, pinned", findings)


def _plain_copies(cuda: Cudart, data: Bytes, device: int, name: str, findings: Findings) -> None:
    for way, kind in (("in", TO_DEVICE), ("out", TO_HOST)):
        seconds = best_of(partial(cuda.copy, data, device, kind))
        findings.figure(f"{name}, {way}", len(data) / seconds / 1e9, "GB/s")


def best_of(action: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """The shortest time of `REPEATS` calls after one that does not count, in seconds."""
    times = []
    for _ in range(REPEATS + 1):
        before()
        begun = time.perf_counter()
        action()
        times.append(time.perf_counter() - begun)
    return min(times[1:])


if __name__ == "__main__":
    run(check_copies)
