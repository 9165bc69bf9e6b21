"""Which keys the daemon takes from its files and its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcpd.config import ConfigError, Settings
from lcpd.key_sources import KeySources
from lcpd.keys import Keyring


def settings(isolate: str = "off", **files: Path) -> Settings:
    return Settings(server={f"{name}_key_file": file for name, file in files.items()}, cache={"isolate": isolate})


def keyring(settings: Settings, environment: dict[str, str]) -> Keyring:
    return KeySources(settings, environment).read()


def names(ring: Keyring) -> list[str]:
    return [key.name for key in ring.keys]


def written(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


def test_files_and_variables_count_together_and_children_inherit_no_key(tmp_path: Path) -> None:
    environment = {"LCPD_API_KEYS": "bob two\ncarl three", "LCPD_ADMIN_KEYS": "root boss", "HOME": "/"}
    ring = keyring(settings(api=written(tmp_path / "api", "ada one")), environment)
    assert {key.name: key.admin for key in ring.keys} == {"ada": False, "bob": False, "carl": False, "root": True}
    assert environment == {"HOME": "/"}


def test_without_any_source_no_key_is_asked_for() -> None:
    ring = keyring(settings(), {})
    assert not ring.asked_for and not ring.has_admins


@pytest.mark.parametrize("text", ["", "# none\n"])
def test_a_source_without_a_key_is_refused_instead_of_opening_the_door(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="environment LCPD_API_KEYS holds no key; write one a line"):
        keyring(settings(), {"LCPD_API_KEYS": text})
    with pytest.raises(ConfigError, match=r"server.admin_key_file: .*admin holds no key"):
        keyring(settings(admin=written(tmp_path / "admin", text)), {})


def test_a_mistake_names_the_setting_the_file_and_the_line(tmp_path: Path) -> None:
    file = written(tmp_path / "keys", "ada one\nbob rate=1/m\n")
    with pytest.raises(ConfigError) as caught:
        keyring(settings(api=file), {})
    assert str(caught.value).startswith(f"server.api_key_file: {file}:2: rate= stands where the key belongs")


@pytest.mark.parametrize("second", ["ada two", "bob one"])
def test_what_is_in_a_file_and_the_variable_must_differ(tmp_path: Path, second: str) -> None:
    with pytest.raises(ConfigError, match="api_key_file and LCPD_API_KEYS both have the key"):
        keyring(settings(api=written(tmp_path / "keys", "ada one")), {"LCPD_API_KEYS": second})


def test_one_name_for_a_user_and_an_admin_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two keys are called ada"):
        keyring(settings(), {"LCPD_API_KEYS": "ada one", "LCPD_ADMIN_KEYS": "ada two"})


# ---- once more while the daemon runs -------------------------------------------------------------------------


def test_files_are_read_again_and_what_variables_had_stays(tmp_path: Path) -> None:
    file = written(tmp_path / "keys", "ada one\nbob two")
    sources = KeySources(settings(api=file), {"LCPD_ADMIN_KEYS": "root boss"})
    ring = sources.read()
    written(file, "bob two concurrency=1\ncarl three")
    sources.read_again(ring)
    assert names(ring) == ["bob", "carl", "root"]
    assert ring.find("Bearer one", None) is None
    assert (bob := ring.find("Bearer two", None)) is not None
    assert bob.concurrency == 1
    assert (root := ring.find(None, "boss")) is not None
    assert root.admin


@pytest.mark.parametrize("text", ["", "ada sk-one rate=often", "ada sk-one\nada two", None])
def test_a_file_that_cannot_be_used_leaves_the_keys_as_they_were_and_the_log_says_why(
    tmp_path: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(tmp_path / "keys", "ada sk-one")
    sources = KeySources(settings(api=file), {})
    ring = sources.read()
    if text is None:
        file.unlink()
    else:
        written(file, text)
    sources.read_again(ring)
    assert names(ring) == ["ada"]
    assert ring.asked_for
    assert f"the keys stay as they were: server.api_key_file: {file}" in caplog.text
    assert "sk-one" not in caplog.text


def test_where_caches_are_kept_apart_keys_can_go_and_come_back_but_new_ones_need_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(tmp_path / "keys", "ada one\nbob two")
    sources = KeySources(settings(isolate="key", api=file), {})
    ring = sources.read()
    for text in ("bob two", "ann one\nbob two"):
        written(file, text)
        sources.read_again(ring)
    assert names(ring) == ["ann", "bob"]
    written(file, "bob two\ncarl three")
    sources.read_again(ring)
    assert names(ring) == ["ann", "bob"]
    assert "new keys (carl) needs a restart" in caplog.text
