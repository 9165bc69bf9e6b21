"""``lcpd key new``, and where commands that ask a daemon take the key from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import click
import pytest

from lcpd.cli.main import run
from lcpd.cli.remote import Daemon
from lcpd.keys import digest_of, read_keys

pytestmark = pytest.mark.usefixtures("own_home")
HASHED = f"ada sha256:{digest_of('one')}\n"


def test_a_new_key_and_its_line_fit_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["key", "new", "laptop"]) == 0
    _, secret, _, line = capsys.readouterr().out.splitlines()
    (read,) = read_keys(line, "out")
    assert (read.key.name, read.key.digest, read.secret) == ("laptop", digest_of(secret), None)
    assert secret not in line


def test_a_name_that_is_none_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["key", "new", "a b"]) == 2
    assert "at most 32 of A-Z" in capsys.readouterr().err


def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, api: str | None, admin: str | None = None, **variables: str):
    for name, text in (("API", api), ("ADMIN", admin)):
        if text is not None:
            (tmp_path / name).write_text(text)
            monkeypatch.setenv(f"LCPD_SERVER__{name}_KEY_FILE", str(tmp_path / name))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return Daemon(None, None).known


@pytest.mark.parametrize(
    ("api", "admin", "variables", "secret"),
    [
        ("one\ntwo\n", None, {}, "one"),
        (f"{HASHED}bob two rate=1/s\n", None, {}, "two"),
        ("one", "boss", {"LCPD_API_KEY": "env"}, "boss"),
        ("one", f"root sha256:{digest_of('boss')}", {"LCPD_API_KEY": "env"}, "one"),
        (HASHED, None, {"LCPD_API_KEY": "env"}, "env"),
        (None, None, {"LCPD_API_KEYS": "ada one"}, "one"),
        (None, None, {"LCPD_API_KEYS": "ada one", "LCPD_ADMIN_KEYS": "boss"}, "boss"),
        (HASHED, None, {}, None),
        (None, None, {}, None),
    ],
)
def test_commands_use_a_key_that_they_can_read(monkeypatch, tmp_path, api, admin, variables, secret) -> None:
    found = known(monkeypatch, tmp_path, api, admin, **variables)
    assert (found.secret if found else None) == secret


@pytest.mark.parametrize("text", ["# c\n\n  two # inline\n", f"{HASHED}bob two rate=1/m\n"])
def test_the_shell_word_gives_the_key(monkeypatch, tmp_path, text) -> None:
    (tmp_path / "it's").mkdir()
    word = known(monkeypatch, tmp_path / "it's", text).word
    assert subprocess.run(["sh", "-c", f"printf %s {word}"], capture_output=True, text=True).stdout == "two"


@pytest.mark.parametrize("variable", ["LCPD_API_KEYS", "LCPD_ADMIN_KEYS"])
@pytest.mark.parametrize("text", ["# c\n\n  t\\nwo\n", f"{HASHED}bob t\\nwo rate=1/m\n"])
def test_the_shell_word_gives_the_key_of_a_variable_too(monkeypatch, tmp_path, text, variable) -> None:
    word = known(monkeypatch, tmp_path, None, None, **{variable: text, "LCPD_API_KEY": "another"}).word
    assert subprocess.run(["sh", "-c", f"printf %s {word}"], capture_output=True, text=True).stdout == "t\\nwo"


def test_a_named_file_must_have_a_key_itself(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(HASHED)
    with pytest.raises(click.ClickException, match="hashes of keys only"):
        Daemon(None, tmp_path / "keys")


def test_another_daemon_is_sent_no_key_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LCPD_API_KEY", "one")
    assert Daemon("http://elsewhere", None).key is None
