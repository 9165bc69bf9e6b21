"""The supervisor's state table, row by row, with the fake worker."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import vocab
from fakes.worker import Fault, load, worker_command
from lcpd.engine import protocol as p
from lcpd.engine.policy import Death, RestartPolicy
from lcpd.engine.supervisor import NotReadyError, State, Supervisor, WorkerSettings

AT_ONCE = RestartPolicy(backoff=0.0, crash_limit=100)
ONE_LIFE = RestartPolicy(backoff=0.0, crash_limit=1)


class Recorder:
    """A listener that remembers what it was told."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    def on_up(self, info: p.ModelInfo) -> None:
        self.told.put_nowait(("up", info))

    def on_message(self, message: p.FromWorker) -> None:
        self.told.put_nowait(("message", message))

    def on_down(self, reason: str, cause: str) -> None:
        self.told.put_nowait(("down", (reason, cause)))

    def on_failed(self, reason: str) -> None:
        self.told.put_nowait(("failed", reason))

    async def expect(self, kind: str) -> Any:
        """The next thing told, which must be of this kind."""
        async with asyncio.timeout(60):
            told, what = await self.told.get()
        assert told == kind, (told, what)
        return what

    async def until(self, wanted: type[p.Message]) -> Any:
        """The next message of this type; others in between are skipped."""
        while True:
            message = await self.expect("message")
            if isinstance(message, wanted):
                return message


async def wait_for(condition: Callable[[], bool]) -> None:
    """For what nobody is told: a state that can only be looked at."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


Make = Callable[..., tuple[Supervisor, Recorder]]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Builds supervisors (not started); `script` is the fake worker's, the rest WorkerSettings."""
    made = []

    def build(script: dict[str, Any] | None = None, **settings: Any) -> tuple[Supervisor, Recorder]:
        recorder = Recorder()
        values = {"load": load(), "restart": AT_ONCE, "command": worker_command(**(script or {})), **settings}
        supervisor = Supervisor(WorkerSettings(**values), recorder)
        made.append(supervisor)
        return supervisor, recorder

    yield build
    for supervisor in made:
        await supervisor.stop()


def start_message(request: int = 1, text: str = "hello", endless: bool = False) -> p.Start:
    return p.Start(
        model="fake",
        request=request,
        seq=0,
        tokens=p.pack(np.array(vocab.encode(text), np.int32)),
        begin=0,
        fields=b'{"ignore_eos":true}' if endless else b"{}",
        max_tokens=1_000_000,
    )


def alive(pid: int | None) -> bool:
    return pid is not None and Path(f"/proc/{pid}").exists()


async def test_a_message_that_its_listener_cannot_deal_with_costs_the_worker_and_not_the_engine(make: Make) -> None:
    supervisor, told = make()

    def fail(message: p.FromWorker) -> None:
        del told.on_message
        raise KeyError("nobody asked")

    told.on_message = fail  # type: ignore[method-assign]
    supervisor.start()
    await told.expect("up")
    supervisor.send(start_message())
    reason, cause = await told.expect("down")
    assert (reason.splitlines()[0], cause) == ("internal error: KeyError('nobody asked')", "internal")
    await told.expect("up")


# ---- stopped, starting, loading, ready --------------------------------------------------------------------


async def test_a_supervisor_that_was_not_started_is_stopped_and_sends_nothing(make: Make) -> None:
    supervisor, _ = make()
    assert supervisor.state is State.STOPPED
    assert supervisor.pid is None
    with pytest.raises(NotReadyError, match="the engine is stopped"):
        supervisor.send(p.Quit())


async def test_while_the_model_loads_its_progress_is_told_and_nothing_can_be_sent(make: Make) -> None:
    supervisor, recorder = make({"load_seconds": 0.2})
    supervisor.start()
    await wait_for(lambda: supervisor.state is State.LOADING and supervisor.progress == 0.25)
    with pytest.raises(NotReadyError, match="the engine is loading"):
        supervisor.send(start_message())
    info = await recorder.expect("up")
    assert supervisor.state is State.READY
    assert supervisor.progress == 1.0
    assert isinstance(info, p.ModelInfo)
    assert supervisor.info == info


async def test_a_ready_worker_is_sent_commands_and_its_messages_are_passed_on(make: Make) -> None:
    supervisor, recorder = make()
    supervisor.start()
    await recorder.expect("up")
    supervisor.send(start_message(request=7))
    assert await recorder.expect("message") == p.Started(request=7, begin=0)
    finished = await recorder.until(p.Finished)
    assert (finished.request, finished.reason) == (7, "stop")


async def test_a_refused_version_is_final(make: Make) -> None:
    supervisor, recorder = make({"refuse": "the daemon speaks protocol 9"})
    supervisor.start()
    assert await recorder.expect("failed") == "the daemon speaks protocol 9"
    assert supervisor.state is State.FAILED


async def test_a_model_that_cannot_be_loaded_is_final(make: Make) -> None:
    supervisor, recorder = make({"load_failure": "no such file: fake.gguf"})
    supervisor.start()
    assert await recorder.expect("failed") == "no such file: fake.gguf"
    assert (supervisor.state, supervisor.reason) == (State.FAILED, "no such file: fake.gguf")
    assert supervisor.restarts == 0
    with pytest.raises(NotReadyError, match="the engine is failed"):
        supervisor.send(start_message())


# ---- deaths -----------------------------------------------------------------------------------------------


async def test_a_killed_worker_is_started_again(make: Make) -> None:
    supervisor, recorder = make()
    supervisor.start()
    await recorder.expect("up")
    first = supervisor.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert await recorder.expect("down") == ("the worker was killed by SIGKILL", "killed")
    await recorder.expect("up")
    assert supervisor.state is State.READY
    assert supervisor.restarts == 1
    assert supervisor.pid != first
    assert not alive(first)


async def test_while_a_restart_is_awaited_nothing_can_be_sent_and_the_reason_is_told(make: Make) -> None:
    supervisor, recorder = make(
        {"faults": [Fault("loaded", "exit:3")]}, restart=RestartPolicy(backoff=1000, backoff_max=1000)
    )
    supervisor.start()
    await recorder.expect("up")
    await recorder.expect("down")
    assert supervisor.state is State.RESTARTING
    assert supervisor.reason == "the worker exited with status 3"
    assert supervisor.pid is None
    with pytest.raises(NotReadyError, match="the engine is restarting"):
        supervisor.send(start_message())


@pytest.mark.parametrize(("point", "cause"), [("start", "start"), ("load", "load")])
async def test_a_death_before_the_worker_was_ready_is_a_crash_too(
    make: Make, tmp_path: Path, point: str, cause: str
) -> None:
    supervisor, recorder = make({"faults": [Fault(point, "exit:7", once=str(tmp_path / "first life"))]})
    supervisor.start()
    assert await recorder.expect("down") == ("the worker exited with status 7", cause)
    await recorder.expect("up")
    assert supervisor.restarts == 1


class Recording(RestartPolicy):
    """Starts again at once and remembers how many crashes it was asked about."""

    counts: list[int]

    def delay(self, deaths: Sequence[Death], now: float) -> float | None:
        self.counts.append(len(deaths))
        assert deaths[-1] == Death(now)
        return None if len(deaths) == 3 else 0.0


async def test_how_long_to_wait_is_the_policys_decision_over_all_crashes(make: Make) -> None:
    policy = Recording()
    object.__setattr__(policy, "counts", [])
    supervisor, recorder = make({"faults": [Fault("start", "exit:1")]}, restart=policy)
    supervisor.start()
    for _ in range(3):
        await recorder.expect("down")
    await recorder.expect("failed")
    assert policy.counts == [1, 2, 3]


async def test_a_crash_loop_ends_in_failure_with_the_end_of_the_log_in_the_reason(make: Make) -> None:
    supervisor, recorder = make(
        {"say": ["CUDA error: out of memory"], "faults": [Fault("load", "exit:1")]},
        restart=RestartPolicy(backoff=0, crash_limit=2, crash_window=60),
    )
    supervisor.start()
    await recorder.expect("down")
    await recorder.expect("down")
    reason = await recorder.expect("failed")
    assert reason == (
        "crash loop: 2 crashes within 60 s; the last: the worker exited with status 1\nCUDA error: out of memory"
    )
    assert (supervisor.state, supervisor.reason) == (State.FAILED, reason)
    assert supervisor.restarts == 1
    assert supervisor.pid is None


async def test_only_the_last_lines_of_the_log_are_told(make: Make) -> None:
    supervisor, recorder = make(
        {"say": [f"line {n}" for n in range(100)], "faults": [Fault("start", "exit:1")]}, restart=ONE_LIFE
    )
    supervisor.start()
    reason, _ = await recorder.expect("down")
    assert reason.split("\n") == ["the worker exited with status 1", *(f"line {n}" for n in range(80, 100))]


async def test_a_worker_that_does_not_say_hello_in_time_is_killed(make: Make) -> None:
    supervisor, recorder = make({"faults": [Fault("start", "hang")]}, start_timeout=0.3, restart=ONE_LIFE)
    supervisor.start()
    assert await recorder.expect("down") == ("no hello within 0.3 s (engine.start_timeout)", "start")
    await recorder.expect("failed")


async def test_a_worker_that_does_not_load_in_time_is_killed(make: Make) -> None:
    supervisor, recorder = make({"faults": [Fault("load", "hang")]}, load_timeout=0.3, restart=ONE_LIFE)
    supervisor.start()
    assert await recorder.expect("down") == ("not loaded within 0.3 s (engine.load_timeout)", "load")
    await recorder.expect("failed")


async def test_a_worker_that_cannot_be_started_at_all_is_reported(make: Make) -> None:
    supervisor, recorder = make(command=("/no/such/python",), restart=ONE_LIFE)
    supervisor.start()
    reason, cause = await recorder.expect("down")
    assert "cannot be started" in reason
    assert "/no/such/python" in reason
    assert cause == "start"
    await recorder.expect("failed")
    assert supervisor.state is State.FAILED


@pytest.mark.parametrize(("point", "rubbish"), [("start", "garbage"), ("load", "nonsense"), ("request:1", "garbage")])
async def test_a_worker_that_speaks_nonsense_is_replaced(make: Make, tmp_path: Path, point: str, rubbish: str) -> None:
    supervisor, recorder = make({"faults": [Fault(point, rubbish, once=str(tmp_path / "first life"))]})
    supervisor.start()
    if point == "request:1":
        await recorder.expect("up")
        supervisor.send(start_message())
    reason, _ = await recorder.expect("down")
    assert reason.startswith("the worker spoke nonsense")
    await recorder.expect("up")


# ---- hangs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "reason"), [("hang", "no sign of life"), ("stall", "requests run but no batch was decoded")]
)
async def test_a_worker_that_hangs_is_killed_and_started_again(
    make: Make, tmp_path: Path, action: str, reason: str
) -> None:
    faults = [Fault("token:3", action, once=str(tmp_path / "first life"))]
    supervisor, recorder = make({"faults": faults, "beat_seconds": 0.02}, heartbeat_timeout=0.8)
    supervisor.start()
    await recorder.expect("up")
    first = supervisor.pid
    supervisor.send(start_message(endless=True))
    for _ in range(3):
        await recorder.until(p.Step)
    told, cause = await recorder.expect("down")
    assert told.startswith(reason)
    assert cause == "hang"
    assert not alive(first)
    await recorder.expect("up")


async def test_a_worker_without_progress_for_a_while_is_degraded_until_it_goes_on(make: Make) -> None:
    supervisor, recorder = make(
        {"faults": [Fault("token:2", "stall:1.4")], "beat_seconds": 0.02}, heartbeat_timeout=3.0
    )
    supervisor.start()
    await recorder.expect("up")
    supervisor.send(start_message(request=5))
    await wait_for(lambda: supervisor.state is State.DEGRADED)
    supervisor.send(p.Cancel("fake", 99))  # commands still go through
    finished = await recorder.until(p.Finished)
    assert finished.request == 5
    await wait_for(lambda: supervisor.state is State.READY)
    assert supervisor.restarts == 0


# ---- stop -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        pytest.param({}, id="idle"),
        pytest.param({"faults": [Fault("loaded", "hang")]}, id="hanging"),
        pytest.param({"faults": [Fault("loaded", "hang")], "ignore_sigterm": True}, id="hanging and deaf to SIGTERM"),
    ],
)
async def test_stop_leaves_no_process(make: Make, script: dict[str, Any]) -> None:
    supervisor, recorder = make(script, stop_timeout=0.2)
    supervisor.start()
    await recorder.expect("up")
    pid = supervisor.pid
    assert alive(pid)
    await supervisor.stop()
    assert supervisor.state is State.STOPPED
    assert not alive(pid)


async def test_stop_while_the_model_loads_leaves_no_process(make: Make) -> None:
    supervisor, recorder = make({"faults": [Fault("load", "hang")]})
    supervisor.start()
    await wait_for(lambda: supervisor.state is State.LOADING)
    pid = supervisor.pid
    await supervisor.stop()
    assert not alive(pid)
    assert recorder.told.empty()


async def test_stop_while_a_restart_is_awaited_starts_nothing_more(make: Make) -> None:
    supervisor, recorder = make(
        {"faults": [Fault("start", "exit:1")]}, restart=RestartPolicy(backoff=1000, backoff_max=1000)
    )
    supervisor.start()
    await recorder.expect("down")
    await supervisor.stop()
    assert (supervisor.state, supervisor.pid) == (State.STOPPED, None)


async def test_stop_after_a_failure_is_stopped(make: Make) -> None:
    supervisor, recorder = make({"load_failure": "no"})
    supervisor.start()
    await recorder.expect("failed")
    await supervisor.stop()
    assert supervisor.state is State.STOPPED


async def test_stop_at_any_moment_of_the_start_leaves_no_process_and_no_descriptor(make: Make) -> None:
    def belongings() -> tuple[str, int]:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
        return children, len(list(Path("/proc/self/fd").iterdir()))

    supervisor, recorder = make()
    supervisor.start()  # opens what asyncio keeps for all children
    await recorder.expect("up")
    await supervisor.stop()
    await asyncio.sleep(0)
    before = belongings()
    for rounds in range(25):
        supervisor, _ = make()
        supervisor.start()
        for _ in range(rounds):
            await asyncio.sleep(0)
        await supervisor.stop()
        await asyncio.sleep(0)
        assert belongings() == before, f"stopped after {rounds} rounds of the loop"


async def test_a_stopped_supervisor_can_be_started_again(make: Make) -> None:
    supervisor, recorder = make()
    supervisor.start()
    await recorder.expect("up")
    await supervisor.stop()
    supervisor.start()
    await recorder.expect("up")
    assert supervisor.state is State.READY
