"""``lcpd cache``: the tree, why a request computed what it did, and pins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from stub_daemon import served

from lcpd.cli.cache import explained, quoted
from lcpd.cli.main import run

RAM = {
    "size": 8 * 2**30, "used": 2**30, "segments": 3, "segment_bytes": 900 * 2**20, "checkpoints": 1,
    "checkpoint_bytes": 100 * 2**20, "tokens": 20_000,
}  # fmt: skip
HEAD = {
    "id": 0, "parent": None, "depth": 0, "begin": 0, "tokens": 12_000, "ram": 12_000, "vram": 11_000, "bytes": 2**20,
    "checkpoints": [11_000], "hits": 7, "age": 75.0, "held": True,
}  # fmt: skip
TAIL = {
    "id": 1, "parent": 0, "depth": 1, "begin": 12_000, "tokens": 500, "ram": 0, "vram": 0, "bytes": 0,
    "checkpoints": [], "hits": 0, "age": None, "held": False, "text": "[red]a\nnew line",
}  # fmt: skip
VIEW = {"ram": RAM, "branches": [HEAD, TAIL], "omitted": 1234, "pins": [{"pin": 3, "tokens": 12_000}]}
DIVERGED = {
    "reason": "diverged", "begin": 1234, "end": 5000, "detail": "", "position": 1234, "role": "system",
    "text": {"before": "today is ", "ours": "Tuesday", "theirs": "Monday"},
}  # fmt: skip
REPORT = {
    "id": "chatcmpl-1", "prompt": 6000, "hit": 1234, "vram": 1000, "shared": 0, "ram": 234,
    "why": [
        DIVERGED,
        {"reason": "no checkpoint", "begin": 5000, "end": 5500, "detail": "none between 5000 and 5500"},
        {"reason": "new", "begin": 5500, "end": 6000, "detail": ""},
    ],
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("own_home")


class Server:
    """Answers what the test says, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, object] = {"/cache": VIEW}
        self.status = 200
        self.asked: list[tuple[str, str, object, str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer("GET", None)

            def do_POST(self) -> None:
                self.answer("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def answer(self, method: str, body: object) -> None:
                outer.asked.append((method, self.path, body, self.headers["Authorization"]))
                self.send_response(outer.status)
                self.end_headers()
                self.wfile.write(json.dumps(outer.answers[self.path]).encode())

            def log_message(self, *_: object) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    with served(server.http):
        yield server


def test_the_tree_shows_sizes_tiers_and_use(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", "--url", server.url]) == 0
    out = capsys.readouterr().out
    assert "RAM: 1.00 GiB of 8.00 GiB used (12 %): 20,000 tokens in 3 segments (900.0 MiB)" in out
    assert (
        "0 + 12,000 tokens · vram 11,000, ram 12,000 · 1.0 MiB · checkpoints 1 · hits 7 · 1.2 min ago · pinned" in out
    )
    # A text is shown as it is: on one line, and no markup.
    assert '12,000 + 500 tokens · forgotten · "[red]a\\nnew line"' in out
    assert "1,234 smaller branches are not shown" in out
    assert "pinned" in out


def test_an_empty_cache_is_shown(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["/cache"] = {"ram": {**RAM, "size": 0, "used": 0}, "branches": [], "omitted": 0, "pins": []}
    assert run(["cache", "--url", server.url]) == 0
    assert "not shown" not in capsys.readouterr().out


def test_a_divergence_is_told_in_words(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["/cache/requests/chatcmpl-1"] = REPORT
    assert run(["cache", "--url", server.url, "why", "chatcmpl-1"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "6,000 tokens in the prompt, 1,234 of them not computed again (1,000 in its slot, 234 from RAM)" in text
    assert 'token 1,234 in the system message: "today is Monday" became "today is Tuesday"' in text
    assert "computed 5,000 to 5,500 (500): no checkpoint: none between 5000 and 5500" in text
    assert "lost: 4,266 tokens" in text


def test_without_texts_the_place_is_told() -> None:
    part = {name: value for name, value in DIVERGED.items() if name != "text"}
    assert "diverged at token 1,234 in the system message" in explained({**REPORT, "why": [part]})


def test_where_all_is_new_nothing_was_lost() -> None:
    text = explained({**REPORT, "why": [{"reason": "new", "begin": 0, "end": 5, "detail": ""}]})
    assert "nothing was lost" in text


def test_what_was_put_right_is_told() -> None:
    text = explained({**REPORT, "normalised": ["tool-order"]})
    assert "the tools came in another order than before" in text


def test_an_unknown_request_is_told_as_the_daemon_does(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.status = 404
    server.answers["/cache/requests/a%2Fb"] = {"error": {"message": "There is no cache report of 'a/b'"}}
    assert run(["cache", "--url", server.url, "why", "a/b"]) == 1
    assert capsys.readouterr().err == "lcpd: There is no cache report of 'a/b'\n"


@pytest.mark.parametrize(
    ("text", "body"),
    [('{"messages": []}', {"messages": []}), ("a prompt", {"prompt": "a prompt"}), ("[1]", {"prompt": "[1]"})],
)
def test_a_file_with_a_chat_or_a_prompt_is_pinned_with_the_admin_key(
    text: str, body: object, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "file").write_text(text)
    (tmp_path / "user").write_text("a-users\n")
    (tmp_path / "admin").write_text("the-admins\n")
    monkeypatch.setenv("LCPD_SERVER__PORT", str(server.http.server_port))
    monkeypatch.setenv("LCPD_SERVER__API_KEY_FILE", str(tmp_path / "user"))
    monkeypatch.setenv("LCPD_SERVER__ADMIN_KEY_FILE", str(tmp_path / "admin"))
    server.answers["/cache/pin"] = {"pin": 2, "tokens": 700, "ram": 300}
    assert run(["cache", "pin", str(tmp_path / "file")]) == 0
    assert server.asked == [("POST", "/cache/pin", body, "Bearer the-admins")]
    assert capsys.readouterr().out == "pin 2: 700 tokens, of which 300 are in RAM now\n"


def test_a_file_that_is_no_text_is_said_so(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_bytes(b"\xff\xfe")
    assert run(["cache", "--url", server.url, "pin", str(tmp_path / "file")]) == 1
    assert "neither JSON nor text" in capsys.readouterr().err


def test_an_empty_file_is_not_pinned(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_bytes(b"\n")
    assert run(["cache", "--url", server.url, "pin", str(tmp_path / "file")]) == 1
    assert "file is empty" in capsys.readouterr().err
    assert not server.asked


def test_a_pin_is_undone_by_its_number(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["/cache/unpin"] = {"unpinned": [2]}
    assert run(["cache", "--url", server.url, "unpin", "2"]) == 0
    assert server.asked == [("POST", "/cache/unpin", {"pin": 2}, None)]
    assert "pin 2 is undone" in capsys.readouterr().out


def test_a_purge_says_what_went(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    disk = {"files": 1200, "bytes": 2**31}
    server.answers["/cache/purge"] = {"purged": {"ram": {"bytes": 2**30}, "disk": disk, "responses": {"count": 3}}}
    assert run(["cache", "--url", server.url, "purge", "--yes"]) == 0
    assert server.asked == [("POST", "/cache/purge", {}, None)]
    out = capsys.readouterr().out
    assert "RAM: 1.00 GiB removed" in out
    assert "disk: 1,200 files (2.00 GiB) removed" in out
    assert "stored responses: 3 removed" in out


def test_a_purge_asks_first(server: Server) -> None:
    assert run(["cache", "--url", server.url, "purge"]) != 0
    assert server.asked == []


def test_the_disk_is_shown_with_what_is_wrong_with_it(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    disk = {"size": 2**31, "used": 2**30, "files": 1200, "queue": 3, "state": "degraded", "reason": "full: no space"}
    server.answers["/cache"] = {**VIEW, "disk": disk}
    assert run(["cache", "--url", server.url]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "disk: 1.00 GiB of 2.00 GiB used (50 %) in 1,200 files, 3 conversations wait to be written" in out
    assert "degraded: full: no space" in out


def test_a_quoted_text_stays_on_its_line() -> None:
    assert quoted('a "b"\n\tc é') == '"a \\"b\\"\\n\\tc é"'
