"""The first messages on every channel: who speaks, and which version."""

from __future__ import annotations

import msgspec

VERSION = 5
"""Raised whenever a message of `engine.protocol` or `chat.protocol` changes its meaning or shape."""


class Hello(msgspec.Struct, tag="hello", tag_field="type"):
    """Sent first by the daemon and answered by the child."""

    version: int
    role: str
    """"engine" or "chat"."""
    pid: int = 0


class Refused(msgspec.Struct, tag="refused", tag_field="type"):
    """The child does not speak the daemon's version; it exits after sending this."""

    reason: str


def answer(payload: bytes, role: str, pid: int) -> Hello | Refused:
    """What a child of the given role answers to the daemon's first payload."""
    try:
        hello = msgspec.msgpack.decode(payload, type=Hello)
    except msgspec.DecodeError as error:
        return Refused(f"the first message must be a hello: {error}")
    if hello.version != VERSION:
        return Refused(f"the daemon speaks protocol {hello.version}, this {role} process speaks {VERSION}")
    if hello.role != role:
        return Refused(f"this is a {role} process, not {hello.role!r}")
    return Hello(version=VERSION, role=role, pid=pid)
