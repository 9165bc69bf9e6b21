"""The whole API over a fake worker and a fake chat process, on a port of its own."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from aiohttp.test_utils import TestClient, TestServer

from fakes.api import keyring, until
from fakes.chat import chat_command
from fakes.worker import load, worker_command
from lcpd.anticipation.driver import Anticipator
from lcpd.api.app import create_app
from lcpd.api.context import Context
from lcpd.app import embedding_settings, make_embeddings, policy_of
from lcpd.cache.arena import Arena
from lcpd.cache.cache import PromptCache
from lcpd.chat.client import ChatClient, ChatSettings
from lcpd.config import Settings
from lcpd.config import load as load_settings
from lcpd.engine.policy import RestartPolicy
from lcpd.engine.supervisor import Listeners, State, Supervisor, WorkerSettings
from lcpd.metrics import Metrics
from lcpd.metrics.live import Live
from lcpd.scheduler.dispatcher import Dispatcher
from lcpd.sleep import Sleeper


def settings_with(**changes: object) -> Settings:
    """Settings with ``section__key=value`` changes."""
    return load_settings(None, {}, {f"LCPD_{name.upper()}": str(value) for name, value in changes.items()}).settings


async def start_daemon(
    stack: AsyncExitStack, script: dict | None = None, wait: bool = True, **changes: object
) -> TestClient:
    """A client of a daemon whose worker follows the script, with ``section__key=value`` settings.

    It runs on this event loop until `stack` is closed.  With `wait=False` it returns before the worker is ready.
    """
    settings = settings_with(**{"model__slots": 2, "engine__crash_limit": 2, **changes})
    metrics = Metrics()
    cache = PromptCache(arena := Arena(1 << 20))
    stack.callback(arena.close)
    dispatcher = Dispatcher(
        model="fake",
        slots=settings.model.slots,
        policy=policy_of(settings),
        cache=cache,
        send=lambda message: supervisor.send(message),
        metrics=metrics,
    )
    embeddings = make_embeddings("fake", settings, lambda message: supervisor.send(message), dispatcher, metrics)
    supervisor = Supervisor(
        WorkerSettings(
            load=load(
                slots=settings.model.slots,
                n_ctx=settings.model.ctx or 4096,
                arena_bytes=arena.size,
                embeddings=embedding_settings(settings.model),
            ),
            descriptors=(arena.fd,),
            command=worker_command(**(script or {})),
            restart=RestartPolicy(backoff=0.05, crash_limit=settings.engine.crash_limit),
            stop_timeout=2,
        ),
        Listeners(dispatcher, embeddings),
    )
    chat = ChatClient(
        ChatSettings(Path("fake.gguf"), None, Path("/nowhere"), 1 << 30, 20, chat_command()),
        on_restart=lambda _: metrics.engine.chat_restarts.inc(),
    )
    anticipator = Anticipator(chat, dispatcher, patience=0) if settings.cache.anticipate else None
    sleeper = Sleeper(supervisor, dispatcher, settings.engine.sleep_after)
    context = Context(
        settings=settings,
        sleeper=sleeper,
        supervisor=supervisor,
        dispatcher=dispatcher,
        embeddings=embeddings,
        cache=cache,
        anticipator=anticipator,
        chat=chat,
        metrics=metrics,
        live=Live(metrics, settings, "fake", supervisor, chat),
        model_id="fake",
        model_names=frozenset({"fake", settings.model.alias or "alias"}),
        created=1,
        keys=keyring(),
    )
    stack.push_async_callback(supervisor.stop)
    stack.push_async_callback(chat.stop)
    if anticipator:
        stack.push_async_callback(anticipator.stop)
    stack.push_async_callback(sleeper.stop)
    supervisor.start()
    sleeper.start()
    await chat.start()
    if wait:
        await until(lambda: supervisor.state in (State.READY, State.FAILED))
    server = TestServer(create_app(context))
    client = TestClient(server)
    await server.start_server(shutdown_timeout=1)
    stack.push_async_callback(client.close)
    return client
