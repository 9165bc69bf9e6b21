"""The daemon, from its start to its end.

    start, in this order                              where
    --------------------                              -----
    log, build, model, keys: what can be wrong        assembly/plan.py
    sockets that were passed; who could reach them    serving.py
    arena, prompt cache, dispatcher, worker, chat     assembly/parts.py
    HTTP, on its sockets and on `metrics.port`        serving.py
    the service manager is told how it goes           fdstore.py, watchdog.py

    stop                                              where
    ----                                              -----
    SIGINT, SIGTERM; a model that cannot be loaded    here
    all of it is over within a certain time           deadline.py, `stop_within`
    running requests finish, the server goes          api/drain.py
    the parts, from the outside in                    assembly/stopping.py

The steps of a start are the lines of `run` and `_serve`, from the first to the last.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
from contextlib import AsyncExitStack

from lcpd import __version__, logs
from lcpd.api.app import create_app
from lcpd.api.context import Context
from lcpd.api.drain import Drain
from lcpd.api.patience import Patience
from lcpd.assembly.parts import start_parts
from lcpd.assembly.plan import Plan, make_plan
from lcpd.assembly.stopping import stop_within
from lcpd.build.use import hold
from lcpd.config import Settings
from lcpd.deadline import Deadline
from lcpd.fdstore import ServiceManager, feed_watchdog, report
from lcpd.serving import addresses, passed_sockets, refuse_strangers, serve, serve_metrics
from lcpd.watchdog import Facts, Lookout, limits

log = logging.getLogger("lcpd")


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


async def _serve(plan: Plan, manager: ServiceManager, deadline: Deadline) -> int:
    """Returns the exit status: 1 when a service manager waits for a model that cannot be loaded."""
    stop = asyncio.Event()
    _hear_signals(plan, stop)
    server = plan.settings.server
    passed = passed_sockets(manager)
    refuse_strangers(plan, passed)
    async with AsyncExitStack() as stack:
        context = await start_parts(plan, stack, manager)
        app = create_app(context)
        drain = Drain(app)
        patience = Patience(app, server.client_timeout)
        runner = await serve(app, server, passed, stack)
        await serve_metrics(context, stack)
        log.info("lcpd %s serves %s on %s", __version__, plan.model_id, addresses(runner))
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


def _hear_signals(plan: Plan, stop: asyncio.Event) -> None:
    """SIGINT and SIGTERM set `stop`, SIGHUP too where the terminal has gone; else it has the keys read again."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    at_terminal = os.isatty(0)

    def hang_up() -> None:
        if at_terminal and not os.isatty(0):
            stop.set()
        else:
            plan.key_sources.read_again(plan.keys)

    loop.add_signal_handler(signal.SIGHUP, hang_up)


def _facts(context: Context) -> Facts:
    dispatcher, supervisor = context.dispatcher, context.supervisor
    work = bool(dispatcher.running or dispatcher.waiting)
    return Facts(work, supervisor.state, supervisor.progress, supervisor.batches)
