"""The worker process: what it says of the model, and the arena that it shares with the daemon."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import numpy as np
import pytest

from lcpd.cache.arena import Arena, checksum
from lcpd.engine import protocol as p
from lcpd.ipc.handshake import VERSION, Hello
from lcpd.ipc.launch import launch
from support import model_path

pytestmark = pytest.mark.native

SETTINGS = p.ContextSettings(
    n_ctx=1024,
    n_ctx_cap=1024,
    slots=2,
    n_batch=256,
    n_ubatch=256,
    threads=1,
    kv_type="f16",
    flash_attn="off",
    gpu_layers=0,
    tensor_split=[],
    main_gpu=0,
    mmap=True,
    mlock=False,
)


class Worker:
    """A loaded worker process."""

    def __init__(self, child, channel, loaded):
        self.child = child
        self.channel = channel
        self.info = loaded.info

    async def until(self, kind):
        """Messages up to the first of a kind, which comes last."""
        seen = []
        async with asyncio.timeout(120):
            while not seen or not isinstance(seen[-1], kind):
                seen.append(await self.channel.receive())
        return seen


@pytest.fixture
async def arena():
    arena = Arena(32 << 20)
    yield arena
    arena.close()


@pytest.fixture
async def worker(arena):
    command = [sys.executable, "-m", "lcpd.engine.worker"]
    child, channel = await launch(command, os.environ, 100, p.FromWorker | Hello, descriptors=[arena.fd])
    channel.send(Hello(VERSION, "engine"))
    assert isinstance(await channel.receive(), Hello)
    channel.send(p.Load("m", str(model_path("hybrid")), SETTINGS, arena.size))
    message = await channel.receive()
    while isinstance(message, p.LoadProgress):
        message = await channel.receive()
    yield Worker(child, channel, message)
    channel.send(p.Quit())
    assert await child.reap() == 0
    channel.close()


def start(request, tokens, **more):
    fields = json.dumps({"temperature": 0, "ignore_eos": True}).encode()
    return p.Start("m", request, tokens=p.pack(tokens), fields=fields, max_tokens=8, **more)


def reply(messages):
    return [t for m in messages if isinstance(m, p.Step) for o in m.outputs for t in o.tokens]


async def test_state_survives_in_the_arena_while_the_sequence_is_emptied(worker, arena):
    a, b = worker.info.segment_bytes
    tokens = np.arange(300, 420, dtype=np.int32)
    checkpoint = arena.allocate(worker.info.checkpoint_bytes)
    worker.channel.send(start(1, tokens, seq=0, begin=0, checkpoints={100: checkpoint}))
    messages = await worker.until(p.Finished)
    (taken,) = [m for m in messages if isinstance(m, p.Checkpointed)]
    worker.channel.send(p.Save("m", 0, [p.Cut(0, 100, arena.allocate(a + 100 * b))]))
    saved = (await worker.until(p.Saved))[-1]
    assert saved.problem == ""
    piece = saved.segments[0].piece
    assert checksum(arena.view(piece.extent)) == piece.checksum

    worker.channel.send(p.Clear("m", 0))
    worker.channel.send(start(2, tokens, seq=1, begin=100, segments=saved.segments, restore=taken.piece))
    again = await worker.until(p.Finished)
    (started,) = [m for m in again if isinstance(m, p.Started)]
    assert (started.begin, started.problem) == (100, "")
    assert reply(again) == reply(messages)


async def test_a_starved_worker_stays_idle_and_says_so_in_its_beats(worker):
    worker.channel.send(start(1, np.arange(300, 1000, dtype=np.int32), seq=0, begin=0))
    await worker.until(p.Finished)
    worker.channel.send(start(2, np.arange(400, 1000, dtype=np.int32), seq=1, begin=0))
    await worker.until(p.Starved)
    beat = (await worker.until(p.Beat))[-1]
    assert beat.running == 0
    worker.channel.send(p.Clear("m", 0))
    assert (await worker.until(p.Finished))[-1].request == 2
