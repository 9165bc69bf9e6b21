"""What pip is asked for, and what is made of what it brings."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from lcpd.build import fetching
from lcpd.build.errors import BuildError
from lcpd.build.fetching import download, pip_command


def bring(*names: str):
    """A ``pip_command`` that puts files with these names, each holding ``x``, into the folder."""

    def command(package: str, version: str, folder: Path, from_source: bool) -> list[str]:
        script = 'mkdir -p "$1"; cd "$1"; shift; for n; do printf x > "$n"; done'
        return ["sh", "-c", script, "sh", str(folder), *names]

    return command


SHA = hashlib.sha256(b"x").hexdigest()


def test_only_the_package_itself_is_taken_from_source() -> None:
    command = pip_command("a-package", "1.0", Path("d"), from_source=True)
    assert command[command.index("--no-binary") + 1] == "a-package"
    assert "--no-deps" in command
    assert command[-1] == "a-package==1.0"


def test_wheels_are_never_built_from_source() -> None:
    command = pip_command("a-package", "1.0", Path("d"), from_source=False)
    assert command[command.index("--only-binary") + 1] == ":all:"


def test_the_file_with_the_pinned_hash_is_returned(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(fetching, "pip_command", bring("a.whl"))
    assert download("a", "1", SHA, tmp_path).read_text() == "x"


def test_a_file_with_another_hash_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(fetching, "pip_command", bring("a.whl"))
    with pytest.raises(BuildError, match=r"a\.whl has SHA-256 .* but pin\.toml says 000"):
        download("a", "1", "0" * 64, tmp_path)


def test_more_than_one_file_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(fetching, "pip_command", bring("a.whl", "b.whl"))
    with pytest.raises(BuildError, match="expected one file"):
        download("a", "1", SHA, tmp_path)


def test_an_environment_without_pip_is_told_how_to_get_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(fetching.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BuildError, match="ensurepip"):
        download("a", "1", SHA, tmp_path)
