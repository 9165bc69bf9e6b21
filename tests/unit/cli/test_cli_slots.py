"""``lcpd slots``: the table, the keys, and what is said when no daemon answers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from stub_daemon import served

from lcpd.cli.main import run

BUSY = {
    "id": 0, "state": "decode", "n_tokens": 1234, "shared": 1000, "request": 17, "prompt_tokens": 1200, "done": 1200,
    "generated": 34, "priority": "interactive", "client": "10.0.0.7 abc", "age": 75.0, "tokens_per_second": 41.27,
}  # fmt: skip
IDLE = {
    "id": 1, "state": "idle", "n_tokens": 88, "shared": 0, "request": None, "prompt_tokens": 0, "done": 0,
    "generated": 0, "priority": None, "client": "", "age": 7200.0, "tokens_per_second": 0.0,
}  # fmt: skip
WAITING = {
    "request": 18, "state": "parked", "priority": "background", "client": "10.0.0.8", "waited": 3.25,
    "prompt_tokens": 500, "generated": 12,
}  # fmt: skip
VIEW = {"slots": [BUSY, IDLE], "waiting": [WAITING], "cells": 4096, "cells_used": 322}

pytestmark = pytest.mark.usefixtures("own_home")


class Server:
    """Answers GET /slots; with a `key` only to who sends it."""

    def __init__(self) -> None:
        self.body: object = VIEW
        self.key: str | None = None
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = outer.key is None or self.headers["Authorization"] == f"Bearer {outer.key}"
                status = 401 if not known else 404 if self.path != "/slots" else outer.status
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(outer.body).encode())

            def log_message(self, *_: object) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    with served(server.http):
        yield server


def rows(out: str) -> list[list[str]]:
    """The cells of all rows."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]


def test_slots_and_who_waits_are_shown(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["slots", "--url", server.url]) == 0
    out = capsys.readouterr().out
    assert "322 of 4096 cells used" in out
    assert rows(out) == [
        ["0", "decode", "1234", "1000", "17", "1200/1200", "34", "41.3", "1.2 min", "interactive", "10.0.0.7 abc"],
        ["1", "idle", "88", "0", "", "", "", "", "2.0 h", "", ""],
        ["18", "parked", "background", "3.2 s", "500", "12", "10.0.0.8"],
    ]


def test_nobody_waiting_needs_no_table(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.body = {**VIEW, "waiting": []}
    assert run(["slots", "--url", server.url + "/"]) == 0
    assert "waiting" not in capsys.readouterr().out


def test_without_a_url_the_daemon_of_the_settings_is_asked(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.key = "secret"
    (tmp_path / "keys").write_text("# ours\nsecret\n")
    monkeypatch.setenv("LCPD_SERVER__HOST", "0.0.0.0")
    monkeypatch.setenv("LCPD_SERVER__PORT", str(server.http.server_port))
    monkeypatch.setenv("LCPD_SERVER__API_KEY_FILE", str(tmp_path / "keys"))
    assert run(["slots"]) == 0
    assert "decode" in capsys.readouterr().out


def test_the_key_of_the_settings_is_not_sent_to_another_url(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.key = "secret"
    (tmp_path / "keys").write_text("secret\n")
    monkeypatch.setenv("LCPD_SERVER__API_KEY_FILE", str(tmp_path / "keys"))
    assert run(["slots", "--url", server.url]) == 1
    assert "--api-key-file" in capsys.readouterr().err
    assert run(["slots", "--url", server.url, "--api-key-file", str(tmp_path / "keys")]) == 0


@pytest.mark.parametrize(("text", "words"), [("# none\n", "holds no key"), (None, "cannot be read")])
def test_a_key_file_without_a_key_is_said_so(
    text: str | None, words: str, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "keys").write_text(text)
    assert run(["slots", "--url", server.url, "--api-key-file", str(tmp_path / "keys")]) == 1
    assert words in capsys.readouterr().err


def test_no_daemon_is_one_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        assert run(["slots", "--url", url]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"lcpd: no daemon answers at {url} (")
    assert "lcpd serve" in captured.err
    assert captured.out == ""


def test_something_else_at_that_address_is_said_so(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.body, server.status = {"hello": 1}, 200
    assert run(["slots", "--url", server.url]) == 1
    assert "is no lcpd daemon" in capsys.readouterr().err


def test_a_url_that_is_none_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["slots", "--url", "localhost:8080"]) == 1
    assert "localhost:8080" in capsys.readouterr().err
