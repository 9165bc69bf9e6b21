"""Length-prefixed frames: pure encoding and incremental decoding."""

from __future__ import annotations

import struct

_LENGTH = struct.Struct("<I")
MAX_FRAME = 1 << 30
"""Bytes; a longer frame means that the stream is out of step."""


class FrameError(ValueError):
    """The byte stream is no sequence of frames."""


def frame(payload: bytes) -> bytes:
    """The bytes to send for one payload."""
    if len(payload) > MAX_FRAME:
        raise FrameError(f"a message of {len(payload)} bytes is over the limit of {MAX_FRAME}")
    return _LENGTH.pack(len(payload)) + payload


class FrameReader:
    """Turns received pieces of any size into whole payloads."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes; return the payloads that are now complete, in order.

        Raises FrameError when a length is impossible; the reader is of no use after that.
        """
        self._buffer += data
        payloads = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > MAX_FRAME:
                raise FrameError(f"a frame claims {length} bytes, over the limit of {MAX_FRAME}")
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            payloads.append(bytes(memoryview(self._buffer)[start + _LENGTH.size : end]))
            start = end
        if start:
            del self._buffer[:start]
        return payloads
