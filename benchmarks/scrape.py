"""What a scrape of the metrics costs while the prompt cache holds many conversations.

    python -m benchmarks.scrape [--conversations 1000] [--scrapes 200] [--profile]

The figures, the prompt cache and the scheduler are the daemon's, without an engine; every series that a busy home
server would have is there: eight programs with four keys at all routes.  What counts is CPU time: for so long the event
loop can do nothing else.  Ends with 1 where the slowest scrape of twenty takes more than the goal.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import statistics
import sys
import time
from types import SimpleNamespace

import numpy as np

from lcpd.api.clients import PROGRAMS
from lcpd.cache.arena import Arena, checksum
from lcpd.cache.cache import PromptCache
from lcpd.config import Settings
from lcpd.engine.protocol import Piece, Segment, Tokens
from lcpd.engine.supervisor import State
from lcpd.metrics import Metrics
from lcpd.metrics.live import Live
from lcpd.metrics.tokens import SOURCES
from lcpd.scheduler.dispatcher import Dispatcher
from lcpd.scheduler.policy import Policy
from lcpd.scheduler.report import MISSES

GOAL = 0.020
"""Seconds."""
HEADS, HEAD_TOKENS, TAIL_TOKENS = 4, 4096, 8192
"""Conversations have one of four heads in common, and a tail of their own."""
SEGMENT_BYTES, CHECKPOINT_BYTES = (64, 0), 64
"""Small: what a scrape costs does not depend on how large the pieces are."""
ENDPOINTS = ("/chat/completions", "/messages", "/responses", "/completions", "/models", "/metrics", "unknown")
CODES = ("200", "400", "404", "429", "499", "500", "503")
FORMATS = {"text": "", "OpenMetrics": "application/openmetrics-text; version=1.0.0"}


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=1000)
    parser.add_argument("--scrapes", type=int, default=200)
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    options = parser.parse_args()
    return asyncio.run(measure(options.conversations, options.scrapes, options.profile))


async def measure(conversations: int, scrapes: int, profile: bool) -> int:
    """Build it all, scrape, and say what it took."""
    arena = Arena(256 << 20)
    cache, metrics = PromptCache(arena), Metrics()
    Dispatcher("a-model", 4, Policy(), cache, lambda message: None, metrics)
    worker = SimpleNamespace(pid=None, state=State.READY, info=None, load_seconds=1.0, shrunk="")
    live = Live(metrics, Settings(), "a-model", worker, worker)  # type: ignore[arg-type]
    fill(cache, conversations)
    make_series(metrics)
    stats = cache.stats()
    print(f"{conversations} conversations: {stats.segments} segments, {stats.checkpoints} checkpoints")
    slow = False
    profiler = cProfile.Profile() if profile else None
    for name, accept in FORMATS.items():
        seconds = []
        for _ in range(scrapes):
            if profiler:
                profiler.enable()
            begun = time.thread_time()
            body, _ = await live.expose(accept)
            seconds.append(time.thread_time() - begun)
            if profiler:
                profiler.disable()
        typical, worst = statistics.median(seconds), statistics.quantiles(seconds, n=20)[-1]
        slow = slow or worst > GOAL
        print(f"{name}: {typical * 1e3:.1f} ms by the median, 19 of 20 below {worst * 1e3:.1f} ms, {len(body)} bytes")
    if profiler:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(15)
    arena.close()
    return int(slow)


def fill(cache: PromptCache, conversations: int) -> None:
    """Keep the state of so many conversations."""
    cache.configure(segment_bytes=SEGMENT_BYTES, checkpoint_bytes=CHECKPOINT_BYTES)
    rng = np.random.default_rng(1)
    heads = [np.full(HEAD_TOKENS, head, np.int32) for head in range(HEADS)]
    for head in heads:
        keep(cache, head)
    for number in range(conversations):
        first = np.array([1000 + number], np.int32)
        tail = rng.integers(0, 1000, TAIL_TOKENS - 1).astype(np.int32)
        keep(cache, np.concatenate([heads[number % HEADS], first, tail]))


def keep(cache: PromptCache, tokens: Tokens) -> None:
    """As the engine would export it: segments, and two checkpoints."""
    cuts = cache.plan_save(tokens, len(tokens))
    none = checksum(b"")
    cache.add_segments(tokens, cuts, [Segment(cut.begin, cut.end, Piece(cut.extent, none)) for cut in cuts])
    for end in (len(tokens) // 2, len(tokens)):
        if (extent := cache.reserve_checkpoint()) is not None:
            cache.add_checkpoint(tokens[:end], extent, Piece(extent, none))


def make_series(metrics: Metrics) -> None:
    """All series that a busy server would have."""
    for program in PROGRAMS[:8]:
        metrics.clients.time_to_first_token.labels(program).observe(1.0, {"request_id": "chatcmpl-" + 32 * "0"})
        for key in ("ada", "bob", "cleo", "dan"):
            metrics.clients.generation_tokens.labels(program, key).inc()
            for source in SOURCES:
                metrics.clients.prompt_tokens.labels(program, key, source).inc()
            for reason in MISSES:
                metrics.clients.miss_tokens.labels(program, key, reason).inc()
            for code in CODES:
                metrics.clients.answered.labels(program, key, code).inc()
    for endpoint in ENDPOINTS:
        for code in CODES:
            metrics.requests.answered.labels(endpoint, code).inc()
            metrics.requests.errors.labels(endpoint, code).inc()


if __name__ == "__main__":
    sys.exit(main())
