"""The daemon: puts its parts together, runs them, and takes them down in order."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from lcpd import __version__, logs
from lcpd.anticipation.driver import Anticipator
from lcpd.api.app import create_app
from lcpd.api.context import Context
from lcpd.api.guard import read_keys
from lcpd.build import Build, require_active
from lcpd.cache.arena import Arena, ArenaError
from lcpd.cache.cache import PromptCache
from lcpd.cache.fingerprint import fingerprint, read_model
from lcpd.carry_over import NAME, CarryOver, FirstWord, open_arena
from lcpd.chat.client import ChatClient, ChatSettings, ChatUnavailable
from lcpd.config import ConfigError, Settings
from lcpd.engine import protocol as p
from lcpd.engine.policy import RestartPolicy
from lcpd.engine.supervisor import Supervisor, WorkerSettings
from lcpd.engine.threads import free_cores
from lcpd.fdstore import ServiceManager, feed_watchdog, report
from lcpd.metrics import Metrics
from lcpd.models import resolve
from lcpd.paths import dirs
from lcpd.scheduler.dispatcher import Dispatcher
from lcpd.scheduler.policy import Policy

log = logging.getLogger("lcpd")
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
    api_keys: frozenset[str]
    admin_keys: frozenset[str]


def run(settings: Settings) -> int:
    """Run until SIGINT or SIGTERM; returns the exit status.

    Raises BuildMissing, ModelMissing, BadReference or ConfigError before anything is started.
    """
    logs.set_up(settings.log.level, settings.log.format)
    manager = ServiceManager.from_environment(os.environ)
    plan = make_plan(settings)
    return asyncio.run(_serve(plan, manager))


def make_plan(settings: Settings) -> Plan:
    """Find the build, the model and the files that the settings name."""
    model = resolve(settings.model.ref, dirs())
    is_file = settings.model.ref.endswith(".gguf")
    template = settings.model.chat_template_file
    keys, admin_keys = settings.server.api_key_file, settings.server.admin_key_file
    return Plan(
        settings=settings,
        build=require_active(),
        model=model,
        model_id=settings.model.alias or (model.stem if is_file else settings.model.ref),
        template=_read("model.chat_template_file", template) if template else None,
        api_keys=_read_keys("server.api_key_file", keys) if keys else frozenset(),
        admin_keys=_read_keys("server.admin_key_file", admin_keys) if admin_keys else frozenset(),
    )


def _read(setting: str, path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{setting}: {path} cannot be read: {error}"]) from error


def _read_keys(setting: str, path: Path) -> frozenset[str]:
    keys = read_keys(_read(setting, path))
    if not keys:
        # No API key at all would mean that none is asked for.
        raise ConfigError([f"{setting}: {path} holds no key; write one a line"])
    return keys


async def _serve(plan: Plan, manager: ServiceManager) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    server = plan.settings.server
    async with AsyncExitStack() as stack:
        context = await start_parts(plan, stack, manager)
        runner = web.AppRunner(
            create_app(context),
            access_log=None,
            # A request whose client is gone is cancelled, which stops its computing.
            handler_cancellation=True,
            shutdown_timeout=server.drain_timeout,
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, server.host, server.port)
        try:
            await site.start()
        except OSError as error:
            where = f"server.host, server.port: {server.host}:{server.port}"
            raise ConfigError([f"{where} cannot be listened on: {error}"]) from error
        log.info("lcpd %s serves %s on %s", __version__, plan.model_id, _address(runner))
        loading, supervisor = context.dispatcher.model_info, context.supervisor
        reporting = asyncio.create_task(report(manager, plan.model_id, loading, lambda: supervisor.progress))
        feeding = asyncio.create_task(feed_watchdog(manager))
        await stop.wait()
        reporting.cancel()
        manager.notify("STOPPING=1", "STATUS=stopping")
        log.info("stopping: %d requests may finish within %g s", context.dispatcher.running, server.drain_timeout)
    feeding.cancel()
    return 0


async def start_parts(plan: Plan, stack: AsyncExitStack, manager: ServiceManager | None = None) -> Context:
    """Start the engine and the chat process; `stack` stops them.  The engine loads in the background.

    With a service manager the arena that it kept is used again, and it is asked to keep the arena for the next daemon.
    """
    settings = plan.settings
    manager = manager or ServiceManager()
    metrics = Metrics()
    arena, adopted = _make_arena(settings.cache.ram, manager)
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
    )
    carry_over = _make_carry_over(plan, arena, cache, adopted)
    listener = FirstWord(dispatcher, carry_over.on_model) if carry_over else dispatcher
    supervisor = Supervisor(worker_settings(plan, arena), listener)
    chat = ChatClient(
        ChatSettings(
            model=plan.model,
            template=plan.template,
            lib_dir=plan.build.lib_dir,
            memory_limit=settings.chat.memory_limit,
            call_timeout=settings.chat.call_timeout,
        ),
        on_restart=lambda _: metrics.chat_restarts.inc(),
    )
    stack.push_async_callback(supervisor.stop)
    stack.push_async_callback(chat.stop)
    if carry_over:
        carry_over.start(dispatcher)
        stack.push_async_callback(carry_over.finish, dispatcher)
        manager.store(NAME, arena.fd)
    anticipator = Anticipator(chat, dispatcher) if settings.cache.anticipate else None
    if anticipator:
        stack.push_async_callback(anticipator.stop)
    supervisor.start()
    try:
        await chat.start()
    except ChatUnavailable as error:
        # The first request that needs it tries again; /health says so meanwhile.
        log.error("%s", error)
    return Context(
        settings=settings,
        supervisor=supervisor,
        dispatcher=dispatcher,
        cache=cache,
        chat=chat,
        metrics=metrics,
        model_id=plan.model_id,
        model_names=frozenset({plan.model_id, settings.model.ref}),
        created=int(time.time()),
        anticipator=anticipator,
        api_keys=plan.api_keys,
        admin_keys=plan.admin_keys,
    )


def _make_arena(size: int, manager: ServiceManager) -> tuple[Arena, bool]:
    try:
        return open_arena(manager, size)
    except ArenaError as error:
        raise ConfigError([f"cache.ram: {error}"]) from error


def _make_carry_over(plan: Plan, arena: Arena, cache: PromptCache, adopted: bool) -> CarryOver | None:
    """None where nobody would keep the arena."""
    if arena.mapped == arena.size:
        return None
    file = read_model(plan.model)
    return CarryOver(arena, cache, lambda info: fingerprint(file, plan.build, plan.settings.model, info), adopted)


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
    )


def worker_settings(plan: Plan, arena: Arena) -> WorkerSettings:
    """How this plan's worker is started and watched."""
    model, engine = plan.settings.model, plan.settings.engine
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


def _address(runner: web.AppRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
