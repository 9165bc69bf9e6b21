"""Child processes: they never outlive the daemon, keep the end of their output, and leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lcpd.ipc import child as child_module
from lcpd.ipc.child import describe_exit, spawn

_CHILD = """
import sys
from lcpd.ipc.child import child_socket
sock = child_socket(sys.argv)
"""


def child(code: str) -> list[str]:
    return [sys.executable, "-c", _CHILD + code]


def open_descriptors() -> set[str]:
    return {f"{fd.name} -> {fd.readlink()}" for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()}


async def receive(sock: socket.socket, size: int) -> bytes:
    sock.setblocking(False)
    async with asyncio.timeout(60):
        return await asyncio.get_running_loop().sock_recv(sock, size)


async def test_a_child_talks_over_the_socket_whose_number_it_was_given() -> None:
    process = await spawn(child("sock.sendall(b'hello')"), os.environ, 10)
    assert await receive(process.sock, 100) == b"hello"
    assert await process.wait() == 0
    process.sock.close()


async def test_a_child_gets_only_the_environment_it_was_given() -> None:
    code = "import os; sock.sendall(','.join(sorted(k for k in os.environ if k != 'LC_CTYPE')).encode())"
    process = await spawn(child(code), {"ONLY": "this"}, 10)
    assert await receive(process.sock, 100) == b"ONLY"
    await process.wait()
    process.sock.close()


async def test_the_end_of_the_output_is_kept_even_without_a_final_newline() -> None:
    code = "import os; os.write(1, b''.join(b'line %d\\n' % i for i in range(50))); os.write(2, b'the last words')"
    process = await spawn(child(code), os.environ, 3)
    await process.wait()
    assert list(process.log) == ["line 48", "line 49", "the last words"]
    process.sock.close()


async def test_output_is_also_shown_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    process = await spawn(child("print('seen')"), os.environ, 3, echo=True)
    await process.wait()
    assert capsys.readouterr().err == "seen\n"
    process.sock.close()


async def test_a_line_that_never_ends_does_not_fill_the_memory() -> None:
    process = await spawn(child("import os; [os.write(1, b'x' * 65536) for _ in range(64)]"), os.environ, 3)
    await process.wait()
    assert sum(map(len, process.log)) <= 3 * 3 * 65536
    process.sock.close()


async def test_stop_asks_politely_first() -> None:
    code = "import signal; signal.signal(15, lambda *_: sys.exit(5)); sock.sendall(b'!'); signal.pause()"
    process = await spawn(child(code), os.environ, 10)
    await receive(process.sock, 1)
    assert await process.stop(grace=60) == 5
    process.sock.close()


async def test_stop_kills_a_child_that_does_not_listen() -> None:
    code = "import signal; signal.signal(15, signal.SIG_IGN); sock.sendall(b'!')\nwhile True: signal.pause()"
    process = await spawn(child(code), os.environ, 10)
    await receive(process.sock, 1)
    assert await process.stop(grace=0.05) == -signal.SIGKILL
    process.sock.close()


async def test_stopping_a_child_that_is_dead_already_gives_its_exit_status() -> None:
    process = await spawn(child("sys.exit(3)"), os.environ, 10)
    await process.wait()
    assert await process.stop(grace=1) == 3
    assert await process.kill() == 3
    process.sock.close()


async def test_a_grandchild_that_keeps_the_output_open_does_not_hold_up_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_module, "_LOG_GRACE", 0.05)
    code = "import subprocess; sock.sendall(b'%d' % subprocess.Popen(['sleep', '1000']).pid)"
    process = await spawn(child(code), os.environ, 10)
    grandchild = int(await receive(process.sock, 20))
    try:
        assert await process.wait() == 0
    finally:
        os.kill(grandchild, signal.SIGKILL)
        process.sock.close()


async def test_no_zombie_and_no_descriptor_is_left() -> None:
    first = await spawn(child(""), os.environ, 10)  # opens what asyncio keeps for all children
    await first.wait()
    first.sock.close()
    before = open_descriptors()
    for code in ("", "sys.exit(1)", "import os; os.kill(os.getpid(), 9)"):
        process = await spawn(child(code), os.environ, 10)
        await process.wait()
        process.sock.close()
        assert not Path(f"/proc/{process.process.pid}").exists()
    assert open_descriptors() == before


async def test_a_command_that_cannot_be_started_leaves_no_descriptor() -> None:
    before = open_descriptors()
    with pytest.raises(OSError):
        await spawn(["/no/such/program"], os.environ, 10)
    assert open_descriptors() == before


_DAEMON = """
import asyncio, os, sys
from lcpd.ipc.child import spawn
async def main():
    child = await spawn([sys.executable, "-c", sys.argv[1]], os.environ, 10)
    await asyncio.get_running_loop().sock_recv(child.sock, 1)  # it has got as far as asking for the signal
    print(child.process.pid, flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


async def test_a_child_dies_with_a_daemon_that_is_killed() -> None:
    # The child holds the write end of a pipe, so the pipe ends when the child is gone.  spawn() passes on no other
    # descriptor than the socket; the child opens the daemon's by way of /proc.
    pipe, pipe_end = os.pipe()
    code = _CHILD + (
        f"import os, signal; os.open(f'/proc/{{os.getppid()}}/fd/{pipe_end}', os.O_WRONLY)\n"
        "sock.sendall(b'!')\nwhile True: signal.pause()"
    )
    daemon = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _DAEMON, code, stdout=subprocess.PIPE, pass_fds=[pipe_end]
    )
    os.close(pipe_end)
    assert daemon.stdout is not None
    pid = int(await daemon.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    daemon.kill()
    await daemon.wait()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), 20)
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        asyncio.get_running_loop().remove_reader(pipe)
        os.close(pipe)


def test_a_child_whose_daemon_has_died_before_it_could_ask_exits_at_once() -> None:
    code = f"from lcpd.ipc.child import die_with_parent; die_with_parent({os.getpid() + 1_000_000_000})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "the daemon is gone" in result.stderr


def test_exit_statuses_are_put_into_words() -> None:
    assert describe_exit(0) == "exited with status 0"
    assert describe_exit(3) == "exited with status 3"
    assert describe_exit(-9) == "was killed by SIGKILL"
    assert describe_exit(-63) in ("was killed by signal 63", "was killed by SIGRTMAX-1")


def test_the_death_signal_is_asked_for_with_the_right_parent() -> None:
    code = "import os; from lcpd.ipc.child import die_with_parent; die_with_parent(os.getppid()); print('alive')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "alive\n"
