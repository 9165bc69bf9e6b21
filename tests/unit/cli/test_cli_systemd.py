"""``lcpd systemd``: files below another root, so that nothing of this machine is touched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lcpd.cli.main import run

UNITS = ["lcpd.service", "lcpd.socket", "lcpd@.service", "lcpd@.socket"]
Command = Callable[..., int]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def units(root: Path) -> Path:
    return root / "etc/systemd/system"


@pytest.fixture
def systemd(own_home: None, root: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/home/ann/.config")
    return lambda *arguments: run(["systemd", arguments[0], "--root", str(root), *arguments[1:]])


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_installing_writes_the_files_and_says_what_comes_next(
    systemd: Command, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert systemd("install") == 0
    assert files(root) == [
        "etc/systemd/system/lcpd.service",
        "etc/systemd/system/lcpd.socket",
        "etc/systemd/system/lcpd@.service",
        "etc/systemd/system/lcpd@.socket",
        "etc/sysusers.d/lcpd.conf",
        "etc/tmpfiles.d/lcpd.conf",
    ]
    assert "systemctl enable --now lcpd.socket lcpd.service" in capsys.readouterr().out


def test_a_users_units_are_in_the_users_folder(
    systemd: Command, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert systemd("install", "--user") == 0
    assert files(root / "home/ann/.config/systemd/user") == UNITS
    assert not (root / "etc").exists()
    assert "systemctl --user enable --now lcpd.socket lcpd.service" in capsys.readouterr().out


def test_printing_writes_nothing(systemd: Command, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert systemd("install", "--print") == 0
    assert not root.exists()
    said = capsys.readouterr().out
    assert "# ---- /etc/systemd/system/lcpd.service\n" in said
    assert "Type=notify" in said


def test_an_instance_has_an_address_of_its_own(
    systemd: Command, units: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert systemd("install", "--instance", "coder", "--listen", "127.0.0.1:8081") == 0
    said = (units / "lcpd@coder.socket.d/50-listen.conf").read_text()
    assert said.endswith("[Socket]\nListenStream=127.0.0.1:8081\n")
    assert "ListenStream=127.0.0.1:8080\n" in (units / "lcpd.socket").read_text()
    assert "enable --now lcpd@coder.socket lcpd@coder.service" in capsys.readouterr().out


def test_an_instance_without_an_address_is_refused(systemd: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert systemd("install", "--instance", "coder") == 2
    assert "--instance needs --listen" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [(("--listen", "nowhere"), "--listen: 'nowhere' must be"), (("--instance", "a/b", "--listen", "1"), "--instance:")],
)
def test_wrong_values_are_refused(
    systemd: Command, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str
) -> None:
    assert systemd("install", *flags) == 2
    assert said in capsys.readouterr().err


def test_installing_again_keeps_the_address(systemd: Command, units: Path) -> None:
    systemd("install", "--listen", "0.0.0.0:9000")
    systemd("install")
    assert "ListenStream=0.0.0.0:9000\n" in (units / "lcpd.socket").read_text()


def test_a_changed_unit_is_kept_and_that_is_said(
    systemd: Command, units: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    systemd("install")
    unit = units / "lcpd.service"
    unit.write_text(unit.read_text().replace("WatchdogSec=60", "WatchdogSec=5"))
    assert systemd("install") == 0
    kept = units / "lcpd.service.before-lcpd-1"
    assert f"what was there is now {kept}" in capsys.readouterr().out
    assert "WatchdogSec=5\n" in kept.read_text()
    assert "WatchdogSec=60\n" in unit.read_text()


def test_uninstalling_removes_everything_that_was_installed(systemd: Command, root: Path) -> None:
    systemd("install")
    systemd("install", "--instance", "coder", "--listen", "8081")
    assert systemd("uninstall") == 0
    assert files(root) == []
    assert not (root / "etc/systemd/system/lcpd@coder.socket.d").exists()


def test_uninstalling_leaves_what_was_changed_and_what_is_not_ours(
    systemd: Command, units: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    systemd("install")
    (units / "lcpd.socket").write_text("[Socket]\n")
    (units / "other.service").write_text("")
    assert systemd("uninstall") == 0
    assert files(units) == ["lcpd.socket", "other.service"]
    assert f"left {units / 'lcpd.socket'}: it was changed" in capsys.readouterr().out


def test_uninstalling_an_instance_leaves_the_others(systemd: Command, units: Path) -> None:
    for name in ("coder", "writer"):
        systemd("install", "--instance", name, "--listen", "8081")
    assert systemd("uninstall", "--instance", "coder") == 0
    assert files(units) == sorted([*UNITS, "lcpd@writer.socket.d/50-listen.conf"])


def test_uninstalling_an_instance_that_is_not_there_is_an_error(
    systemd: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert systemd("uninstall", "--instance", "coder") == 1
    assert "lcpd@coder is not installed" in capsys.readouterr().err


def test_a_system_service_of_an_lcpd_in_a_home_is_refused_with_what_to_do(
    own_home: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.prefix", "/home/ann/venv")
    assert run(["systemd", "install"]) == 1
    said = capsys.readouterr().err
    assert "cannot reach" in said
    assert "/home/ann/venv" in said
    assert "--user" in said
