"""The parts of a daemon, made from its plan, connected and started."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from lcpd.anticipation.driver import Anticipator
from lcpd.anticipation.prewarm import Prewarmer
from lcpd.api.context import Context
from lcpd.assembly.children import chat_settings, worker_settings
from lcpd.assembly.plan import Plan
from lcpd.assembly.stopping import stops
from lcpd.assembly.storage import make_arena, make_disk, make_isolation, make_stamp
from lcpd.cache.cache import PromptCache
from lcpd.carry_over import NAME, CarryOver, FirstWord
from lcpd.chat.client import ChatClient, ChatUnavailable
from lcpd.config import Settings
from lcpd.engine import protocol as p
from lcpd.engine.supervisor import Listeners, Supervisor
from lcpd.fdstore import ServiceManager
from lcpd.metrics import Metrics
from lcpd.metrics.live import Live
from lcpd.planning.loaded import LoadedMemory
from lcpd.scheduler.dispatcher import Dispatcher
from lcpd.scheduler.embeddings import Embeddings
from lcpd.scheduler.policy import Policy
from lcpd.scheduler.request import Request
from lcpd.sleep import Sleeper
from lcpd.tracing import exporting

log = logging.getLogger("lcpd")


async def start_parts(plan: Plan, stack: AsyncExitStack, manager: ServiceManager | None = None) -> Context:
    """Start the engine and the chat process; `stack` stops them.  The engine loads in the background.

    With a service manager the arena that it kept is used again, and it is asked to keep the arena for the next daemon.
    Raises ConfigError.
    """
    settings = plan.settings
    manager = manager or ServiceManager()
    metrics = Metrics()

    arena, adopted = make_arena(plan, manager)
    stack.callback(arena.close)
    manager.close_rest()
    cache = PromptCache(arena)

    supervisor: Supervisor

    def send(message: p.ToWorker) -> None:
        supervisor.send(message)

    dispatcher = Dispatcher(
        model=plan.model_id,
        slots=settings.model.slots,
        policy=_policy(settings),
        cache=cache,
        send=send,
        metrics=metrics,
        on_over=_trace(plan, stack),
    )
    embeddings = Embeddings(
        plan.model_id,
        send,
        metrics,
        queue_size=settings.server.queue_size,
        timeout=settings.scheduler.queue_timeout,
        calm=lambda: not dispatcher.suspects,
        on_work=dispatcher.call,
        on_life=dispatcher.touch,
    )

    isolation = make_isolation(plan)
    stamp = make_stamp(plan, isolation)
    # Without a front there is nobody who would keep the arena.
    carry_over = CarryOver(arena, cache, stamp, adopted) if arena.mapped > arena.size else None
    disk = make_disk(settings, cache, busy=lambda: dispatcher.running > 0)
    if disk:
        dispatcher.use_disk(disk)
        metrics.at_scrape(lambda: metrics.show_disk(disk.stats()))
    wanted = settings.cache.prewarm if settings.cache.ram else 0
    prewarmer = Prewarmer(dispatcher, cache, disk, metrics, wanted) if wanted else None
    memory = LoadedMemory(plan.memory, metrics)

    def on_model(info: p.ModelInfo) -> None:
        memory.on_model(info)
        if carry_over:
            carry_over.on_model(info)
        if disk:
            disk.start(stamp(info), rolls_back=info.rolls_back, needs_segments=info.needs_segments)
        if prewarmer:
            prewarmer.begin(info)

    supervisor = Supervisor(worker_settings(plan, arena), FirstWord(Listeners(dispatcher, embeddings), on_model))
    chat = ChatClient(chat_settings(plan), on_restart=lambda _: metrics.engine.chat_restarts.inc())
    context = Context(
        settings=settings,
        supervisor=supervisor,
        dispatcher=dispatcher,
        embeddings=embeddings,
        cache=cache,
        disk=disk,
        isolation=isolation,
        chat=chat,
        metrics=metrics,
        memory=memory,
        live=Live(metrics, settings, plan.model_id, supervisor, chat),
        sleeper=Sleeper(supervisor, dispatcher, embeddings, settings.engine.sleep_after),
        model_id=plan.model_id,
        model_names=frozenset({plan.model_id, settings.model.ref}),
        created=int(time.time()),
        anticipator=Anticipator(chat, dispatcher) if settings.cache.anticipate else None,
        keys=plan.keys,
    )

    for stop in reversed([*stops(context, carry_over, prewarmer)]):
        stack.push_async_callback(stop)
    if carry_over:
        carry_over.start(dispatcher)
        manager.store(NAME, arena.fd)
    supervisor.start()
    context.sleeper.start()
    try:
        await chat.start()
    except ChatUnavailable as error:
        # The first request that needs it tries again; /health says so meanwhile.
        log.error("%s", error)
    return context


def _policy(settings: Settings) -> Policy:
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


def _trace(plan: Plan, stack: AsyncExitStack) -> Callable[[Request, str], None]:
    """Who is told of requests that are over, for traces.  Raises ConfigError."""
    if not plan.settings.metrics.traces:
        return lambda request, outcome: None
    tracer = exporting(plan.model_id, plan.settings.metrics.traces)
    stack.push_async_callback(asyncio.to_thread, tracer.stop)
    return tracer.over
