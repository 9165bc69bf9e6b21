"""Talking with the service manager: what it passes is taken, what it is told arrives, without one nothing happens."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lcpd.fdstore import BadSocket, ServiceManager, feed_watchdog, report


class Inbox:
    """The service manager's end of the notification socket."""

    def __init__(self, address: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind("\0" + address[1:] if address.startswith("@") else address)
        self.sock.settimeout(10)

    def receive(self) -> tuple[list[str], list[int]]:
        data, descriptors, _, _ = socket.recv_fds(self.sock, 4096, 4)
        return data.decode().split("\n"), descriptors


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    inbox = Inbox(str(tmp_path / "notify"))
    yield inbox
    inbox.sock.close()


@pytest.fixture
def manager(inbox: Inbox) -> ServiceManager:
    return ServiceManager(inbox.sock.getsockname())


# ---- messages ----------------------------------------------------------------------------------------------


def test_a_message_is_one_datagram_of_assignments(inbox: Inbox, manager: ServiceManager) -> None:
    assert manager.notify("READY=1", "STATUS=serving")
    assert inbox.receive() == (["READY=1", "STATUS=serving"], [])


def test_a_descriptor_is_sent_to_be_kept_under_its_name_and_is_the_same_file(
    inbox: Inbox, manager: ServiceManager
) -> None:
    fd = os.memfd_create("test")
    os.write(fd, b"content")
    assert manager.store("lcpd-arena", fd)
    os.close(fd)
    lines, (kept,) = inbox.receive()
    assert lines == ["FDSTORE=1", "FDNAME=lcpd-arena", "FDPOLL=0"]
    assert os.pread(kept, 100, 0) == b"content"
    os.close(kept)


def test_what_is_kept_can_be_forgotten(inbox: Inbox, manager: ServiceManager) -> None:
    manager.forget("lcpd-arena")
    assert inbox.receive() == (["FDSTOREREMOVE=1", "FDNAME=lcpd-arena"], [])


def test_an_abstract_address_works_too() -> None:
    inbox = Inbox(f"@lcpd-test-{os.getpid()}")
    assert ServiceManager(f"@lcpd-test-{os.getpid()}").notify("READY=1")
    assert inbox.receive() == (["READY=1"], [])
    inbox.sock.close()


def test_a_service_manager_that_does_not_listen_is_no_reason_to_fail(tmp_path: Path) -> None:
    assert not ServiceManager(str(tmp_path / "nobody")).notify("READY=1")


def test_without_a_service_manager_nothing_is_sent() -> None:
    assert not ServiceManager().notify("READY=1")
    assert not ServiceManager().store("name", 0)


# ---- the environment ---------------------------------------------------------------------------------------


def test_all_variables_are_removed_so_that_children_do_not_see_them() -> None:
    environment = {
        "NOTIFY_SOCKET": "/run/notify",
        "LISTEN_PID": "1",
        "LISTEN_FDS": "1",
        "LISTEN_FDNAMES": "x",
        "LISTEN_PIDFDID": "5",
        "WATCHDOG_USEC": "1",
        "WATCHDOG_PID": "1",
        "FDSTORE": "1",
        "HOME": "/home",
    }
    ServiceManager.from_environment(environment)
    assert environment == {"HOME": "/home"}


def test_an_empty_environment_means_that_there_is_none() -> None:
    assert ServiceManager.from_environment({}) == ServiceManager("", 0.0, {})


def test_descriptors_that_are_meant_for_another_process_are_left_alone() -> None:
    manager = ServiceManager.from_environment({"LISTEN_PID": str(os.getpid() + 1), "LISTEN_FDS": "1"})
    assert manager.passed == {}


@pytest.mark.parametrize("count", ["", "-1", "x", "99999999999999999999", "²"])
def test_nonsense_in_the_environment_is_ignored(count: str) -> None:
    environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": count, "WATCHDOG_USEC": count}
    manager = ServiceManager.from_environment(environment)
    assert all(number < 1024 + 3 for numbers in manager.passed.values() for number in numbers)


def test_an_address_of_another_kind_is_not_used() -> None:
    assert ServiceManager.from_environment({"NOTIFY_SOCKET": "vsock:2:1234"}).address == ""


@pytest.mark.parametrize(("pid", "seconds"), [(None, 30.0), ("ours", 30.0), ("1", 0.0)])
def test_the_watchdog_is_ours_unless_it_names_another_process(pid: str | None, seconds: float) -> None:
    environment = {"WATCHDOG_USEC": "30000000"}
    if pid:
        environment["WATCHDOG_PID"] = str(os.getpid()) if pid == "ours" else pid
    assert ServiceManager.from_environment(environment).watchdog == seconds


PASSED = """
import os, sys
for number, fd in enumerate(sys.argv[1:]):
    os.dup2(int(fd), 3 + number)
os.environ["LISTEN_PID"] = str(os.getpid())
from lcpd.fdstore import ServiceManager

manager = ServiceManager.from_environment(os.environ)
taken = manager.take("lcpd-arena")
print(taken, os.get_inheritable(taken), manager.take("lcpd-arena"), sorted(manager.passed))
manager.close_rest()
links = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in (3, 4, 5) if os.path.lexists(f"/proc/self/fd/{fd}")}
print([fd for fd, link in links.items() if "passed" in link])
"""


def test_passed_descriptors_are_taken_by_name_and_what_nobody_takes_is_closed() -> None:
    fds = [fcntl.fcntl(os.memfd_create("passed"), fcntl.F_DUPFD, 30) for _ in range(3)]
    environment = {**os.environ, "LISTEN_FDS": "3", "LISTEN_FDNAMES": "lcpd-arena:lcpd-arena:other"}
    command = [sys.executable, "-c", PASSED, *map(str, fds)]
    found = subprocess.run(command, env=environment, pass_fds=fds, capture_output=True, text=True, check=True)
    taken, left = found.stdout.splitlines()
    assert taken == "3 False None ['other']"
    assert left == "[3]"
    for fd in fds:
        os.close(fd)


# ---- sockets -----------------------------------------------------------------------------------------------


def listening(family: socket.AddressFamily, address: object) -> socket.socket:
    sock = socket.socket(family)
    sock.bind(address)
    sock.listen()
    return sock


def test_sockets_that_listen_are_taken_whatever_they_are_called_and_the_rest_is_left(tmp_path: Path) -> None:
    given = [
        listening(socket.AF_INET, ("127.0.0.1", 0)),
        listening(socket.AF_INET6, ("::1", 0)),
        listening(socket.AF_UNIX, str(tmp_path / "socket")),
    ]
    addresses = [sock.getsockname() for sock in given]
    first, second, third = (sock.detach() for sock in given)
    arena = os.memfd_create("arena")
    manager = ServiceManager(passed={"lcpd-http": [first, second], "lcpd-arena": [arena], "unknown": [third]})
    taken = manager.take_sockets()
    assert [sock.getsockname() for sock in taken] == addresses
    assert manager.passed == {"lcpd-arena": [arena]}
    assert manager.take_sockets() == []
    os.close(arena)
    for sock in taken:
        sock.close()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(lambda: socket.socketpair()[0], "does not listen; use Accept=no", id="connection"),
        pytest.param(socket.socket, "does not listen", id="not listening"),
        pytest.param(
            lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM), "no stream; use ListenStream=", id="datagram"
        ),
        pytest.param(
            lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), "no stream; use ListenStream=", id="packets"
        ),
        pytest.param(
            lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM), "of the address family", id="netlink"
        ),
    ],
)
def test_a_socket_that_no_http_can_be_served_on_is_refused_with_what_its_unit_must_say(
    make: Callable[[], socket.socket], said: str
) -> None:
    with make() as sock:
        manager = ServiceManager(passed={"lcpd.socket": [sock.fileno()]})
        with pytest.raises(BadSocket, match=f"'lcpd.socket' .*{said}"):
            manager.take_sockets()


# ---- life signs --------------------------------------------------------------------------------------------


async def _reporting(manager: ServiceManager, loaded: asyncio.Future[None]) -> asyncio.Task[bool]:
    async def load() -> None:
        await loaded

    task = asyncio.create_task(report(manager, "model", load, lambda: 0.5))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_while_the_model_loads_progress_is_shown_and_time_is_asked_for(
    inbox: Inbox, manager: ServiceManager
) -> None:
    loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task = await _reporting(manager, loaded)
    assert inbox.receive() == (["STATUS=loading model: 50%", "EXTEND_TIMEOUT_USEC=60000000"], [])
    loaded.set_result(None)
    assert await task
    assert inbox.receive() == (["READY=1", "STATUS=serving model"], [])


async def test_a_model_that_cannot_be_loaded_is_shown_and_the_daemon_is_not_ready(
    inbox: Inbox, manager: ServiceManager
) -> None:
    loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task = await _reporting(manager, loaded)
    inbox.receive()
    loaded.set_exception(RuntimeError("no such file"))
    assert await task is False
    assert inbox.receive() == (["STATUS=failed: no such file"], [])


async def test_the_watchdog_is_fed_again_and_again(inbox: Inbox, manager: ServiceManager) -> None:
    manager.watchdog = 0.06
    task = asyncio.create_task(feed_watchdog(manager, lambda: None))
    heard = [(await asyncio.to_thread(inbox.receive))[0] for _ in range(3)]
    task.cancel()
    assert heard == [["WATCHDOG=1"]] * 3


async def test_while_something_is_stuck_the_watchdog_is_not_fed_and_the_reason_said_once(
    inbox: Inbox, manager: ServiceManager, caplog: pytest.LogCaptureFixture
) -> None:
    reasons = iter(["no batch", "no batch", None])
    manager.watchdog = 0.03
    task = asyncio.create_task(feed_watchdog(manager, lambda: next(reasons, None)))
    heard = [(await asyncio.to_thread(inbox.receive))[0] for _ in range(2)]
    task.cancel()
    assert heard == [["STATUS=stuck: no batch"], ["WATCHDOG=1"]]
    assert caplog.text.count("no batch") == 1


async def test_no_watchdog_is_fed_where_there_is_none(manager: ServiceManager) -> None:
    await feed_watchdog(manager, lambda: None)


async def test_without_a_service_manager_nobody_is_waited_for() -> None:
    async def load() -> None:
        raise AssertionError("not to be asked")

    assert await report(ServiceManager(), "model", load, lambda: 0.0)
