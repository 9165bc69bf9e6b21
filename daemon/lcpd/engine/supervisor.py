"""Starts the worker, watches it, kills it when it hangs and starts it again when it dies.

    state        means                                   send()     leaves it when
    -----        -----                                   ------     --------------
    stopped      not started, or stopped on purpose      raises     run() -> starting
    sleeping     stopped to free its memory              raises     wake() -> starting
    starting     process started, no hello yet           raises     hello -> loading; version refused -> failed;
                                                                     death, timeout -> restarting
    loading      the model is being read (progress)      raises     loaded -> ready; load refused -> failed;
                                                                     death, timeout -> restarting
    ready        a token can be generated                sends      late beat -> degraded; death -> restarting
    degraded     no progress for a quarter of the        sends      a beat with progress -> ready; death or
                 heartbeat timeout                                   no progress for all of it -> restarting
    restarting   dead; waits for the back-off            raises     back-off over -> starting, with a smaller
                                                                     context where memory lacked;
                                                                     crash loop -> failed
    failed       the model cannot be loaded, or a        raises     never (stop() -> stopped)
                 crash loop

Only :meth:`Supervisor.run`, `stop` and `sleep` change the state.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from lcpd.engine import memory
from lcpd.engine import protocol as p
from lcpd.engine.policy import Death, RestartPolicy, Watchdog
from lcpd.ipc.channel import ChannelClosed, DaemonChannel
from lcpd.ipc.child import Child, describe_exit
from lcpd.ipc.frames import FrameError
from lcpd.ipc.handshake import VERSION, Hello, Refused
from lcpd.ipc.launch import launch

log = logging.getLogger(__name__)


SLEEP = "sleep"
"""The cause of `on_down` that is no death."""


class State(StrEnum):
    """See the module's table."""

    STOPPED = "stopped"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DEGRADED = "degraded"
    RESTARTING = "restarting"
    FAILED = "failed"
    SLEEPING = "sleeping"


@dataclass(frozen=True)
class WorkerSettings:
    """How to run the worker.  Times in seconds."""

    load: p.Load
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the daemon's own."""
    start_timeout: float = 30.0
    load_timeout: float = 900.0
    heartbeat_timeout: float = 60.0
    stop_timeout: float = 10.0
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    log_lines: int = 200
    echo_log: bool = False
    command: tuple[str, ...] = (sys.executable, "-m", "lcpd.engine.worker")
    descriptors: tuple[int, ...] = ()
    """Handed over to every worker: the arena's, where there is one."""


class Listener(Protocol):
    """Who is told what happens; called from the supervisor's task, must not block."""

    def on_up(self, info: p.ModelInfo) -> None:
        """The worker is ready; its sequences are empty."""

    def on_message(self, message: p.FromWorker) -> None:
        """A message of a running request."""

    def on_down(self, reason: str, cause: str) -> None:
        """The worker is gone with all its sequences; `cause` is one word for metrics."""

    def on_failed(self, reason: str) -> None:
        """The worker will not come back."""


class Listeners:
    """Several listeners as one; they are told in this order."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def on_up(self, info: p.ModelInfo) -> None:
        """See `Listener`."""
        for listener in self._listeners:
            listener.on_up(info)

    def on_message(self, message: p.FromWorker) -> None:
        """See `Listener`."""
        for listener in self._listeners:
            listener.on_message(message)

    def on_down(self, reason: str, cause: str) -> None:
        """See `Listener`."""
        for listener in self._listeners:
            listener.on_down(reason, cause)

    def on_failed(self, reason: str) -> None:
        """See `Listener`."""
        for listener in self._listeners:
            listener.on_failed(reason)


class NotReadyError(RuntimeError):
    """There is no worker to send to."""


class WorkerDied(RuntimeError):
    """The worker is gone; `cause` is one word.

    killed: by SIGKILL of somebody else; memory: for want of it; hang: the decode loop stood still; else of itself:
    start: before its greeting, load: while it loaded the model, crash: later.
    """

    def __init__(self, reason: str, cause: str) -> None:
        super().__init__(reason)
        self.cause = cause


class LoadRefused(RuntimeError):
    """The worker is well but cannot load this model; trying again would not help."""


class Supervisor:
    """Owns the worker process and its state."""

    def __init__(self, settings: WorkerSettings, listener: Listener) -> None:
        self._settings = settings
        self._listener = listener
        self._channel: DaemonChannel[Any] | None = None
        self._child: Child | None = None
        self._task: asyncio.Task[None] | None = None
        self._deaths: list[Death] = []
        self._load_message = settings.load
        self._computed = False
        """Whether this life of the worker has computed something."""
        self._kills = [0]
        """Processes that the kernel had killed for want of memory when that was looked at the last two times: a death
        that comes together with another such kill was one, and one of long ago says nothing."""
        self.state = State.STOPPED
        self.progress = 0.0
        """Of loading, 0 to 1."""
        self.load_seconds = 0.0
        """What loading took the last time; 0 before the first."""
        self.batches = 0
        """Decoded by the worker, as its last beat said."""
        self.reason = ""
        """Why it is restarting or failed, with the end of the worker's log."""
        self.shrunk = ""
        """How the context differs from what was asked for, and why; "": it does not."""
        self.restarts = 0
        self.info: p.ModelInfo | None = None
        """Of the model that is loaded, or was before the last crash."""

    @property
    def pid(self) -> int | None:
        """The worker's process id while one runs."""
        return self._child.process.pid if self._child else None

    def start(self) -> None:
        """Begin supervising; returns at once."""
        self._task = asyncio.create_task(self.run())

    async def stop(self) -> None:
        """End the worker (SIGTERM, then SIGKILL after `stop_timeout`) and supervising."""
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self.state = State.STOPPED

    async def sleep(self) -> None:
        """End the worker until `wake`; for when it runs nothing."""
        await self.stop()
        # Not before: until it is gone the worker may still write to the arena.
        self._listener.on_down("the engine is put to sleep", SLEEP)
        self.state = State.SLEEPING

    def wake(self) -> None:
        """Start the worker again after `sleep`; otherwise nothing."""
        if self.state is State.SLEEPING:
            self.state = State.STARTING
            self.start()

    def send(self, message: p.ToWorker) -> None:
        """Queue a command; raises NotReadyError unless the state is ready or degraded."""
        if self._channel is None or self.state not in (State.READY, State.DEGRADED):
            raise NotReadyError(f"the engine is {self.state}")
        with suppress(ChannelClosed):  # the reader is about to notice
            self._channel.send(message)

    async def run(self) -> None:
        """Start the worker again and again until it is stopped, a crash loop is found or the model is refused."""
        try:
            await self._live_again_and_again()
        except Exception as error:
            # A mistake of ours, in a listener for instance; without this the state would go on saying ready.
            log.exception("the supervisor failed")
            self._give_up(f"internal error: {error!r}")

    async def _live_again_and_again(self) -> None:
        while True:
            try:
                await self._live()
            except LoadRefused as error:
                self._give_up(str(error))
                return
            except WorkerDied as error:
                now = time.monotonic()
                if self._computed:
                    self._deaths.clear()
                self._deaths.append(Death(now, self._computed, error.cause == "killed"))
                self.reason = str(error)
                delay = self._settings.restart.delay(self._deaths, now)
                if error.cause == "memory" and self._shrink():
                    delay = self._settings.restart.backoff  # that is an answer to it, so it is worth a try
                self.state = State.RESTARTING
                self._listener.on_down(self.reason, error.cause)
                if delay is None:
                    count, window = self._settings.restart.crash_limit, self._settings.restart.crash_window
                    self._give_up(f"crash loop: {count} crashes within {window:g} s; the last: {self.reason}")
                    return
                log.error("the worker died, next start in %.1f s: %s", delay, self.reason)
                self.restarts += 1
                await asyncio.sleep(delay)

    def _shrink(self) -> bool:
        """Ask for less memory from now on; False where that cannot be."""
        before = self._load_message.context
        context = memory.smaller(before, self.info.n_ctx if self.info else None)
        if context is None:
            return False
        self._load_message = msgspec.structs.replace(self._load_message, context=context)
        self.info = None
        self.shrunk = (
            f"the engine ran out of memory: it runs with a context of {context.n_ctx} tokens and batches of"
            f" {context.n_batch} (ubatch {context.n_ubatch}) until the daemon is restarted"
        )
        log.error("%s; the prompt cache is kept", self.shrunk)
        return True

    def _give_up(self, reason: str) -> None:
        self.state = State.FAILED
        self.reason = reason
        log.error("the engine has failed: %s", reason)
        self._listener.on_failed(reason)

    async def _live(self) -> None:
        """One life of a worker; raises WorkerDied or LoadRefused when it is over."""
        s = self._settings
        self.state = State.STARTING
        self.progress = 0.0
        self._computed = False
        self._kills = [memory.kills()]
        try:
            child, channel = await launch(
                list(s.command),
                {**os.environ, **s.environment},
                s.log_lines,
                p.FromWorker | Hello | Refused,
                s.echo_log,
                s.descriptors,
            )
        except OSError as error:
            raise WorkerDied(f"the worker cannot be started: {error}", "start") from error
        self._child, self._channel = child, channel
        cause = "crash"
        try:
            cause = "start"
            await self._greet(channel)
            cause = "load"
            info = await self._load(channel)
            cause = "crash"
            self.info = info
            self.state = State.READY
            self._listener.on_up(info)
            await self._watch(channel, child)
        except (ChannelClosed, FrameError, msgspec.DecodeError, WorkerDied) as error:
            channel.close()
            if isinstance(error, ChannelClosed):
                status = await child.reap()
                reason = f"the worker {describe_exit(status)}"
                if status == -signal.SIGKILL and not child.killed:
                    lacked = memory.kills() > self._kills[0]
                    reason += " for want of memory" if lacked else ""
                    cause = "memory" if lacked else "killed"
                elif memory.speaks_of_memory("\n".join(list(child.log)[-20:])):
                    cause = "memory"
            else:
                await child.kill()
                reason = str(error)
                if isinstance(error, WorkerDied):
                    cause = error.cause
                else:
                    reason = f"the worker spoke nonsense: {error}"
            raise WorkerDied(_with_log(reason, child), cause) from error
        finally:
            self._child = self._channel = None
            channel.close()
            if child.process.returncode is None:
                # Closing the channel tells an idle worker to exit; SIGTERM tells one that is computing.
                await child.stop(s.stop_timeout)

    async def _greet(self, channel: DaemonChannel[Any]) -> None:
        try:
            async with asyncio.timeout(self._settings.start_timeout):
                channel.send(Hello(VERSION, "engine"))
                hello = await channel.receive()
        except TimeoutError as error:
            seconds = self._settings.start_timeout
            raise WorkerDied(f"no hello within {seconds:g} s (engine.start_timeout)", "start") from error
        if isinstance(hello, Refused):
            raise LoadRefused(hello.reason)
        if not isinstance(hello, Hello):
            raise WorkerDied(f"expected a hello, got {type(hello).__name__}", "start")

    async def _load(self, channel: DaemonChannel[Any]) -> p.ModelInfo:
        self.state = State.LOADING
        channel.send(self._load_message)
        try:
            async with asyncio.timeout(self._settings.load_timeout):
                while True:
                    match await channel.receive():
                        case p.LoadProgress(fraction=fraction):
                            self.progress = fraction
                        case p.Loaded() as loaded:
                            devices = ", ".join(f"{n} layers on {d}" for d, n in loaded.info.devices.items())
                            self.load_seconds = loaded.seconds
                            log.info("loaded %s in %.1f s: %s", loaded.info.description, loaded.seconds, devices)
                            return loaded.info
                        case p.LoadFailed(reason=reason):
                            if memory.context_lacked(reason) and memory.smaller(self._load_message.context, None):
                                raise WorkerDied(reason, "memory")
                            raise LoadRefused(reason)
                        case other:
                            raise WorkerDied(f"{type(other).__name__} while loading", "load")
        except TimeoutError as error:
            seconds = self._settings.load_timeout
            raise WorkerDied(f"not loaded within {seconds:g} s (engine.load_timeout)", "load") from error

    async def _watch(self, channel: DaemonChannel[Any], child: Child) -> None:
        """Pass messages on while the worker is well; raises WorkerDied when it hangs, ChannelClosed when it dies."""
        watchdog = Watchdog(self._settings.heartbeat_timeout, time.monotonic())
        check = asyncio.create_task(self._check(watchdog, child))
        try:
            while True:
                message = await channel.receive()
                if isinstance(message, p.Beat):
                    watchdog.hear(message, time.monotonic())
                    self.batches = message.batches
                else:
                    self._computed = self._computed or isinstance(message, p.Prefilled | p.Step | p.Embedded)
                    self._tell(message)
        except ChannelClosed as error:
            if check.done() and not check.cancelled():
                raise WorkerDied(check.result(), "hang") from error
            raise
        finally:
            check.cancel()

    def _tell(self, message: p.FromWorker) -> None:
        try:
            self._listener.on_message(message)
        except Exception as error:
            # A mistake of ours: what is believed of this worker may be wrong from now on, of a new one all is known.
            log.exception("a message of the worker could not be dealt with")
            raise WorkerDied(f"internal error: {error!r}", "internal") from error

    async def _check(self, watchdog: Watchdog, child: Child) -> str:
        """Kill the worker when it hangs; returns why.  Keeps the state between ready and degraded up to date."""
        while True:
            await asyncio.sleep(self._settings.heartbeat_timeout / 8)
            now = time.monotonic()
            self._kills = [self._kills[-1], memory.kills()]
            if verdict := watchdog.verdict(now):
                child.signal(signal.SIGKILL)
                return verdict
            self.state = State.DEGRADED if watchdog.late(now) else State.READY


def _with_log(reason: str, child: Child) -> str:
    tail = [line for line in list(child.log)[-20:] if line.strip()]
    return reason + ("\n" + "\n".join(tail) if tail else "")
