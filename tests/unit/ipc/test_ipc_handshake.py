"""The handshake: a child answers its own version and role, and refuses all else in words."""

from __future__ import annotations

import msgspec
import pytest

from lcpd.ipc.handshake import VERSION, Hello, Refused, answer


def encoded(message: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(message)


def test_the_right_version_and_role_are_answered_with_the_childs_process_id() -> None:
    assert answer(encoded(Hello(VERSION, "chat")), "chat", 4711) == Hello(VERSION, "chat", 4711)


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_another_version_is_refused_naming_both(version: int) -> None:
    reply = answer(encoded(Hello(version, "engine")), "engine", 1)
    assert isinstance(reply, Refused)
    assert f"protocol {version}" in reply.reason
    assert f"speaks {VERSION}" in reply.reason


def test_another_role_is_refused_naming_both() -> None:
    reply = answer(encoded(Hello(VERSION, "chat")), "engine", 1)
    assert reply == Refused("this is a engine process, not 'chat'")


def test_a_hello_of_a_later_version_with_more_fields_is_still_understood_enough_to_refuse_it() -> None:
    later = msgspec.msgpack.encode({"type": "hello", "version": VERSION + 1, "role": "engine", "pid": 0, "new": [1]})
    reply = answer(later, "engine", 1)
    assert isinstance(reply, Refused)
    assert f"protocol {VERSION + 1}" in reply.reason


@pytest.mark.parametrize("payload", [b"", b"hello", msgspec.msgpack.encode({"type": "load"})])
def test_anything_but_a_hello_is_refused(payload: bytes) -> None:
    reply = answer(payload, "engine", 1)
    assert isinstance(reply, Refused)
    assert "must be a hello" in reply.reason
