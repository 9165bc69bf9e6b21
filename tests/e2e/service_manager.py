"""A stand-in for systemd: it listens on a notification socket, keeps the descriptor that it is sent, and passes it to
the next daemon, with a socket that it listens on if it has one.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from e2e.conftest import READY_WITHIN, Daemon, _free_port
from lcpd.cache.arena import Arena
from lcpd.cache.index import Index, IndexArea, decode, front_size

RAM = 256 << 20
LAUNCH = """
import fcntl, os, sys
passed = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 100) for number in sys.argv[1].split(",")]
for number, descriptor in enumerate(passed):
    os.dup2(descriptor, 3 + number)
    os.close(descriptor)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


class ManagedDaemon(Daemon):
    """``lcpd serve`` as a service manager starts it, which passes descriptors by name."""

    def __init__(
        self, log: Path, address: str, passed: dict[str, int], port: int | None, *flags: str, **environment: str
    ) -> None:
        self.port = port or _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        serve = ["-m", "lcpd", "serve", "--port", str(self.port), "--threads", "1", *flags]
        given = {**os.environ, "OMP_NUM_THREADS": "1", "LCPD_CACHE__RAM": str(RAM), "NOTIFY_SOCKET": address}
        given["LCPD_CACHE__PREWARM"] = "0"
        command = [sys.executable, *serve]
        if passed:
            given.update(LISTEN_FDS=str(len(passed)), LISTEN_FDNAMES=":".join(passed))
            command = [sys.executable, "-c", LAUNCH, ",".join(map(str, passed.values())), *serve]
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, env={**given, **environment}, pass_fds=tuple(passed.values())
            )

    def tokens(self, source: str) -> int:
        """Prompt tokens so far that came from there."""
        families = text_string_to_metric_families(httpx.get(f"{self.url}/metrics").text)
        samples = [s for f in families for s in f.samples if s.name == "lcpd_prompt_tokens_total"]
        return sum(int(s.value) for s in samples if s.labels["source"] == source)


class ServiceManagerStandIn:
    """Keeps one descriptor, and what it was told; may listen for the daemon."""

    def __init__(self, folder: Path, listening: socket.socket | None = None) -> None:
        self._folder = folder
        self._listening = listening
        self.address = str(folder / "notify")
        self.told: list[str] = []
        self.kept: int | None = None
        self.daemons: list[ManagedDaemon] = []
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(self.address)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._sock, 1 << 16, 8)
            lines = data.decode().split("\n")
            if lines == ["end"]:
                return
            if "FDSTOREREMOVE=1" in lines:
                self._forget()
            for descriptor in descriptors:
                if self.kept is not None and os.path.sameopenfile(self.kept, descriptor):
                    os.close(descriptor)
                    continue
                assert "FDNAME=lcpd-arena" in lines
                assert self.kept is None, "one more than FileDescriptorStoreMax"
                self.kept = descriptor
            self.told.extend(lines)

    def _forget(self) -> None:
        if self.kept is not None:
            os.close(self.kept)
            self.kept = None

    def launch(self, *flags: str, **environment: str) -> ManagedDaemon:
        """Start a daemon and do not wait for it."""
        self.told.clear()
        log = self._folder / f"daemon-{len(self.daemons)}.log"
        passed = {} if self._listening is None else {"lcpd-http": self._listening.fileno()}
        if self.kept is not None:
            passed["lcpd-arena"] = self.kept
        inet = self._listening is not None and self._listening.family == socket.AF_INET
        port = self._listening.getsockname()[1] if inet else None
        daemon = ManagedDaemon(log, self.address, passed, port, *flags, **environment)
        self.daemons.append(daemon)
        return daemon

    def start(self, *flags: str, wait: str = "ok", **environment: str) -> ManagedDaemon:
        """Start a daemon that is ready when it returns."""
        daemon = self.launch(*flags, **environment)
        daemon.wait_for(wait)
        self.wait_until_told("READY=1")
        return daemon

    def wait_until_told(self, line: str) -> None:
        deadline = time.monotonic() + READY_WITHIN
        while line not in self.told:
            assert time.monotonic() < deadline, self.told
            time.sleep(0.02)

    def arena(self) -> Arena:
        """The memory that is kept."""
        assert self.kept is not None
        return Arena.adopt(os.dup(self.kept), RAM, front_size(RAM))

    def listed(self) -> Index:
        """What the last list in it says."""
        with closing(self.arena()) as arena:
            return decode(IndexArea(arena.front).read())

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.stop(signal.SIGKILL)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"end", self.address)
        self._thread.join()
        self._sock.close()
        self._forget()
