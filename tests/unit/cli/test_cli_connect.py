"""``lcpd connect`` and ``lcpd doctor``, against a stand-in for the daemon and files of a home of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from stub_daemon import served

from lcpd.cli.main import run
from lcpd.connect.clients import CLIENTS

LIMITS = {"context": 65536, "safe_context": 62260, "output": 8192}
VARIABLES = (
    "CLAUDE_CONFIG_DIR", "CODEX_HOME", "OPENCODE_CONFIG", "PI_CODING_AGENT_DIR", "CLINE_DIR", "CLINE_DATA_DIR",
    "XDG_CONFIG_HOME", "LCPD_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL",
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("own_home")


class Server:
    """Answers GET /v1/models; with a `key` only to who sends it."""

    def __init__(self) -> None:
        self.key: str | None = None
        self.entry: dict = {"id": "demo:hybrid", "limits": LIMITS}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = outer.key is None or self.headers["Authorization"] == f"Bearer {outer.key}"
                self.send_response(200 if known and self.path == "/v1/models" else 401 if not known else 404)
                self.end_headers()
                self.wfile.write(json.dumps({"object": "list", "data": [outer.entry]}).encode() if known else b"{}")

            def log_message(self, *_: object) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The daemon of the settings."""
    server = Server()
    monkeypatch.setenv("LCPD_SERVER__PORT", str(server.http.server_port))
    with served(server.http):
        yield server


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "me"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
def keys(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The daemon asks for a key, which the settings know; there is an admin's key, too."""
    server.key = "sk-ours"
    files = {"API": tmp_path / "keys", "ADMIN": tmp_path / "admins"}
    for name, file in files.items():
        monkeypatch.setenv(f"LCPD_SERVER__{name}_KEY_FILE", str(file))
    files["API"].write_text("# ours\nsk-ours\n")
    files["ADMIN"].write_text("sk-admin\n")
    return files["API"]


def everything(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_is_connected_checked_and_disconnected(
    client: str, server: Server, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", client]) == 1
    assert "does not exist" in capsys.readouterr().out
    assert run(["connect", client, "--apply"]) == 0
    assert "created: " in capsys.readouterr().out
    assert server.url in b"".join(everything(home).values()).decode()
    assert run(["doctor", client]) == 0, capsys.readouterr().out
    assert run(["connect", client, "--apply"]) == 0
    assert "unchanged: " in capsys.readouterr().out
    assert run(["connect", client, "--undo"]) == 0
    assert everything(home) == {}


@pytest.mark.parametrize("client", CLIENTS)
def test_printing_changes_nothing_and_shows_no_key(
    client: str, server: Server, keys: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["connect", client]) == 0
    out = capsys.readouterr().out
    assert server.url in out and "demo:hybrid" in out
    assert "sk-" not in out
    assert everything(home) == {}


@pytest.mark.parametrize("client", CLIENTS)
def test_with_a_key_the_client_gets_that_one_and_never_the_admins(
    client: str, keys: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["connect", client, "--apply"]) == 0
    files = b"".join(everything(home).values()).decode()
    assert "sk-admin" not in files
    if "sk-ours" not in files:
        assert f"_API_KEY=\"$(awk 'NR == 2 {{print $1}}' {keys})\"" in capsys.readouterr().out
        assert run(["doctor", client]) == 1
        assert "_API_KEY is not set" in capsys.readouterr().out
        monkeypatch.setenv("LCPD_API_KEY", "sk-ours")
        monkeypatch.setenv("OPENAI_API_KEY", "sk-ours")
    assert run(["doctor", client]) == 0, capsys.readouterr().out


def test_what_was_in_the_files_comes_back_byte_by_byte(server: Server, home: Path) -> None:
    file = home / ".config" / "opencode" / "opencode.jsonc"
    file.parent.mkdir(parents=True)
    file.write_text('{\n\t// theirs\n\t"theme": "dark",\n\t"model": "other/one",\n}')
    before = everything(home)
    assert run(["connect", "opencode", "--apply"]) == 0
    assert "// theirs" in file.read_text() and '"theme": "dark"' in file.read_text()
    assert run(["connect", "opencode", "--undo"]) == 0
    assert everything(home) == before


def test_a_value_changed_since_is_left_and_told(server: Server, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["connect", "codex", "--apply"]) == 0
    file = home / ".codex" / "config.toml"
    file.write_text(file.read_text().replace("= 65536", "= 4096") + '\n[projects."/x"]\ntrust_level = "trusted"\n')
    assert run(["connect", "codex", "--undo"]) == 0
    assert "model_context_window was changed since" in capsys.readouterr().out
    assert file.read_text().split() == [
        "model_context_window", "=", "4096", '[projects."/x"]', "trust_level", "=", '"trusted"',
    ]  # fmt: skip


def test_drift_is_found_and_the_remedy_works(server: Server, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["connect", "opencode", "--apply"]) == 0
    server.entry = {"id": "demo:hybrid", "limits": {"context": 32768, "safe_context": 31130, "output": 8192}}
    capsys.readouterr()
    assert run(["doctor", "opencode"]) == 1
    out = capsys.readouterr().out
    assert "limit.context is 62260, and the server has 32768; it should be 31130" in out
    assert "lcpd connect opencode --apply" in out
    assert run(["connect", "opencode", "--apply"]) == 0
    assert run(["doctor", "opencode"]) == 0


def test_the_address_and_key_of_the_client_itself_are_tried(
    server: Server, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["connect", "claude-code", "--apply"]) == 0
    server.key = "sk-new"
    (home / "keys").write_text("sk-new\n")
    assert run(["doctor", "claude-code", "--api-key-file", str(home / "keys")]) == 1
    assert "does not take the client's API key" in capsys.readouterr().out
    file = home / ".claude" / "settings.json"
    file.write_text(file.read_text().replace(server.url, "http://127.0.0.1:1"))
    assert run(["doctor", "claude-code", "--api-key-file", str(home / "keys")]) == 1
    assert "nobody answers at http://127.0.0.1:1" in capsys.readouterr().out


def test_a_variable_that_overrides_the_file_is_found(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["connect", "claude-code", "--apply"]) == 0
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "https://elsewhere")
    assert run(["doctor", "claude-code"]) == 1
    assert "ANTHROPIC_BASE_URL is https://elsewhere in this environment" in capsys.readouterr().out


def test_a_broken_file_is_named_and_left_alone(server: Server, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / ".claude").mkdir()
    (home / ".claude" / "settings.json").write_text("{oops")
    assert run(["connect", "claude-code", "--apply"]) == 1
    assert "settings.json: it is no valid JSON in line 1: correct it first" in capsys.readouterr().err
    assert (home / ".claude" / "settings.json").read_text() == "{oops"
    assert run(["doctor", "claude-code"]) == 1


def test_a_model_that_is_still_being_loaded_is_said_so(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.entry = {"id": "demo:hybrid"}
    assert run(["connect", "pi"]) == 1
    assert "being loaded" in capsys.readouterr().err


def test_no_daemon_and_nothing_to_undo_are_clear_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "pi", "--url", "http://127.0.0.1:1"]) == 1
    assert "no daemon answers" in capsys.readouterr().err
    assert run(["connect", "pi", "--undo"]) == 1
    assert "nothing to undo" in capsys.readouterr().err
    assert run(["connect", "emacs"]) == 2
    assert "'emacs' is not one of" in capsys.readouterr().err
