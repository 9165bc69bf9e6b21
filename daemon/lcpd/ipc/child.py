"""Child processes that never outlive the daemon.

The child gets one end of a socketpair as a file descriptor whose number is its last argument.  It asks the kernel for
SIGKILL when its parent dies (Linux ``PR_SET_PDEATHSIG``, prctl(2)), which holds even for ``kill -9`` of the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import io
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

_PR_SET_PDEATHSIG = 1
_LOG_GRACE = 2.0
"""Seconds to wait for the rest of a dead child's output."""


def die_with_parent(parent_pid: int) -> None:
    """Called first thing in a child: arrange to be killed when the daemon dies, and exit if it already has."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        sys.exit("the daemon is gone")


def child_socket(arguments: list[str]) -> socket.socket:
    """The child's end of the channel, from its command line ``... PARENT_PID FD``."""
    parent_pid, fd = int(arguments[-2]), int(arguments[-1])
    die_with_parent(parent_pid)
    return socket.socket(fileno=fd)


@dataclass
class Child:
    """A running child process; `log` keeps its last lines of output."""

    process: asyncio.subprocess.Process
    sock: socket.socket
    log: deque[str]
    _reader: asyncio.Task[None]
    _pidfd: int
    """Signals go through it: asyncio's own way may reap the child first, and its exit status is lost then."""
    killed: bool = False
    """Whether SIGKILL was sent by us."""

    async def wait(self) -> int:
        """Wait for the exit, reap it and collect the rest of its output; returns the exit status (negative: signal)."""
        status = await self.process.wait()
        # A grandchild could hold the pipe open; the log is not worth waiting for that.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._reader), _LOG_GRACE)
        self._reader.cancel()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        return status

    async def stop(self, grace: float) -> int:
        """SIGTERM, and SIGKILL after `grace` seconds; returns the exit status."""
        self.signal(signal.SIGTERM)
        return await self.reap(grace)

    async def reap(self, grace: float = 1.0) -> int:
        """Wait for a child that is about to exit, and SIGKILL it after `grace` seconds; returns the exit status.

        A child that exits by itself closes its channel first; to kill it right then would hide its status.
        """
        try:
            await asyncio.wait_for(asyncio.shield(self.process.wait()), grace)
        except TimeoutError:
            self.signal(signal.SIGKILL)
        return await self.wait()

    async def kill(self) -> int:
        """SIGKILL; returns the exit status."""
        self.signal(signal.SIGKILL)
        return await self.wait()

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens when the process is over."""
        self.killed = self.killed or number == signal.SIGKILL
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)


async def spawn(command: list[str], environment: Mapping[str, str], log_lines: int, echo: bool = False) -> Child:
    """Start ``command PARENT_PID FD`` with one end of a new socketpair at FD.

    The child's stdout and stderr go to `Child.log` (last `log_lines` lines), and to our stderr too when `echo`.
    """
    ours, theirs = socket.socketpair()
    # A pipe of our own: with asyncio's, waiting for the process would also wait for grandchildren that hold it open.
    output, output_end = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            str(os.getpid()),
            str(theirs.fileno()),
            env=dict(environment),
            pass_fds=[theirs.fileno()],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output_end,
            stderr=asyncio.subprocess.STDOUT,
            # A terminal's Ctrl-C must reach the daemon only, which then drains.  A session of its own would do that
            # too, but the kernel's autogroup scheduling would then share the cores out between sessions.
            process_group=0,
        )
    except BaseException:
        ours.close()
        os.close(output)
        raise
    finally:
        theirs.close()
        os.close(output_end)
    log: deque[str] = deque(maxlen=log_lines)
    return Child(process, ours, log, asyncio.create_task(_collect(output, log, echo)), _pidfd(process.pid))


def _pidfd(pid: int) -> int:
    """A descriptor to signal our child with, or -1 when it is over and reaped already."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return -1


async def _collect(output: int, log: deque[str], echo: bool) -> None:
    """Read the pipe `output` into `log` until its last writer is gone, and close it."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), io.FileIO(output, "rb")
    )
    pending = b""
    try:
        while data := await reader.read(1 << 16):
            *lines, pending = (pending + data).split(b"\n")
            # A child that never ends its line must not fill our memory.
            if len(pending) > 1 << 16:
                lines, pending = [*lines, pending], b""
            for line in lines:
                _keep(line, log, echo)
        if pending:
            _keep(pending, log, echo)
    finally:
        transport.close()


def _keep(line: bytes, log: deque[str], echo: bool) -> None:
    text = line.decode("utf-8", "replace")
    log.append(text)
    if echo:
        print(text, file=sys.stderr, flush=True)


def describe_exit(status: int) -> str:
    """An exit status in words."""
    if status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    return f"exited with status {status}"
