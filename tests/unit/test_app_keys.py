"""Which keys the daemon takes from its files and its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcpd.app import keyring
from lcpd.config import ConfigError, Settings


def settings(**files: Path) -> Settings:
    return Settings(server={f"{name}_key_file": file for name, file in files.items()})


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
