"""lcpd and llama-server as processes with equal settings: start, wait until healthy, watch, end by pid."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

HOST = "127.0.0.1"
START_TIMEOUT = 120.0
"""Seconds from the start of a process to its first healthy answer."""
STOP_TIMEOUT = 20.0
"""Seconds from SIGTERM to SIGKILL."""
_LOG_LINES = 40


class ServerFailed(RuntimeError):
    """A server did not start; the text ends with the tail of its log."""


@dataclass(frozen=True)
class Equal:
    """What both servers are given alike.  Lengths in tokens."""

    model: Path
    threads: int
    ctx: int
    batch: int
    ubatch: int
    flash_attn: str
    slots: int = 1
    cache_ram: int = 0
    """MiB of host RAM for what is kept beside the slots; 0: neither server keeps anything, checkpoints included."""
    environment: dict[str, str] = field(default_factory=dict)
    """Added to the environment of both."""


@dataclass
class Server:
    """A running server."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        """The base URL, without a slash at the end."""
        return f"http://{HOST}:{self.port}"

    def log_tail(self) -> str:
        """The last lines that it wrote."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])

    def cpu_seconds(self) -> float:
        """CPU time that its living processes have used so far."""
        return sum(_cpu_seconds(pid) for pid in _family(self.process.pid))

    def memory(self) -> int:
        """Bytes of RAM that its living processes hold; what several of them map counts once."""
        return sum(_proportional_bytes(pid) for pid in _family(self.process.pid))


def run_lcpd(equal: Equal, folder: Path) -> AbstractContextManager[Server]:
    """lcpd; its log goes to `folder`.  Entering raises ServerFailed.

    Without `cache_ram` a prompt that continues no live sequence is computed from its first token.
    """
    port = _free_port()
    command = [
        *(sys.executable, "-m", "lcpd", "serve", "--host", HOST, "--port", str(port)),
        *("--model", str(equal.model), "--threads", str(equal.threads), "--ctx", str(equal.ctx)),
        *("--batch", str(equal.batch), "--ubatch", str(equal.ubatch), "--slots", str(equal.slots)),
        *("--flash-attn", equal.flash_attn),
    ]
    environment = {**_environment(equal), "LCPD_CACHE__RAM": f"{equal.cache_ram}MiB"}
    if not equal.cache_ram:
        environment["LCPD_MODEL__CHECKPOINTS"] = "0"
    return _running("lcpd", command, environment, port, folder / "lcpd.log")


def run_peer(equal: Equal, binary: Path, folder: Path, flags: Sequence[str] = ()) -> AbstractContextManager[Server]:
    """llama-server, with its defaults where `equal` and `flags` say nothing.  As `run_lcpd` otherwise."""
    port = _free_port()
    command = [
        *(str(binary), "--host", HOST, "--port", str(port), "--no-ui"),
        *("--model", str(equal.model), "--threads", str(equal.threads), "--ctx-size", str(equal.ctx)),
        *("--batch-size", str(equal.batch), "--ubatch-size", str(equal.ubatch), "--parallel", str(equal.slots)),
        *("--flash-attn", equal.flash_attn, "--kv-unified", "--cache-ram", str(equal.cache_ram), "--no-warmup"),
    ]
    # Its RAM cache tells its size in the log's trace only.
    command += ["--log-verbosity", "4"] if equal.cache_ram else ["--ctx-checkpoints", "0"]
    return _running("llama-server", [*command, *flags], _environment(equal), port, folder / "llama-server.log")


def _environment(equal: Equal) -> dict[str, str]:
    """This process's environment without settings of either server, which would make them unequal."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LCPD_", "LLAMA_ARG_")) or name == "LCPD_HOME"
    }
    return {**kept, **equal.environment}


@contextmanager
def _running(name: str, command: list[str], environment: dict[str, str], port: int, log: Path) -> Iterator[Server]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    server = Server(name, port, process, log)
    try:
        _wait_until_healthy(server)
        yield server
    finally:
        _end(process)


def _wait_until_healthy(server: Server) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    answer = "no answer"
    while time.monotonic() < deadline:
        if (status := server.process.poll()) is not None:
            raise ServerFailed(f"{server.name} ended with status {status}; its log ends:\n{server.log_tail()}")
        try:
            response = httpx.get(f"{server.url}/health", timeout=5)
        except httpx.TransportError as error:
            answer = str(error)
        else:
            if response.status_code == 200:
                return
            answer = response.text
        time.sleep(0.1)
    raise ServerFailed(
        f"{server.name} was not healthy after {START_TIMEOUT:g} s ({answer}); its log ends:\n{server.log_tail()}"
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _family(pid: int) -> list[int]:
    """A process and its living descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            continue
        for child in children:
            found += _family(int(child))
    return found


def _proportional_bytes(pid: int) -> int:
    """The proportional set size: shared pages are divided among the processes that map them."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    lines = (line.split() for line in rollup.splitlines())
    return sum(int(fields[1]) * 1024 for fields in lines if fields[0] == "Pss:")


def _cpu_seconds(pid: int) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    fields = stat.rpartition(")")[2].split()
    user, system = int(fields[11]), int(fields[12])  # fields 14 and 15 of proc(5), counted after the command's name
    return (user + system) / os.sysconf("SC_CLK_TCK")
