"""Channels: typed messages both ways, and a clear end when the other side is gone."""

from __future__ import annotations

import asyncio
import fcntl
import resource
import socket
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest

from lcpd.ipc.channel import ChannelClosed, ChildChannel, DaemonChannel
from lcpd.ipc.frames import FrameError, frame


class Note(msgspec.Struct, tag="note", tag_field="type"):
    text: str


class Pair:
    """Both ends in one process."""

    def __init__(self, daemon: DaemonChannel[Note], child: ChildChannel[Note], child_sock: socket.socket) -> None:
        self.daemon = daemon
        self.child = child
        self.child_sock = child_sock


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    ours, theirs = socket.socketpair()
    pair = Pair(await DaemonChannel.open(ours, Note), ChildChannel(theirs, Note), theirs)
    yield pair
    pair.daemon.close()
    theirs.close()
    await asyncio.sleep(0)  # the transport closes its socket in the loop's next round


@pytest.fixture
def child_end() -> Iterator[tuple[ChildChannel[Note], socket.socket]]:
    ours, theirs = socket.socketpair()
    yield ChildChannel(theirs, Note), ours
    ours.close()
    theirs.close()


async def test_messages_arrive_in_order_in_both_directions(pair: Pair) -> None:
    for text in ("a", "b", "c"):
        pair.daemon.send(Note(text))
        pair.child.send(Note(text.upper()))
    assert [(await pair.daemon.receive()).text for _ in range(3)] == ["A", "B", "C"]
    received = [await asyncio.to_thread(pair.child.receive, 30) for _ in range(3)]
    assert [note.text for note in received if note] == ["a", "b", "c"]


async def test_a_message_larger_than_the_sockets_buffer_arrives_whole(pair: Pair) -> None:
    big = Note("x" * 3_000_000)
    sending = asyncio.create_task(asyncio.to_thread(pair.child.send, big))
    assert await pair.daemon.receive() == big
    await sending
    pair.daemon.send(big)
    assert await asyncio.to_thread(pair.child.receive, 30) == big


async def test_receiving_from_a_child_that_is_gone_raises_channel_closed(pair: Pair) -> None:
    pair.child.send(Note("the last one"))
    pair.child_sock.close()
    assert (await pair.daemon.receive()).text == "the last one"
    with pytest.raises(ChannelClosed):
        await pair.daemon.receive()


async def test_sending_to_a_child_after_the_channel_was_closed_raises_channel_closed(pair: Pair) -> None:
    pair.daemon.close()
    with pytest.raises(ChannelClosed):
        pair.daemon.send(Note("late"))


async def test_what_was_sent_right_before_closing_still_arrives(pair: Pair) -> None:
    pair.daemon.send(Note("a"))
    pair.daemon.send(Note("b"))
    pair.daemon.close()
    received = [await asyncio.to_thread(pair.child.receive, 30) for _ in range(2)]
    assert [note.text for note in received if note] == ["a", "b"]


async def test_closing_the_daemons_end_ends_the_childs_receive(pair: Pair) -> None:
    receiving = asyncio.create_task(asyncio.to_thread(pair.child.receive, None))
    pair.daemon.close()
    with pytest.raises(ChannelClosed, match="the daemon has closed"):
        await receiving


async def test_a_message_of_an_unknown_shape_is_a_decode_error_and_leaves_the_channel_usable(pair: Pair) -> None:
    pair.child_sock.sendall(frame(msgspec.msgpack.encode({"type": "other"})))
    pair.child.send(Note("still here"))
    with pytest.raises(msgspec.DecodeError):
        await pair.daemon.receive()
    assert (await pair.daemon.receive()).text == "still here"


async def test_bytes_that_are_no_frame_are_a_frame_error(pair: Pair) -> None:
    pair.child_sock.sendall(b"\xff" * 8)
    with pytest.raises(FrameError):
        await pair.daemon.receive()


def test_receiving_gives_none_when_nothing_comes_in_time(child_end: tuple[ChildChannel[Note], socket.socket]) -> None:
    channel, _ = child_end
    assert channel.receive(0) is None


def test_half_a_message_is_not_delivered_and_not_lost(child_end: tuple[ChildChannel[Note], socket.socket]) -> None:
    channel, daemon = child_end
    data = frame(msgspec.msgpack.encode(Note("whole")))
    daemon.sendall(data[:5])
    assert channel.receive(0) is None
    daemon.sendall(data[5:])
    assert channel.receive(30) == Note("whole")


def test_sending_to_a_daemon_that_is_gone_raises_channel_closed(
    child_end: tuple[ChildChannel[Note], socket.socket],
) -> None:
    channel, daemon = child_end
    daemon.close()
    with pytest.raises(ChannelClosed):
        channel.send(Note("nobody hears this"))


def test_a_child_can_receive_on_a_descriptor_beyond_1023() -> None:
    # A daemon with a thousand open connections hands such a number to the worker it restarts.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard > 2100, "this machine's hard limit on open files is unusually low"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2100), hard))
    ours, theirs = socket.socketpair()
    try:
        high = socket.socket(fileno=fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 2000))
        with high:
            channel = ChildChannel(high, Note)
            assert channel.receive(0) is None
            ours.sendall(frame(msgspec.msgpack.encode(Note("high"))))
            assert channel.receive(30) == Note("high")
    finally:
        ours.close()
        theirs.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
