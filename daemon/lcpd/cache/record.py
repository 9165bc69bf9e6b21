"""One piece of state as a file: what it is, then its bytes.

    header    magic, version, length of the description, length of the state; the description (MessagePack); checksum
              of all that
    state     just as it lay in the arena; its checksum is part of the description

The index keeps a copy of the header, so that all is known without opening a file.  A file whose header is not the one
that the index and the trie lead to expect is not believed, whatever its checksums say.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

import msgspec
import xxhash

from lcpd.cache.arena import checksum
from lcpd.cache.fingerprint import Fingerprint, digest
from lcpd.cache.retention import Kind

VERSION = 1
"""Raised whenever a header changes its meaning or shape."""
_MAGIC = b"lcpdblob"
_FIXED = struct.Struct("<8sIIQ")
_CHECKSUM = 16
_LARGEST = 1 << 26
"""Bytes of a description; more is damage."""

Problem = Literal["missing", "truncated", "damaged", "swapped", "fingerprint", "unreadable"]
"""What is wrong with a file: it is gone; shorter or longer than it was; not the bytes that were stored; those of
another piece; state of another model, build or kind of KV cache; the disk fails to read it."""


class BadFile(RuntimeError):
    """A file is not what was stored."""

    def __init__(self, problem: Problem, message: str) -> None:
        super().__init__(message)
        self.problem: Problem = problem


class Record(msgspec.Struct, frozen=True, array_like=True):
    """What a piece of state is."""

    fingerprint: Fingerprint
    kind: Kind
    parent: str
    """Key of the segment in which, or behind which, `begin` lies; "": `begin` is 0."""
    begin: int
    tokens: bytes
    """Items [begin, end) (`pack`): those that a segment covers; the last ones before a checkpoint."""
    checksum: bytes
    """xxh3-128 of the state."""

    @property
    def end(self) -> int:
        """Position after the last item."""
        return self.begin + len(self.tokens) // 4

    @property
    def key(self) -> str:
        """The same for the same state of the same path, through `parent` from the first item on."""
        hashed = xxhash.xxh3_128(f"{digest(self.fingerprint)} {self.kind} {self.parent} {self.begin}\0".encode())
        hashed.update(self.tokens)
        return hashed.hexdigest()


@dataclass(frozen=True)
class Header:
    """A header that was read."""

    record: Record
    length: int
    """Bytes of the header."""
    state: int
    """Bytes of the state."""


def encode(record: Record, state: int) -> bytes:
    """The header in front of `state` bytes."""
    description = msgspec.msgpack.encode(record)
    head = _FIXED.pack(_MAGIC, VERSION, len(description), state) + description
    return head + checksum(head)


def decode(data: bytes) -> Header:
    """The header at the beginning of `data`.  Raises BadFile: truncated where there is too little of it, or damaged."""
    if len(data) < _FIXED.size:
        raise BadFile("truncated", f"{len(data)} bytes are too few for a header")
    magic, version, length, state = _FIXED.unpack_from(data)
    if magic != _MAGIC or version != VERSION or length > _LARGEST:
        raise BadFile("damaged", "there is no header of this version")
    end = _FIXED.size + length
    if len(data) < end + _CHECKSUM:
        raise BadFile("truncated", f"{len(data)} bytes are too few for this header")
    if checksum(data[:end]) != data[end : end + _CHECKSUM]:
        raise BadFile("damaged", "the header's checksum is wrong")
    try:
        record = msgspec.msgpack.decode(data[_FIXED.size : end], type=Record)
    except msgspec.DecodeError as error:
        raise BadFile("damaged", f"the description cannot be read: {error}") from error
    if not record.tokens or len(record.tokens) % 4 or record.begin < 0 or len(record.checksum) != _CHECKSUM:
        raise BadFile("damaged", "the description makes no sense")
    return Header(record, end + _CHECKSUM, state)


def check(found: Header, expected: Record, state: int, size: int) -> None:
    """Raise BadFile unless a file of `size` bytes with this header is the one of `expected` and `state` bytes.

    Items are compared one by one.  The state itself is left to the caller.
    """
    record = found.record
    if record.fingerprint != expected.fingerprint:
        raise BadFile("fingerprint", "it is state of another model, build or kind of KV cache")
    if record != expected or found.state != state:
        raise BadFile("swapped", f"it holds the {record.kind} of [{record.begin}, {record.end}) of another path")
    if size != found.length + state:
        raise BadFile("truncated", f"it has {size} bytes instead of {found.length + state}")
