"""Prometheus and what it has seen, made once for all tests of this folder."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from e2e.conftest import Daemon
from lcpd.metrics.gpu import CLOCKS, THROTTLE_REASONS, GpuFigures
from lcpd.metrics.nvml import Reading
from prometheus import scene
from prometheus.prometheus_programs import Programs, Unavailable, programs
from prometheus.prometheus_server import Prometheus


@dataclass(frozen=True)
class Seen:
    """What was scraped between two instants (Unix time)."""

    server: Prometheus
    begin: float
    end: float
    daemon: Daemon
    """The one under load."""


def hot_and_full_gpu() -> CollectorRegistry:
    """The figures of a GPU as a daemon shows them, for machines without one."""
    registry = CollectorRegistry()
    reading = Reading(
        index=0,
        name="A Board",
        driver="570.1",
        utilization=0.75,
        memory_utilization=0.5,
        memory_used=99 << 20,
        memory_total=100 << 20,
        worker_memory=90 << 20,
        power=340.0,
        power_limit=350.0,
        temperature=95.0,
        clocks=dict.fromkeys(CLOCKS, 1.2e9),
        throttled={reason: reason == "hw_thermal" for reason in THROTTLE_REASONS},
    )
    GpuFigures(registry).show([reading])
    return registry


@pytest.fixture(scope="session")
def prometheus_programs() -> Programs:
    """Skips the test where there is no Prometheus and it cannot be had."""
    try:
        return programs()
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def seen(prometheus_programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Four targets: a daemon to which everything happens, one whose disk is in use by the first, the figures of a GPU,
    and an address where nobody is.
    """
    folder = tmp_path_factory.mktemp("prometheus")
    environment = scene.settings(folder)
    with ExitStack() as stack:
        daemon = Daemon(folder / "daemon.log", **environment)
        stack.callback(daemon.stop, signal.SIGKILL)
        daemon.wait_for("ok")
        second = Daemon(folder / "second.log", **environment)
        stack.callback(second.stop, signal.SIGKILL)
        gpu, _ = start_http_server(0, "127.0.0.1", hot_and_full_gpu())
        stack.callback(gpu.shutdown)
        nobody = stack.enter_context(socket.socket())
        nobody.bind(("127.0.0.1", 0))  # not listening: refused
        ports = (daemon.port, second.port, gpu.server_port, nobody.getsockname()[1])
        server = Prometheus(folder, [f"127.0.0.1:{port}" for port in ports], scene.KEYS["prometheus"])
        stack.callback(server.stop)
        server.wait_until_ready()
        second.wait_for("ok")
        begin = time.time()
        asyncio.run(scene.everything(daemon))
        time.sleep(3)  # of scrapes and rules after the last event
        yield Seen(server, begin, time.time(), daemon)
