"""Both ends of a socketpair that carries typed messages.

:class:`ChildChannel` is the blocking end in a worker or chat process, :class:`DaemonChannel` the asyncio end in the
daemon.  Either raises :class:`ChannelClosed` when the other side is gone.

The daemon may hand over file descriptors when it opens the channel: they travel (SCM_RIGHTS, unix(7)) with an empty
frame, which is no message, before everything else.
"""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import struct
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Generic, TypeVar

import msgspec

from lcpd.ipc.frames import FrameReader, frame

Incoming = TypeVar("Incoming")
_RECEIVE = 1 << 18
_DESCRIPTOR = struct.Struct("i")
_ANCILLARY = socket.CMSG_SPACE(253 * _DESCRIPTOR.size)
"""Bytes for as many descriptors as the kernel takes in one piece (SCM_MAX_FD)."""


class ChannelClosed(ConnectionError):
    """The other side has closed the channel or died."""


class ChildChannel(Generic[Incoming]):
    """The blocking end.  Only one thread may receive; sending is for that thread too."""

    def __init__(self, sock: socket.socket, incoming: type[Incoming]) -> None:
        sock.setblocking(True)
        self._sock = sock
        # Not select(): a busy daemon hands over a descriptor beyond select's limit of 1023.
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._reader = FrameReader()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Incoming] = msgspec.msgpack.Decoder(incoming)
        self._ready: deque[bytes] = deque()
        self.descriptors: list[int] = []
        """What the daemon has handed over: complete when the first message is there, and for the receiver to close."""

    def send(self, message: msgspec.Struct) -> None:
        """Send one message; blocks while the daemon is slow to read."""
        try:
            self._sock.sendall(frame(self._encoder.encode(message)))
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, timeout: float | None) -> Incoming | None:
        """The next message, or None when none arrives within `timeout` seconds (None waits for ever).

        Raises ChannelClosed, msgspec.ValidationError for a message of an unknown shape, or OSError when there is no
        room in the process for descriptors that were handed over.
        """
        payload = self.receive_raw(timeout)
        return None if payload is None else self._decoder.decode(payload)

    def receive_raw(self, timeout: float | None) -> bytes | None:
        """As :meth:`receive`, undecoded: for the first message, whose version is not known yet."""
        while not self._ready:
            if not self._poll.poll(None if timeout is None else timeout * 1000):
                return None
            try:
                # Not socket.recv_fds(), which ignores its flags before Python 3.12.
                data, ancillary, flags, _ = self._sock.recvmsg(_RECEIVE, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            self.descriptors += _descriptors(ancillary)
            if flags & socket.MSG_CTRUNC:
                raise OSError(errno.EMFILE, "descriptors from the daemon were lost: raise the limit on open files")
            if not data:
                raise ChannelClosed("the daemon has closed the channel")
            self._ready.extend(payload for payload in self._reader.feed(data) if payload)
        return self._ready.popleft()


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors among what recvmsg() gave besides the data."""
    return [
        number
        for level, kind, data in ancillary
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
        for (number,) in _DESCRIPTOR.iter_unpack(data[: len(data) // _DESCRIPTOR.size * _DESCRIPTOR.size])
    ]


class DaemonChannel(Generic[Incoming]):
    """The asyncio end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, incoming: type[Incoming]) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = FrameReader()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Incoming] = msgspec.msgpack.Decoder(incoming)
        self._ready: deque[bytes] = deque()
        self._outgoing: list[bytes] = []
        """Frames of this turn of the event loop, which go out together: a system call and a wake-up for all of them."""

    @classmethod
    async def open(
        cls, sock: socket.socket, incoming: type[Incoming], descriptors: Sequence[int] = ()
    ) -> DaemonChannel[Incoming]:
        """Take over `sock`, which is closed with the channel, and hand copies of `descriptors` over to the child.

        Raises OSError when one of them is not open; `sock` is then still the caller's.
        """
        if descriptors:
            with suppress(ConnectionError):  # a child that is gone is noticed, and explained, by whoever receives
                socket.send_fds(sock, [frame(b"")], descriptors)
        reader, writer = await asyncio.open_connection(sock=sock)
        return cls(reader, writer, incoming)

    def send(self, message: msgspec.Struct) -> None:
        """Queue one message for sending; raises ChannelClosed when the child is gone."""
        if self._writer.is_closing():
            raise ChannelClosed("the child process has closed the channel")
        self._outgoing.append(frame(self._encoder.encode(message)))
        if len(self._outgoing) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if outgoing and not self._writer.is_closing():
            self._writer.writelines(outgoing)

    async def receive(self) -> Incoming:
        """The next message.

        Raises ChannelClosed at the end of the stream, msgspec.DecodeError for a message of an unknown shape, or
        FrameError (after which the channel is of no use) for bytes that are no frame.
        """
        while not self._ready:
            try:
                data = await self._reader.read(_RECEIVE)
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if not data:
                raise ChannelClosed("the child process has closed the channel")
            self._ready.extend(self._frames.feed(data))
        return self._decoder.decode(self._ready.popleft())

    def close(self) -> None:
        """Close the socket; what the child is too slow to take is dropped."""
        self._flush()
        self._writer.transport.abort()
