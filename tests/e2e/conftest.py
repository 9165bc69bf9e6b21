"""A real daemon, started as a user would start it, for the tests in this folder."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

READY_WITHIN = 120
"""Seconds; loading takes under one, but the machine may be busy."""


class Daemon:
    """``lcpd serve`` on a free port of 127.0.0.1."""

    def __init__(self, log: Path, *flags: str, **environment: str) -> None:
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        command = [sys.executable, "-m", "lcpd", "serve", "--port", str(self.port), "--threads", "1", *flags]
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def health(self) -> dict:
        return httpx.get(f"{self.url}/health", timeout=30).json()

    def wait_for(self, status: str) -> dict:
        """Poll /health until it says `status`."""
        deadline = time.monotonic() + READY_WITHIN
        health: dict = {}
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the daemon exited with {self.process.returncode}:\n{self.log}")
            with contextlib.suppress(httpx.TransportError):
                health = self.health()
                if health["status"] == status:
                    return health
            time.sleep(0.05)
        raise AssertionError(f"not {status!r} within {READY_WITHIN} s but {health}:\n{self.log}")

    def chat(self, *turns: str, **fields: object) -> httpx.Response:
        """POST a chat whose turns are user and assistant by turns."""
        messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]
        body = {"messages": messages, "temperature": 0, "max_tokens": 24, **fields}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=120)

    def children(self) -> list[int]:
        """Pids of the daemon's child processes."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for task in tasks for pid in task.read_text().split()]

    def child(self, module: str) -> int:
        """The pid of the child that runs a module."""
        for pid in self.children():
            if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        raise AssertionError(f"no child runs {module}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the exit."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=60)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


StartDaemon = Callable[..., Daemon]


@pytest.fixture
def start_daemon(tmp_path: Path) -> Iterator[StartDaemon]:
    """Starts daemons for one test; they are ready when it returns, unless `wait` is None."""
    started: list[Daemon] = []

    def start(*flags: str, wait: str | None = "ok", **environment: str) -> Daemon:
        daemon = Daemon(tmp_path / f"daemon-{len(started)}.log", *flags, **environment)
        started.append(daemon)
        if wait:
            daemon.wait_for(wait)
        return daemon

    yield start
    for daemon in started:
        daemon.stop(signal.SIGKILL)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with the hybrid, shared by a module's tests."""
    running = Daemon(tmp_path_factory.mktemp("daemon") / "log", "--slots", "2")
    running.wait_for("ok")
    yield running
    assert running.stop() == 0, running.log
