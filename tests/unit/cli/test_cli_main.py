"""The command line: exit codes, errors, and flags that become settings."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from lcpd import __version__
from lcpd.cli.main import COMMANDS, main, run
from lcpd.config import Settings
from lcpd.config.loader import FLAGS
from lcpd.models import BadReference, ModelMissing


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in [name for name in os.environ if name.startswith("LCPD_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("LCPD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


class Daemon:
    """Stands in for the daemon: keeps the settings that it was started with."""

    def __init__(self) -> None:
        self.settings: list[Settings] = []
        self.code = 0
        self.error: Exception | None = None

    def run(self, settings: Settings) -> int:
        self.settings.append(settings)
        if self.error is not None:
            raise self.error
        return self.code


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    stand_in = Daemon()
    module = types.ModuleType("lcpd.app")
    module.run = stand_in.run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lcpd.app", module)
    return stand_in


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"lcpd {__version__}\n"


def test_the_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    for name, (_, _, summary) in COMMANDS.items():
        assert name in out and summary in out


def test_the_help_imports_no_command() -> None:
    code = (
        "import sys; from lcpd.cli.main import run; run(['--help'])\n"
        "sys.exit(sum(name in sys.modules for name in ('pydantic', 'aiohttp', 'huggingface_hub', 'rich')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["srve"], "lcpd: No such command 'srve'."),
        (["serve", "--prt", "1"], "lcpd: No such option '--prt'."),
        (["serve", "extra"], "lcpd: Got unexpected extra argument"),
        (["pull"], "lcpd: Missing argument 'REF'."),
    ],
)
def test_a_wrong_call_is_one_clear_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(message)
    assert all(line.startswith("lcpd: ") for line in captured.err.splitlines())
    assert captured.out == ""


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    assert "Commands:" in capsys.readouterr().err


def test_serve_without_flags_runs_with_the_defaults(daemon: Daemon) -> None:
    assert run(["serve"]) == 0
    assert daemon.settings == [Settings()]


def test_serve_takes_exactly_the_promised_flags(daemon: Daemon) -> None:
    promised = {
        "--host": "0.0.0.0",
        "--port": "9000",
        "--model": "demo:smollm2",
        "--ctx": "8192",
        "--slots": "2",
        "--kv": "q8_0",
        "--threads": "3",
        "--gpu-layers": "7",
        "--flash-attn": "on",
        "--batch": "1024",
        "--ubatch": "256",
        "--alias": "small",
        "--cache-ram": "1GiB",
        "--cache-dir": "/prompts",
        "--cache-disk": "2GiB",
        "--api-key-file": "/keys",
    }
    assert run(["serve", "--insecure", *(part for pair in promised.items() for part in pair)]) == 0
    (settings,) = daemon.settings
    server, model, cache = settings.server, settings.model, settings.cache
    assert (server.host, server.port, server.api_key_file) == ("0.0.0.0", 9000, Path("/keys"))
    assert (model.ref, model.ctx, model.slots, model.kv) == ("demo:smollm2", 8192, 2, "q8_0")
    assert (model.threads, model.gpu_layers, model.flash_attn) == (3, 7, "on")
    assert (model.batch, model.ubatch, model.alias) == (1024, 256, "small")
    assert (cache.ram, cache.dir, cache.disk) == (2**30, Path("/prompts"), 2**31)
    assert server.insecure
    assert set(FLAGS.values()) == {"--insecure", *promised}


def test_serve_reads_the_file_it_is_given(daemon: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[server]\nport = 1234\n")
    assert run(["serve", "--config", str(file)]) == 0
    assert daemon.settings[0].server.port == 1234


def test_serve_ends_with_the_exit_code_of_the_daemon(daemon: Daemon) -> None:
    daemon.code = 3
    assert run(["serve"]) == 3


def test_a_configuration_mistake_ends_before_the_daemon_starts(
    daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "--port", "x", "--kv", "q9"]) == 2
    assert daemon.settings == []
    assert capsys.readouterr().err.splitlines() == [
        "lcpd: server.port = 'x': must be a whole number from 0 to 65535 (from flag --port)",
        "lcpd: model.kv = 'q9': must be one of f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0"
        ' or "auto" (from flag --kv)',
    ]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ModelMissing("run: lcpd pull x"), 1, "lcpd: run: lcpd pull x\n"),
        (BadReference("no model"), 2, "lcpd: model.ref: no model\n"),
        (OSError(98, "Address already in use"), 1, "lcpd: [Errno 98] Address already in use\n"),
        (KeyboardInterrupt(), 130, "lcpd: interrupted\n"),
    ],
)
def test_a_failure_of_the_daemon_is_one_line(
    daemon: Daemon, error: Exception, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.error = error
    assert run(["serve"]) == code
    assert capsys.readouterr().err.strip("\n") + "\n" == message


def test_config_show_prints_where_values_come_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    home.mkdir()
    (home / "lcpd.toml").write_text('[model]\nkv = "q8_0"\n')
    monkeypatch.setenv("LCPD_MODEL__SLOTS", "2")
    assert run(["config", "show", "--json", "--ctx", "4096"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["model.kv"] == {"value": "q8_0", "origin": f"file {home / 'lcpd.toml'}"}
    assert shown["model.slots"] == {"value": 2, "origin": "environment LCPD_MODEL__SLOTS"}
    assert shown["model.ctx"] == {"value": 4096, "origin": "flag --ctx"}
    assert shown["server.port"] == {"value": 8080, "origin": "default"}


def test_config_show_never_prints_the_api_keys(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-very-secret\n")
    assert run(["config", "show", "--api-key-file", str(keys)]) == 0
    out = capsys.readouterr().out
    assert str(keys) in out and "sk-very-secret" not in out


def test_config_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "lcpd.toml"


def test_config_example_is_a_settings_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["config", "example"]) == 0
    file = tmp_path / "example.toml"
    file.write_text(capsys.readouterr().out)
    assert run(["config", "show", "--config", str(file)]) == 0


def test_pull_of_what_is_no_model_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pull", "what"]) == 2
    assert capsys.readouterr().err.startswith("lcpd: 'what' is no model")


def test_pull_of_a_file_has_nothing_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pull", "/models/a.gguf"]) == 2
    assert "use it with --model" in capsys.readouterr().err


def test_pull_of_the_hybrid_prints_where_it_ships(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pull", "demo:hybrid"]) == 0
    assert capsys.readouterr().out.endswith("lcpd-tiny-hybrid.gguf\n")


def test_a_terminal_that_has_no_boxes_gets_question_marks(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "argv", ["lcpd", "--version"])
    with pytest.raises(SystemExit):
        main()
    print("\u2588", file=out, flush=True)
    assert out.buffer.getvalue().endswith(b"?\n")  # type: ignore[attr-defined]
