"""Hostile bodies on every route: no 5xx, nothing dies, and memory stays bounded.

What is wrong in fields is drawn from a fixed seed; with ``LCPD_SCHEMA_EXAMPLES=1000`` so much for each route, and anew.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Iterable

import httpx
import pytest
from benchmarks.servers import Server
from hostile_bodies import (
    BASES,
    HI,
    Hostile,
    broken_json,
    deep,
    large,
    packed,
    routes,
    wrong_fields,
)
from schema_daemon import ADMIN_KEY, CLIENT_TIMEOUT, MAX_BODY, peak_memory

pytestmark = pytest.mark.schema
SHORT = 25
EXAMPLES = int(os.environ.get("LCPD_SCHEMA_EXAMPLES", SHORT))
SOME = ("/v1/chat/completions", "/v1/completions", "/tokenize")
"""Routes for what takes long."""
WITHIN = 60
"""Seconds after which an answer does not come any more."""
MEMORY = 40 * MAX_BODY
"""Bytes that the daemon itself may need beyond what it had; it works on one of these bodies after the other."""
ALLOWED = {501: "the model is none for embeddings, reranking or infilling"}
"""Statuses from 500 on that are right, and why."""


def send(server: Server, hostile: Hostile) -> httpx.Response:
    headers = {**hostile.headers, "x-api-key": ADMIN_KEY}
    return httpx.post(server.url + hostile.path, content=hostile.data, headers=headers, timeout=WITHIN)


def send_all(server: Server, bodies: Iterable[Hostile]) -> set[int]:
    """The statuses of the answers, each of which is a good one."""
    seen = set()
    for hostile in bodies:
        answer = send(server, hostile)
        seen.add(answer.status_code)
        assert answer.status_code < 500 or answer.status_code in ALLOWED, (
            hostile.path,
            hostile.name,
            answer.text[:500],
        )
        if answer.status_code >= 400:
            assert answer.json()["error"]["message"], (hostile.path, hostile.name)
    assert is_well(server)
    return seen


def is_well(server: Server) -> bool:
    """Whether the engine never died, and a chat is answered."""
    health = httpx.get(f"{server.url}/health", timeout=WITHIN).json()
    chat = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": HI, "max_tokens": 2}, timeout=WITHIN)
    return bool(health["restarts"] == 0 and chat.status_code == 200)


def test_every_route_with_a_body_has_a_good_one_here(server: Server) -> None:
    assert set(BASES) == set(routes())


@pytest.mark.parametrize("path", BASES)
def test_fields_with_something_wrong_in_them(server: Server, path: str) -> None:
    rng = random.Random(f"{path} {0 if EXAMPLES == SHORT else time.time()}")
    assert 400 in send_all(server, wrong_fields(path, EXAMPLES, rng)) | {400}


@pytest.mark.parametrize("path", BASES)
def test_what_is_no_json(server: Server, path: str) -> None:
    assert 400 in send_all(server, broken_json(path))


@pytest.mark.parametrize("path", BASES)
def test_nesting_without_end(server: Server, path: str) -> None:
    before = peak_memory(server)
    assert 400 in send_all(server, deep(path))
    assert peak_memory(server) - before < MEMORY


@pytest.mark.parametrize("path", SOME if EXAMPLES == SHORT else BASES)
def test_bodies_of_ten_megabytes(server: Server, path: str) -> None:
    before = peak_memory(server)
    send_all(server, large(path))
    assert peak_memory(server) - before < MEMORY


@pytest.mark.parametrize("path", SOME if EXAMPLES == SHORT else BASES)
def test_encodings_and_types_that_nobody_asked_for(server: Server, path: str) -> None:
    before = peak_memory(server)
    assert {400, 415} <= send_all(server, packed(path))
    assert peak_memory(server) - before < MEMORY


def test_a_body_larger_than_the_limit_is_refused_before_it_is_read(server: Server) -> None:
    before = peak_memory(server)
    assert send_all(server, [Hostile("large", "/tokenize", b" " * (MAX_BODY + 1))]) == {413}
    assert peak_memory(server) - before < MEMORY


HEAD = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
UNENDING = {
    "chunks": "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    "length": "Content-Length: 1000\r\n\r\n{",
    "headers": "X-More: ",
}


@pytest.mark.parametrize("kind", UNENDING)
def test_what_is_never_sent_to_its_end_is_waited_for_no_longer_than_the_limit(server: Server, kind: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10 * CLIENT_TIMEOUT) as client:
        client.sendall((HEAD + UNENDING[kind]).encode())
        while client.recv(4096):  # the server closes the connection, or this times out
            pass
    assert is_well(server)


def test_who_never_ends_sending_gets_an_answer_and_is_then_cut_off(server: Server) -> None:
    before = peak_memory(server)
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=WITHIN) as client:
        client.sendall((HEAD + "Transfer-Encoding: chunked\r\n\r\n").encode())
        client.sendall(chunk * (MAX_BODY // 0x10000 + 1))
        assert client.recv(4096).startswith(b"HTTP/1.1 413")
        with pytest.raises(ConnectionError):
            for _ in range(WITHIN * 20):
                client.sendall(chunk)
                time.sleep(0.05)
    assert peak_memory(server) - before < MEMORY
    assert is_well(server)
