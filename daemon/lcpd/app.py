"""The daemon: puts its parts together, runs them, and takes them down in order."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from lcpd import __version__, logs
from lcpd.anticipation.driver import Anticipator
from lcpd.anticipation.prewarm import Prewarmer
from lcpd.api.app import create_app
from lcpd.api.context import Context
from lcpd.api.drain import Drain
from lcpd.api.guard import is_loopback
from lcpd.api.metrics_port import metrics_app
from lcpd.api.patience import Patience
from lcpd.build import Build, require_active
from lcpd.build.use import hold
from lcpd.cache.arena import Arena, ArenaError
from lcpd.cache.cache import PromptCache
from lcpd.cache.figures import Limits
from lcpd.cache.fingerprint import Fingerprint, fingerprint, read_model
from lcpd.cache.isolation import Isolation
from lcpd.cache.store import DiskStore
from lcpd.cache.tier import ANSWER_WITHIN, DiskTier
from lcpd.carry_over import NAME, STOP_WITHIN, CarryOver, FirstWord, open_arena, save_slots
from lcpd.chat.client import ChatClient, ChatSettings, ChatUnavailable
from lcpd.config import ConfigError, Settings
from lcpd.config.settings import ModelSettings
from lcpd.deadline import Deadline
from lcpd.engine import protocol as p
from lcpd.engine.policy import RestartPolicy
from lcpd.engine.supervisor import Listeners, Supervisor, WorkerSettings
from lcpd.engine.threads import free_cores
from lcpd.fdstore import BadSocket, ServiceManager, feed_watchdog, report
from lcpd.key_sources import KeySources
from lcpd.keys import Keyring
from lcpd.metrics import Metrics
from lcpd.metrics.live import Live
from lcpd.models import resolve
from lcpd.paths import dirs
from lcpd.planning.at_load import DoesNotFit, plan_load
from lcpd.planning.loaded import LoadedMemory
from lcpd.planning.plan import MemoryPlan
from lcpd.room import SPARE, available
from lcpd.scheduler.dispatcher import Dispatcher
from lcpd.scheduler.embeddings import Embeddings
from lcpd.scheduler.policy import Policy
from lcpd.scheduler.request import Request
from lcpd.sleep import Sleeper
from lcpd.tracing import exporting
from lcpd.watchdog import Facts, Lookout, limits

log = logging.getLogger("lcpd")
_LINGER = 10.0
"""Seconds."""
_CANCEL_WITHIN = 1.0
"""Seconds that requests which `server.drain_timeout` was too short for get to end when they are cancelled."""
FLUSH_WITHIN = 20.0
"""Seconds that a planned stop may take to write to disk what is not there yet."""
_DEFAULT_CTX_CAP = 32768
"""Tokens; the context when none is configured: a model's full length could need more memory than there is."""


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before the first process starts."""

    settings: Settings
    build: Build
    model: Path
    model_id: str
    template: str | None
    key_sources: KeySources
    keys: Keyring
    """Of these sources, brought up to date on SIGHUP."""
    memory: MemoryPlan | None
    """What the model is going to take; None where its header says too little."""


def run(settings: Settings) -> int:
    """Run until SIGINT or SIGTERM; returns the exit status.  SIGHUP has the keys read again.

    Raises BuildMissing, ModelMissing, BadReference or ConfigError before anything is started.
    """
    logs.set_up(settings.log.level, settings.log.format)
    # The watchdog of a service manager ends a daemon that is stuck with SIGABRT: the log is to show where that was.
    faulthandler.enable()
    manager = ServiceManager.from_environment(os.environ)
    plan = make_plan(settings)
    try:
        in_use = hold(plan.build)
    except OSError as error:
        # A file system without locks: there, only `lcpd build --force` by hand removes what runs.
        log.info("that the build %s is in use cannot be noted: %s", plan.build.key, error)
        in_use = -1
    deadline = Deadline()
    try:
        return asyncio.run(_serve(plan, manager, deadline))
    finally:
        deadline.cancel()
        if in_use >= 0:
            os.close(in_use)


def make_plan(settings: Settings, environment: MutableMapping[str, str] = os.environ) -> Plan:
    """Find the build, the model and the files that the settings name, and choose what is automatic in them.

    Keys are taken out of `environment`, which the child processes inherit.
    """
    model = resolve(settings.model.ref, dirs())
    sources = KeySources(settings, environment)
    is_file = settings.model.ref.endswith(".gguf")
    template = settings.model.chat_template_file
    build = require_active()
    try:
        at_load = plan_load(settings, model, build)
    except DoesNotFit as error:
        raise ConfigError(str(error).splitlines()) from error
    return Plan(
        settings=at_load.settings,
        build=build,
        model=model,
        model_id=settings.model.alias or (model.stem if is_file else settings.model.ref),
        template=_read("model.chat_template_file", template) if template else None,
        key_sources=sources,
        keys=sources.read(),
        memory=at_load.plan,
    )


def _read(setting: str, path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{setting}: {path} cannot be read: {error}"]) from error


async def _serve(plan: Plan, manager: ServiceManager, deadline: Deadline) -> int:
    """Returns the exit status: 1 when a service manager waits for a model that cannot be loaded."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    at_terminal = os.isatty(0)

    def hang_up() -> None:
        if at_terminal and not os.isatty(0):
            stop.set()  # the terminal is gone
        else:
            plan.key_sources.read_again(plan.keys)

    loop.add_signal_handler(signal.SIGHUP, hang_up)
    server = plan.settings.server
    passed = _passed_sockets(manager)
    _refuse_strangers(plan, [sock.getsockname() for sock in passed] or [(server.host, server.port)])
    async with AsyncExitStack() as stack:
        context = await start_parts(plan, stack, manager)
        app = create_app(context)
        drain = Drain(app)
        patience = Patience(app, server.client_timeout)
        runner = web.AppRunner(
            app,
            access_log=None,
            # A request whose client is gone is cancelled, which stops its computing.
            handler_cancellation=True,
            shutdown_timeout=_CANCEL_WITHIN,
            # Who goes on sending after the answer is listened to no longer than this.
            lingering_time=min(server.client_timeout, _LINGER),
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await _listen(runner, passed, server.host, server.port)
        await _serve_metrics(context, stack)
        log.info("lcpd %s serves %s on %s", __version__, plan.model_id, _addresses(runner))
        dispatcher, supervisor = context.dispatcher, context.supervisor
        lookout = Lookout(lambda: _facts(context), limits(plan.settings.engine))
        reporting = asyncio.create_task(
            report(manager, plan.model_id, dispatcher.model_info, lambda: supervisor.progress)
        )
        reporting.add_done_callback(lambda task: None if task.cancelled() or task.result() else stop.set())
        feeding = asyncio.create_task(feed_watchdog(manager, lookout))
        watching = asyncio.create_task(patience.watch(runner))
        await stop.wait()
        failed = reporting.done() and not reporting.result()
        reporting.cancel()
        # The settings may allow more time for this than the unit does.
        longest = stop_within(plan.settings)
        deadline.begin(longest)
        extension = f"EXTEND_TIMEOUT_USEC={int(longest * 1e6)}"
        manager.notify("STOPPING=1", extension, *([] if failed else ["STATUS=stopping"]))
        log.info("stopping: %d requests may finish within %g s", dispatcher.running, server.drain_timeout)
        # Where the socket was passed, who connects from now on waits for the next daemon.
        await drain.finish(runner, passed, server.drain_timeout)
    feeding.cancel()
    watching.cancel()
    return int(failed)


def _facts(context: Context) -> Facts:
    dispatcher, supervisor = context.dispatcher, context.supervisor
    work = bool(dispatcher.running or dispatcher.waiting)
    return Facts(work, supervisor.state, supervisor.progress, supervisor.batches)


def _passed_sockets(manager: ServiceManager) -> list[socket.socket]:
    try:
        return manager.take_sockets()
    except BadSocket as error:
        raise ConfigError([str(error)]) from error


def _refuse_strangers(plan: Plan, addresses: Sequence[Any]) -> None:
    """Raises ConfigError where other machines would be answered without a key and nobody has said that they may be."""
    if plan.keys.asked_for or plan.settings.server.insecure:
        return
    # An address that is a text is that of a Unix socket, which has owners and a mode.
    reached = [address[0] for address in addresses if not isinstance(address, str) and not is_loopback(address[0])]
    if reached:
        raise ConfigError(
            [
                f"server.host: other machines may reach {reached[0]}, and no API key is asked for: set"
                " server.api_key_file (`lcpd key new` makes keys), or server.insecure (--insecure) if everybody may use"
                " this server"
            ]
        )


async def _listen(runner: web.AppRunner, passed: list[socket.socket], host: str, port: int) -> None:
    """Serve on the sockets that were passed, or else on one of our own.  Raises ConfigError."""
    for sock in passed:
        await web.SockSite(runner, sock, backlog=socket.SOMAXCONN).start()
    if passed:
        return
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        where = f"server.host, server.port: {host}:{port}"
        raise ConfigError([f"{where} cannot be listened on: {error}"]) from error


async def _serve_metrics(context: Context, stack: AsyncExitStack) -> None:
    """Answer scrapers on `metrics.port`, if there is to be one; `stack` stops it.  Raises ConfigError."""
    host, port = context.settings.metrics.host, context.settings.metrics.port
    if not port:
        return
    runner = web.AppRunner(metrics_app(context), access_log=None)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        raise ConfigError([f"metrics.host, metrics.port: {host}:{port} cannot be listened on: {error}"]) from error


async def start_parts(plan: Plan, stack: AsyncExitStack, manager: ServiceManager | None = None) -> Context:
    """Start the engine and the chat process; `stack` stops them.  The engine loads in the background.

    With a service manager the arena that it kept is used again, and it is asked to keep the arena for the next daemon.
    """
    settings = plan.settings
    manager = manager or ServiceManager()
    metrics = Metrics()
    arena, adopted = _make_arena(plan, manager)
    stack.callback(arena.close)
    manager.close_rest()
    cache = PromptCache(arena)
    supervisor: Supervisor
    dispatcher = Dispatcher(
        model=plan.model_id,
        slots=settings.model.slots,
        policy=policy_of(settings),
        cache=cache,
        send=lambda message: supervisor.send(message),
        metrics=metrics,
        on_over=_trace(plan, stack),
    )
    isolation = _make_isolation(plan)
    stamp = _fingerprinter(plan, isolation)
    # Without a front there is nobody who would keep the arena.
    carry_over = CarryOver(arena, cache, stamp, adopted) if arena.mapped > arena.size else None
    disk = _make_disk(settings, cache, metrics, busy=lambda: dispatcher.running > 0)

    loaded_memory = LoadedMemory(plan.memory, metrics)

    def on_model(info: p.ModelInfo) -> None:
        loaded_memory.on_model(info)
        if carry_over:
            carry_over.on_model(info)
        if disk:
            disk.start(stamp(info), rolls_back=info.rolls_back, needs_segments=info.needs_segments)
        if prewarmer:
            prewarmer.begin(info)

    if disk:
        dispatcher.use_disk(disk)
    wanted = settings.cache.prewarm if settings.cache.ram else 0
    prewarmer = Prewarmer(dispatcher, cache, disk, metrics, wanted) if wanted else None
    embeddings = make_embeddings(
        plan.model_id, settings, lambda message: supervisor.send(message), dispatcher, metrics
    )
    listener = FirstWord(Listeners(dispatcher, embeddings), on_model)
    supervisor = Supervisor(worker_settings(plan, arena), listener)
    chat = ChatClient(
        ChatSettings(
            model=plan.model,
            template=plan.template,
            lib_dir=plan.build.lib_dir,
            memory_limit=settings.chat.memory_limit,
            call_timeout=settings.chat.call_timeout,
        ),
        on_restart=lambda _: metrics.engine.chat_restarts.inc(),
    )
    stack.push_async_callback(supervisor.stop)
    stack.push_async_callback(chat.stop)
    if disk:
        stack.push_async_callback(disk.finish, FLUSH_WITHIN)
    if disk and not carry_over:
        stack.push_async_callback(save_slots, dispatcher)
    if carry_over:
        carry_over.start(dispatcher)
        stack.push_async_callback(carry_over.finish, dispatcher)
        manager.store(NAME, arena.fd)
    anticipator = Anticipator(chat, dispatcher) if settings.cache.anticipate else None
    if anticipator:
        stack.push_async_callback(anticipator.stop)
    if prewarmer:
        stack.push_async_callback(prewarmer.stop)
    sleeper = Sleeper(supervisor, dispatcher, settings.engine.sleep_after)
    stack.push_async_callback(sleeper.stop)
    supervisor.start()
    sleeper.start()
    try:
        await chat.start()
    except ChatUnavailable as error:
        # The first request that needs it tries again; /health says so meanwhile.
        log.error("%s", error)
    return Context(
        settings=settings,
        supervisor=supervisor,
        dispatcher=dispatcher,
        embeddings=embeddings,
        cache=cache,
        disk=disk,
        isolation=isolation,
        chat=chat,
        metrics=metrics,
        memory=loaded_memory,
        live=Live(metrics, settings, plan.model_id, supervisor, chat),
        sleeper=sleeper,
        model_id=plan.model_id,
        model_names=frozenset({plan.model_id, settings.model.ref}),
        created=int(time.time()),
        anticipator=anticipator,
        keys=plan.keys,
    )


def _trace(plan: Plan, stack: AsyncExitStack) -> Callable[[Request, str], None]:
    """Who is told of requests that are over, for traces.  Raises ConfigError."""
    if not plan.settings.metrics.traces:
        return lambda request, outcome: None
    tracer = exporting(plan.model_id, plan.settings.metrics.traces)
    stack.push_async_callback(asyncio.to_thread, tracer.stop)
    return tracer.over


def _make_arena(plan: Plan, manager: ServiceManager) -> tuple[Arena, bool]:
    on_cpu = plan.build.backend == "cpu" or plan.settings.model.gpu_layers == 0
    room = available() - SPARE - (plan.model.stat().st_size if on_cpu else 0)
    try:
        return open_arena(manager, plan.settings.cache.ram, room)
    except ArenaError as error:
        raise ConfigError([f"cache.ram: {error}"]) from error


def _make_isolation(plan: Plan) -> Isolation | None:
    """None where all may use what any of them has computed."""
    if plan.settings.cache.isolate == "off":
        return None
    if not plan.keys.asked_for:
        raise ConfigError(["cache.isolate: there are no keys to keep apart; set server.api_key_file"])
    try:
        return Isolation([key.digest for key in plan.keys.keys])
    except ValueError as error:
        raise ConfigError([f"cache.isolate: {error}"]) from error


def _fingerprinter(plan: Plan, isolation: Isolation | None) -> Callable[[p.ModelInfo], Fingerprint]:
    """What tells whether state bytes are interchangeable, once the model is loaded."""
    settings = plan.settings
    if not settings.cache.ram:
        return lambda _: {}
    file = read_model(plan.model)
    keys = {"isolation": f"keys {isolation.field}"} if isolation else {}
    return lambda info: {**fingerprint(file, plan.build, settings.model, info), **keys}


def _make_disk(settings: Settings, cache: PromptCache, metrics: Metrics, busy: Callable[[], bool]) -> DiskTier | None:
    """None where nothing is to be written to disk."""
    wanted = settings.cache
    if not wanted.disk:
        return None
    if not wanted.ram:
        log.warning("nothing is written to disk (cache.disk): that needs a prompt cache in RAM (cache.ram)")
        return None
    limits = Limits(
        size=wanted.disk,
        floor=wanted.disk_floor,
        budget=wanted.write_budget,
        ttl=wanted.ttl * 86400,
        interval=wanted.checkpoint_interval,
    )
    disk = DiskTier(DiskStore(wanted.dir or dirs().cache / "prompts"), cache, limits, busy)
    metrics.at_scrape(lambda: metrics.show_disk(disk.stats()))
    return disk


def stop_within(settings: Settings) -> float:
    """Seconds that a planned stop takes at most: one step after the other, and some on top."""
    saving = STOP_WITHIN + FLUSH_WITHIN + ANSWER_WITHIN
    return settings.server.drain_timeout + _CANCEL_WITHIN + saving + 2 * settings.engine.stop_timeout + 10


def policy_of(settings: Settings) -> Policy:
    """How requests are queued and placed."""
    scheduler = settings.scheduler
    return Policy(
        queue_size=settings.server.queue_size,
        queue_timeout=scheduler.queue_timeout,
        ageing=scheduler.ageing,
        follow_timeout=scheduler.follow_timeout,
        follow_min=scheduler.follow_min,
        checkpoints=settings.model.checkpoints,
        checkpoint_interval=settings.cache.checkpoint_interval,
        save_after=settings.cache.save_after,
        save_every=settings.cache.save_every,
        retry_grace=scheduler.retry_grace,
    )


def make_embeddings(
    model: str, settings: Settings, send: Callable[[p.ToWorker], None], dispatcher: Dispatcher, metrics: Metrics
) -> Embeddings:
    """What brings texts to the engine beside the dispatcher's requests."""
    return Embeddings(
        model,
        send,
        metrics,
        queue_size=settings.server.queue_size,
        timeout=settings.scheduler.queue_timeout,
        calm=lambda: not dispatcher.suspects,
        on_work=dispatcher.touch,
    )


def embedding_settings(model: ModelSettings) -> p.EmbeddingSettings | None:
    """As the worker wants them; None where nothing is to be embedded."""
    if model.embeddings == "off":
        return None
    return p.EmbeddingSettings(pooling=model.embeddings, n_ctx=model.embeddings_ctx)


def worker_settings(plan: Plan, arena: Arena) -> WorkerSettings:
    """How this plan's worker is started and watched."""
    model, engine = plan.settings.model, plan.settings.engine
    assert model.ctx != "auto" and model.kv != "auto", "make_plan has chosen them"
    return WorkerSettings(
        load=p.Load(
            model=plan.model_id,
            path=str(plan.model),
            context=p.ContextSettings(
                n_ctx=model.ctx,
                n_ctx_cap=_DEFAULT_CTX_CAP,
                slots=model.slots,
                n_batch=model.batch,
                n_ubatch=model.ubatch,
                threads=model.threads or free_cores(),
                kv_type=model.kv,
                flash_attn=model.flash_attn,
                gpu_layers=-1 if model.gpu_layers == "auto" else model.gpu_layers,
                tensor_split=list(model.tensor_split),
                main_gpu=model.main_gpu,
                mmap=model.mmap,
                mlock=model.mlock,
                emit_interval=engine.emit_interval,
                max_stall=plan.settings.scheduler.max_stall_ms / 1000,
            ),
            arena_bytes=arena.mapped,
            embeddings=embedding_settings(model),
        ),
        environment={
            "LLAMA_CPP_LIB_PATH": str(plan.build.lib_dir),
            # Otherwise an abort in ggml starts a debugger on the process before it ends.
            "GGML_NO_BACKTRACE": "1",
            # numpy only moves arrays here; its idle threads would be in the way of libllama's.
            "OPENBLAS_NUM_THREADS": "1",
        },
        start_timeout=engine.start_timeout,
        load_timeout=engine.load_timeout,
        heartbeat_timeout=engine.heartbeat_timeout,
        stop_timeout=engine.stop_timeout,
        restart=RestartPolicy(
            backoff=engine.restart_backoff,
            backoff_max=engine.restart_backoff_max,
            crash_limit=engine.crash_limit,
            crash_window=engine.crash_window,
        ),
        log_lines=engine.log_lines,
        echo_log=plan.settings.log.level == "debug",
        descriptors=(arena.fd,) if arena.mapped else (),
    )


def _addresses(runner: web.AppRunner) -> str:
    return ", ".join(_address(each) for each in runner.addresses)


def _address(address: Any) -> str:
    """As `socket.getsockname` gives it."""
    if isinstance(address, str):
        return f"unix:{address}"
    host, port = address[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
