"""What the daemon and the service manager that started it (systemd) tell each other: sd_notify(3), sd_listen_fds(3).

The service manager can keep a file descriptor for the daemon, its *file-descriptor store*, and passes it to the next
daemon; and it can listen for the daemon (*socket activation*), so that clients wait while none runs.  Without a service
manager every message goes nowhere, and nothing was passed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

FIRST_PASSED = 3
"""Number of the first descriptor that a service manager passes."""
_VARIABLES = (
    "NOTIFY_SOCKET",
    "LISTEN_PID",
    "LISTEN_PIDFDID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "FDSTORE",
)
_SEND_WITHIN = 1.0
"""Seconds that a message may wait for the service manager to take older ones."""
_STATUS_INTERVAL = 5.0
_EXTENSION = 60.0
"""Seconds by which loading may go on after each sign of life."""


class BadSocket(ValueError):
    """A socket was passed that no HTTP can be served on; the text says which, and what its unit must say."""


@dataclass
class ServiceManager:
    """The one that started this process, or none."""

    address: str = ""
    """Of its socket for messages; "": there is none."""
    watchdog: float = 0.0
    """Seconds without a sign of life after which it ends the daemon; 0: it does not."""
    passed: dict[str, list[int]] = field(default_factory=dict)
    """Descriptors that it kept for us, by name; what is not taken yet."""

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> ServiceManager:
        """Read the variables that are meant for this process, and remove them: children must not take them for theirs.

        The descriptors that were passed are closed in programs that we start.  To be called before any is opened.
        """
        given = {name: environment.pop(name) for name in _VARIABLES if name in environment}
        address = given.get("NOTIFY_SOCKET", "")
        if address and address[0] not in "/@":
            log.warning("NOTIFY_SOCKET=%s is no address that messages could be sent to; none will be", address)
            address = ""
        ours = str(os.getpid())
        watchdog = 0.0
        if given.get("WATCHDOG_PID", ours) == ours:
            watchdog = (_number(given, "WATCHDOG_USEC") or 0) / 1e6
        passed: dict[str, list[int]] = {}
        if given.get("LISTEN_PID") == ours:
            for name, descriptor in _passed(given):
                passed.setdefault(name, []).append(descriptor)
        return cls(address, watchdog, passed)

    def notify(self, *assignments: str, descriptors: tuple[int, ...] = ()) -> bool:
        """Send one message, such as ``READY=1``; returns whether somebody got it.

        A service manager that does not listen is no reason to fail: it is only logged.
        """
        if not self.address:
            return False
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(_SEND_WITHIN)
                sock.connect(address)
                socket.send_fds(sock, ["\n".join(assignments).encode()], descriptors)
        except OSError as error:
            log.warning("the service manager did not take %r: %s", assignments[0], error)
            return False
        return True

    def store(self, name: str, descriptor: int) -> bool:
        """Ask for `descriptor` to be kept and passed to the next daemon; one that is kept already is kept once."""
        return self.notify("FDSTORE=1", f"FDNAME={name}", "FDPOLL=0", descriptors=(descriptor,))

    def forget(self, name: str) -> None:
        """Have all descriptors of this name closed that are kept for us."""
        self.notify("FDSTOREREMOVE=1", f"FDNAME={name}")

    def take(self, name: str) -> int | None:
        """The descriptor that was passed under `name`, which the caller owns from now on; None: there was none."""
        descriptors = self.passed.pop(name, [])
        for duplicate in descriptors[1:]:
            os.close(duplicate)
        return descriptors[0] if descriptors else None

    def take_sockets(self) -> list[socket.socket]:
        """The sockets that were passed, all of which listen; the caller owns them from now on.

        Raises BadSocket, and then keeps what is not taken yet.
        """
        sockets = []
        for name, descriptors in list(self.passed.items()):
            found = [each for each in descriptors if stat.S_ISSOCK(os.fstat(each).st_mode)]
            for descriptor in found:
                if problem := _unfit(descriptor):
                    raise BadSocket(f"the service manager passed a socket named {name!r} {problem}")
                sockets.append(socket.socket(fileno=descriptor))
                descriptors.remove(descriptor)
            if not descriptors:
                del self.passed[name]
        return sockets

    def close_rest(self) -> None:
        """Close what was passed and not taken, here and at the service manager."""
        for name, descriptors in self.passed.items():
            log.warning(
                "the service manager passed %d descriptors named %r, which are of no use", len(descriptors), name
            )
            for descriptor in descriptors:
                with suppress(OSError):
                    os.close(descriptor)
            self.forget(name)
        self.passed.clear()


def _number(given: MutableMapping[str, str], name: str) -> int | None:
    """A variable that is not negative; None where it is missing or no number."""
    text = given.get(name, "")
    if text.isascii() and text.isdigit():
        return int(text)
    if text:
        log.warning("%s=%s is no number and is ignored", name, text)
    return None


def _passed(given: MutableMapping[str, str]) -> Iterator[tuple[str, int]]:
    """Name and number of each descriptor; those that are not open are passed over."""
    names = given.get("LISTEN_FDNAMES", "").split(":")
    for index in range(min(_number(given, "LISTEN_FDS") or 0, 1024)):
        try:
            os.set_inheritable(FIRST_PASSED + index, False)
        except OSError as error:
            log.warning("the service manager announced descriptor %d, but: %s", FIRST_PASSED + index, error)
            continue
        yield names[index] if index < len(names) else "unknown", FIRST_PASSED + index


def _unfit(descriptor: int) -> str:
    """Why HTTP cannot be served on this socket; "" where it can."""
    sock = socket.socket(fileno=os.dup(descriptor))
    try:
        if sock.family not in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
            return f"of the address family {sock.family}; ListenStream= must be a TCP port, an address or a path"
        if sock.type != socket.SOCK_STREAM:
            return "that is no stream; use ListenStream= in its unit"
        if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return "that does not listen; use Accept=no in its unit"
    finally:
        sock.close()
    return ""


async def report(
    manager: ServiceManager, what: str, load: Callable[[], Awaitable[object]], progress: Callable[[], float]
) -> bool:
    """Tell the service manager how loading `what` goes, and that the daemon is ready when it is over.

    `load` waits for that, and raises what went wrong: returns False then, and the daemon is not said to be ready.
    `progress` is 0 to 1.  Without a service manager True at once.
    """
    if not manager.address:
        return True
    loading = asyncio.ensure_future(load())
    try:
        while not loading.done():
            manager.notify(f"STATUS=loading {what}: {progress():.0%}", f"EXTEND_TIMEOUT_USEC={int(_EXTENSION * 1e6)}")
            await asyncio.wait({loading}, timeout=_STATUS_INTERVAL)
        error = loading.exception()
    finally:
        loading.cancel()
    if error:
        manager.notify(f"STATUS=failed: {error}")
        return False
    manager.notify("READY=1", f"STATUS=serving {what}")
    return True


async def feed_watchdog(manager: ServiceManager, stuck: Callable[[], str | None]) -> None:
    """Tell the service manager for ever, if it wants to know, that the event loop runs and `stuck` finds nothing.

    `stuck` says what has come to a standstill; while it does the watchdog goes hungry, and in the end bites.
    """
    complained = False
    while manager.watchdog:
        reason = stuck()
        if reason is None:
            manager.notify("WATCHDOG=1")
        elif not complained:
            log.error("the service manager will not hear from lcpd until this is over: %s", reason)
            manager.notify(f"STATUS=stuck: {reason}")
        complained = reason is not None
        await asyncio.sleep(manager.watchdog / 3)
