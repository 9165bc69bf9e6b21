"""Handing descriptors over to a child: they arrive before the first message and nowhere else."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from lcpd.ipc.channel import ChannelClosed, ChildChannel, DaemonChannel
from lcpd.ipc.launch import launch


class Note(msgspec.Struct, tag="note", tag_field="type"):
    text: str


_CHILD = """
import os, subprocess, sys
import msgspec
from lcpd.ipc.channel import ChildChannel
from lcpd.ipc.child import child_socket
class Note(msgspec.Struct, tag="note", tag_field="type"):
    text: str
channel = ChildChannel(child_socket(sys.argv), Note)
"""
_TELL = """
channel.receive(None)
channel.send(Note(",".join(os.pread(fd, 100, 0).decode() for fd in channel.descriptors)))
channel.receive(None)
"""


def child(code: str) -> list[str]:
    return [sys.executable, "-c", _CHILD + code]


def open_descriptors() -> set[str]:
    return {f"{fd.name} -> {fd.readlink()}" for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()}


@pytest.fixture
def files() -> Iterator[list[int]]:
    """Two open files of known content."""
    made = []
    for text in (b"first", b"second"):
        fd = os.memfd_create("test", os.MFD_CLOEXEC)
        os.write(fd, text)
        made.append(fd)
    yield made
    for fd in made:
        os.close(fd)


async def told(descriptors: list[int]) -> str:
    """What a child reads from the descriptors that it got before its first message."""
    process, channel = await launch(child(_TELL), os.environ, 10, Note, descriptors=descriptors)
    channel.send(Note("hello"))
    answer = await channel.receive()
    channel.close()
    await process.stop(grace=60)
    return str(answer.text)


async def test_a_child_has_the_descriptors_in_order_when_its_first_message_is_there(files: list[int]) -> None:
    assert await told(files) == "first,second"


async def test_a_child_that_is_given_none_has_none() -> None:
    assert await told([]) == ""


async def test_a_descriptor_beyond_1023_is_handed_over_like_any_other(files: list[int]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard > 2100, "this machine's hard limit on open files is unusually low"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2100), hard))
    try:
        high = fcntl.fcntl(files[0], fcntl.F_DUPFD_CLOEXEC, 2000)
        try:
            assert await told([high]) == "first"
        finally:
            os.close(high)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_the_daemon_keeps_its_own_descriptors_and_no_others(files: list[int]) -> None:
    await told([])  # opens what asyncio keeps for all children
    await asyncio.sleep(0)  # a transport closes its socket in the loop's next round
    before = open_descriptors()
    await told(files)
    await asyncio.sleep(0)
    assert open_descriptors() == before


async def test_what_was_handed_over_is_closed_in_programs_that_the_child_runs(files: list[int]) -> None:
    code = """
channel.receive(None)
ls = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, check=True, close_fds=False)
channel.send(Note("leaked" if "memfd:test" in ls.stdout else "closed"))
"""
    process, channel = await launch(child(code), os.environ, 10, Note, descriptors=files[:1])
    channel.send(Note("hello"))
    assert (await channel.receive()).text == "closed"
    channel.close()
    await process.wait()


async def test_a_descriptor_that_is_not_open_is_an_error_and_leaves_neither_process_nor_descriptor() -> None:
    await told([])
    await asyncio.sleep(0)
    before = open_descriptors()
    with pytest.raises(OSError, match="Bad file descriptor"):
        await launch(child(_TELL), os.environ, 10, Note, descriptors=[1_000_000])
    assert open_descriptors() == before


async def test_a_child_that_died_before_the_handing_over_is_told_by_the_channel(files: list[int]) -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    channel = await DaemonChannel.open(ours, Note, files)
    with pytest.raises(ChannelClosed):
        await channel.receive()
    channel.close()
    await asyncio.sleep(0)


async def test_handing_over_is_no_message(files: list[int]) -> None:
    ours, theirs = socket.socketpair()
    receiving = ChildChannel(theirs, Note)
    daemon = await DaemonChannel.open(ours, Note, files[:1])
    assert receiving.receive(0) is None
    assert len(receiving.descriptors) == 1
    os.close(receiving.descriptors[0])
    daemon.close()
    theirs.close()
    await asyncio.sleep(0)


async def test_a_child_without_room_for_a_descriptor_says_so(files: list[int]) -> None:
    ours, theirs = socket.socketpair()
    receiving = ChildChannel(theirs, Note)
    daemon = await DaemonChannel.open(ours, Note, files)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # what is open stays open
    try:
        with pytest.raises(OSError, match="the limit on open files"):
            receiving.receive(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    daemon.close()
    theirs.close()
    await asyncio.sleep(0)
