"""A service manager listens for lcpd, is told how it does, and restarts it under clients that retry nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from e2e.service_manager import ServiceManagerStandIn

pytestmark = pytest.mark.native

SMALL = ("--ctx", "4096", "--slots", "2")


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(64)
        yield sock


@pytest.fixture
def manager(tmp_path: Path, listening: socket.socket) -> Iterator[ServiceManagerStandIn]:
    manager = ServiceManagerStandIn(tmp_path, listening)
    yield manager
    manager.close()


def url(listening: socket.socket) -> str:
    host, port = listening.getsockname()
    return f"http://{host}:{port}/v1/chat/completions"


def body(**fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "Count to three."}], "temperature": 0, "max_tokens": 16, **fields}


def streamed(client: httpx.Client, address: str, **fields: object) -> tuple[str, bool]:
    """The text of a streamed reply, and whether it came to its end."""
    text, done = "", False
    with client.stream("POST", address, json=body(stream=True, **fields)) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["delta"].get("content") or ""
    return text, done


def test_a_client_that_connects_while_no_daemon_runs_is_answered_by_the_next_one(manager, listening):
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(httpx.post, url(listening), json=body(), timeout=120)
        with socket.create_connection(listening.getsockname()):
            daemon = manager.launch(*SMALL)
        assert answer.result().status_code == 200
    manager.wait_until_told("READY=1")
    assert daemon.stop() == 0, daemon.log
    assert f"on http://127.0.0.1:{listening.getsockname()[1]}" in daemon.log


def test_it_is_told_how_loading_goes_then_that_a_token_can_be_generated_then_that_it_stops(manager):
    daemon = manager.start(*SMALL)
    assert daemon.stop() == 0
    manager.wait_until_told("STOPPING=1")
    told = [line for line in manager.told if not line.startswith(("FDSTORE", "FDNAME", "FDPOLL"))]
    assert told[0].startswith("STATUS=loading demo:hybrid: ")
    assert told[1] == "EXTEND_TIMEOUT_USEC=60000000"
    assert told[-5:-2] == ["READY=1", "STATUS=serving demo:hybrid", "STOPPING=1"]
    assert int(told[-2].removeprefix("EXTEND_TIMEOUT_USEC=")) > 30e6
    assert told[-1] == "STATUS=stopping"


def test_a_model_that_cannot_be_loaded_is_never_ready_but_answers_who_waited(manager, listening, tmp_path):
    from lcpd.paths import demo_model

    model = tmp_path / "broken.gguf"
    model.write_bytes(demo_model().read_bytes().replace(b"qwen35", b"qwen99"))  # an architecture that is none
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(httpx.post, url(listening), json=body(), timeout=120)
        with socket.create_connection(listening.getsockname()):
            daemon = manager.launch(*SMALL, "--model", str(model))
        assert answer.result().status_code in (400, 503)
    assert daemon.process.wait(60) == 1
    assert "READY=1" not in manager.told
    assert any(line.startswith("STATUS=failed: ") for line in manager.told)


def test_the_watchdog_is_fed_while_lcpd_is_idle_and_not_while_it_does_not_answer(manager):
    daemon = manager.start(*SMALL, WATCHDOG_USEC="300000")
    manager.wait_until_told("WATCHDOG=1")
    manager.told.clear()
    manager.wait_until_told("WATCHDOG=1")
    os.kill(daemon.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, daemon.process.pid, os.WSTOPPED)
    manager.told.clear()
    with pytest.raises(httpx.TimeoutException):
        httpx.get(f"{daemon.url}/health", timeout=1)
    assert "WATCHDOG=1" not in manager.told


def test_a_socket_that_does_not_listen_is_an_error_that_says_what_to_change(tmp_path):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        manager = ServiceManagerStandIn(tmp_path, sock)
        daemon = manager.launch(*SMALL)
        assert daemon.process.wait(60) == 2
        assert "named 'lcpd-http' that does not listen; use Accept=no" in daemon.log
        manager.close()


def test_a_unix_socket_is_served_too(tmp_path):
    path = str(tmp_path / "http")
    with socket.socket(socket.AF_UNIX) as sock, httpx.Client(transport=httpx.HTTPTransport(uds=path)) as client:
        sock.bind(path)
        sock.listen()
        manager = ServiceManagerStandIn(tmp_path, sock)
        daemon = manager.launch(*SMALL)
        answer = client.post("http://localhost/v1/chat/completions", json=body(), timeout=120)
        assert answer.status_code == 200
        assert f"on unix:{path}" in daemon.log
        manager.close()


@pytest.mark.parametrize("keep_alive", [False, True], ids=["a connection each", "connections kept alive"])
def test_restarts_are_only_pauses_for_clients_that_retry_nothing(manager, listening, keep_alive):
    enough = threading.Event()

    def work(number: int) -> list[tuple[str, bool]]:
        replies = []
        limits = httpx.Limits(max_keepalive_connections=1 if keep_alive else 0)
        with httpx.Client(timeout=120, limits=limits) as client:
            while not enough.is_set():
                replies.append(streamed(client, url(listening), max_tokens=8 + 40 * (number % 2)))
        return replies

    daemon = manager.start(*SMALL)
    with ThreadPoolExecutor() as threads:
        working = [threads.submit(work, number) for number in range(4)]
        for _ in range(3):
            assert daemon.stop() == 0, daemon.log
            daemon = manager.start(*SMALL)
        enough.set()
        for number, replies in enumerate(future.result() for future in working):
            assert len(replies) >= 3
            assert all(done for _, done in replies), number
            assert len({text for text, _ in replies}) == 1, number
