"""What is tried when memory lacks: the table of `memory`, and the supervisor with the fake worker."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from fakes.worker import Fault, load, worker_command
from lcpd.engine import memory
from lcpd.engine import protocol as p
from lcpd.engine.policy import RestartPolicy
from lcpd.engine.supervisor import State, Supervisor, WorkerSettings

LARGE = msgspec.structs.replace(load().context, n_ctx=32768, n_batch=2048, n_ubatch=512)


def test_the_context_is_halved_down_to_its_floor_and_then_the_batch() -> None:
    seen = []
    context: p.ContextSettings | None = LARGE
    while context is not None:
        seen.append((context.n_ctx, context.n_batch, context.n_ubatch))
        context = memory.smaller(context, None)
    assert seen == [
        (32768, 2048, 512),
        (16384, 2048, 512),
        (8192, 2048, 512),
        (4096, 2048, 512),
        (4096, 1024, 256),
        (4096, 512, 128),
        (4096, 256, 64),
    ]


def test_what_counts_is_the_context_that_was_loaded() -> None:
    smaller = memory.smaller(msgspec.structs.replace(LARGE, n_ctx=0), cells=10000)
    assert smaller is not None
    assert smaller.n_ctx == 5000


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory",
        "no context of 32768 cells could be made: failed to allocate buffer for kv cache",
        "OutOfMemory: llama_decode: out of memory",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ],
)
def test_want_of_memory_is_known_by_its_words(text: str) -> None:
    assert memory.speaks_of_memory(text)
    assert not memory.speaks_of_memory("the worker was killed by SIGSEGV")


def test_the_kernels_count_of_kills_is_read(tmp_path: Path) -> None:
    file = tmp_path / "vmstat"
    file.write_text("pgfault 12\noom_kill 3\n")
    assert memory.kills(file) == 3
    assert memory.kills(tmp_path / "missing") == 0


class Listener:
    def __init__(self) -> None:
        self.ups: list[p.ModelInfo] = []
        self.downs: list[str] = []
        self.failed: str | None = None

    def on_up(self, info: p.ModelInfo) -> None:
        self.ups.append(info)

    def on_message(self, message: p.FromWorker) -> None:
        pass

    def on_down(self, reason: str, cause: str) -> None:
        self.downs.append(cause)

    def on_failed(self, reason: str) -> None:
        self.failed = reason


async def supervised(
    script: dict[str, object], until: Callable[[Supervisor, Listener], bool], **settings: float
) -> tuple[Supervisor, Listener]:
    listener = Listener()
    message = msgspec.structs.replace(load(), context=LARGE)
    policy = RestartPolicy(backoff=0.0, crash_limit=2)
    supervisor = Supervisor(
        WorkerSettings(load=message, command=worker_command(**script), restart=policy, **settings), listener
    )
    supervisor.start()
    try:
        async with asyncio.timeout(60):
            while not until(supervisor, listener):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return supervisor, listener
    finally:
        await supervisor.stop()


async def test_a_context_that_cannot_be_made_is_made_smaller_until_it_can() -> None:
    script = {"max_ctx": 10000}
    supervisor, listener = await supervised(script, lambda s, heard: bool(heard.ups))
    assert listener.ups[0].n_ctx == 8192
    assert listener.downs == ["memory", "memory"]
    assert "ran out of memory: it runs with a context of 8192 tokens" in supervisor.shrunk


async def test_a_worker_that_dies_for_want_of_memory_comes_back_with_less(tmp_path: Path) -> None:
    death = Fault("loaded", "exit:1", once=str(tmp_path / "first life"))
    script = {"say": ["CUDA error: out of memory"], "faults": [death]}
    _, listener = await supervised(script, lambda s, heard: len(heard.ups) == 2)
    assert [info.n_ctx for info in listener.ups] == [32768, 16384]
    assert listener.downs == ["memory"]


async def test_a_model_that_does_not_fit_is_refused_and_not_tried_with_a_smaller_context() -> None:
    script = {"load_failure": "model.gguf: unable to allocate CUDA0 buffer"}
    supervisor, listener = await supervised(script, lambda s, heard: heard.failed is not None)
    assert listener.downs == []
    assert supervisor.shrunk == ""


@asynccontextmanager
async def awake(listener: Listener) -> AsyncIterator[Supervisor]:
    """A supervisor whose worker has loaded."""
    supervisor = Supervisor(WorkerSettings(load=load(), command=worker_command()), listener)
    supervisor.start()
    try:
        async with asyncio.timeout(60):
            while not listener.ups:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            yield supervisor
    finally:
        await supervisor.stop()


async def test_a_supervisor_sleeps_and_wakes() -> None:
    listener = Listener()
    async with awake(listener) as supervisor:
        await supervisor.sleep()
        assert (supervisor.state, supervisor.pid, listener.downs) == (State.SLEEPING, None, ["sleep"])
        supervisor.wake()
        while len(listener.ups) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert supervisor.restarts == 0


async def test_nobody_hears_that_it_sleeps_while_the_worker_may_still_write_to_the_arena() -> None:
    class Witness(Listener):
        def on_down(self, reason: str, cause: str) -> None:
            super().on_down(reason, cause)
            assert worker is not None
            with pytest.raises(ProcessLookupError):
                os.kill(worker, 0)

    listener = Witness()
    async with awake(listener) as supervisor:
        worker = supervisor.pid
        await supervisor.sleep()
        assert listener.downs == ["sleep"]


@pytest.mark.parametrize(("looks", "cause"), [(0, "memory"), (4, "killed")])
async def test_only_a_kill_that_comes_together_with_one_for_want_of_memory_was_one(
    monkeypatch: pytest.MonkeyPatch, looks: int, cause: str
) -> None:
    looked = []
    monkeypatch.setattr(memory, "kills", lambda: looked.append(1) or int(len(looked) > 1))

    def until(supervisor: Supervisor, listener: Listener) -> bool:
        if len(listener.ups) == 1 and len(looked) > looks and supervisor.pid:
            os.kill(supervisor.pid, signal.SIGKILL)
        return bool(listener.downs)

    _, listener = await supervised({}, until, heartbeat_timeout=2.0 if looks else 60.0)
    assert listener.downs[0] == cause
