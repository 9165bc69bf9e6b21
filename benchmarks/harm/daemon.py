"""lcpd as a process that is killed, stopped and started again, always with the same settings and port."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

HOST = "127.0.0.1"
WORKER, CHAT = "lcpd.engine.worker", "lcpd.chat.service"
_PATIENCE = 120.0
"""Seconds until what is waited for must have come."""
_POLL = 0.05


class DaemonFailed(RuntimeError):
    """The daemon is not what it should be; the text ends with the end of its log."""


class Daemon:
    """One daemon after the other.  `folder` gets the logs of all."""

    def __init__(self, folder: Path, flags: tuple[str, ...] = (), environment: Mapping[str, str] | None = None) -> None:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://{HOST}:{self.port}"
        self.starts = 0
        self.start_seconds: list[float] = []
        """From each start to ready."""
        self._folder = folder
        self._flags = flags
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the daemon that runs."""
        assert self._process, "start() first"
        return self._process.pid

    @property
    def log(self) -> str:
        """What the last daemon wrote."""
        return self._log_file(self.starts).read_text(errors="replace")

    def _log_file(self, number: int) -> Path:
        return self._folder / f"daemon-{number}.log"

    async def start(self) -> None:
        """Start one and wait until a token can be generated.  Raises DaemonFailed."""
        self.starts += 1
        kept = {name: value for name, value in os.environ.items() if name == "LCPD_HOME" or name[:5] != "LCPD_"}
        command = [sys.executable, "-m", "lcpd", "serve", "--host", HOST, "--port", str(self.port), *self._flags]
        begun = time.monotonic()
        with self._log_file(self.starts).open("wb") as log:
            self._process = subprocess.Popen(
                command, env={**kept, **self._environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        await self.ready()
        self.start_seconds.append(time.monotonic() - begun)

    async def ready(self) -> None:
        """Wait until a token can be generated.  Raises DaemonFailed when the daemon ends or takes too long."""
        deadline = time.monotonic() + _PATIENCE
        health: object = None
        async with httpx.AsyncClient(timeout=10) as client:
            while time.monotonic() < deadline:
                if self._process and self._process.poll() is not None:
                    raise DaemonFailed(f"it ended with {self._process.returncode}:\n{self.log[-4000:]}")
                with suppress(httpx.TransportError):
                    response = await client.get(f"{self.url}/health")
                    health = response.json()
                    if response.json()["status"] == "ok":
                        return
                await asyncio.sleep(_POLL)
        raise DaemonFailed(f"it was not ready after {_PATIENCE:g} s but {health}:\n{self.log[-4000:]}")

    def child(self, module: str) -> int | None:
        """The pid of the child that runs a module; None while there is none."""
        return next((pid for pid in children(self.pid) if module.encode() in _command(pid)), None)

    def signal_child(self, module: str, number: int) -> int | None:
        """Send a signal to a child; returns its pid, or None where there is none to hurt."""
        pid = self.child(module)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return pid

    async def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait until the daemon and its children are gone; returns the exit status."""
        assert self._process, "start() first"
        family = children(self.pid)
        if self._process.poll() is None:
            self._process.send_signal(number)
        status = await asyncio.to_thread(self._process.wait, _PATIENCE)
        deadline = time.monotonic() + _PATIENCE
        while left := [pid for pid in family if alive(pid)]:
            if time.monotonic() > deadline:
                raise DaemonFailed(f"its children {left} outlive it")
            await asyncio.sleep(_POLL)
        return status

    async def kill(self) -> None:
        """As `end` with SIGKILL; nothing where none runs."""
        if self._process:
            await self.end(signal.SIGKILL)

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; 0 where there are none."""
        async with httpx.AsyncClient(timeout=30) as client:
            text = (await client.get(f"{self.url}/metrics")).text
        return metric(text, name, **labels)


def metric(exposition: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels; 0 where there are none."""
    samples = (s for family in text_string_to_metric_families(exposition) for s in family.samples)
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


def children(pid: int) -> list[int]:
    """Pids of a process's children."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, task.read_text().split())
    return found


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
