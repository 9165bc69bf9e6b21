"""A prompt cache with a disk tier, and what a worker would do for both."""

from __future__ import annotations

import asyncio

import numpy as np
from synthetic_kv import Bench

from lcpd.cache.figures import Limits
from lcpd.cache.store import BlobStore
from lcpd.cache.tier import DiskTier
from lcpd.engine.protocol import Tokens

FINGERPRINT = {"model file": "m", "kv type": "f16"}
SIZE = 1 << 24


class DiskBench(Bench):
    """`Bench` with a disk tier over a store."""

    def __init__(self, store: BlobStore, ram: int = 1 << 16, rolls_back: bool = False, **limits: float) -> None:
        super().__init__(ram)
        self.wall = 1e9
        self.busy = False
        self.rolls_back = rolls_back
        self.store = store
        settings = Limits(**{"size": SIZE, "interval": 64, "retry": 0.001, **limits})
        self.disk = DiskTier(store, self.cache, settings, lambda: self.busy, lambda: self.now, lambda: self.wall)

    async def start(self, fingerprint: dict[str, str] = FINGERPRINT) -> None:
        self.disk.start(fingerprint, rolls_back=self.rolls_back)
        await self.disk.flush()

    def compute(self, tokens: Tokens, *checkpoints: int) -> None:
        """As a request would leave it: all of it is in RAM, with checkpoints, also one at the end."""
        self.save(tokens)
        if not self.rolls_back:
            for position in (*checkpoints, len(tokens)):
                self.take_checkpoint(tokens[:position])

    async def put_away(self, tokens: Tokens, *checkpoints: int) -> None:
        """... and on disk."""
        self.compute(tokens, *checkpoints)
        await self.disk.flush()

    async def ask(self, tokens: Tokens) -> int:
        """Ask for a prompt that goes on from `tokens`; what came back is checked."""
        prompt = np.concatenate([tokens, np.array([9001, 9002], np.int32)])
        begin = await self.disk.promote(prompt)
        self.restore(prompt, 0, self.cache.covered(prompt))
        self.check()
        return begin

    def removed(self, reason: str) -> int:
        return self.disk.stats().counts.removed.get(reason, 0)

    def skipped(self, reason: str) -> int:
        return self.disk.stats().counts.skipped.get(reason, 0)


def conversation(seed: int, length: int) -> Tokens:
    return np.random.default_rng(seed).integers(10, 9000, length).astype(np.int32)


TALK = conversation(1, 40)


async def stop(*benches: DiskBench) -> None:
    for bench in benches:
        await bench.disk.finish(1.0)


async def until(true) -> None:
    async with asyncio.timeout(10):
        while True:
            if true():
                return
            await asyncio.sleep(0.002)


async def reborn(bench: DiskBench, fingerprint: dict[str, str] = FINGERPRINT, **limits: float) -> DiskBench:
    """The next daemon, after the one before was killed."""
    await stop(bench)
    following = DiskBench(bench.store, rolls_back=bench.rolls_back, **limits)
    following.wall = bench.wall
    await following.start(fingerprint)
    return following
