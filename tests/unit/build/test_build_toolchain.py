"""Compilers, CMake and ninja."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcpd.build import toolchain
from lcpd.build.errors import BuildError
from lcpd.build.toolchain import find_compiler, find_tool, parse_version


def tool(folder: Path, name: str, says: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "version"),
    [("cmake version 3.25.1", (3, 25, 1)), ("1.11.1.git.kitware", (1, 11, 1)), ("nothing", ())],
)
def test_a_version_is_the_first_dotted_number(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version


def test_the_systems_tool_is_taken_when_new_enough(tmp_path, monkeypatch) -> None:
    system = tool(tmp_path / "system", "cmake", "cmake version 3.28.0")
    packaged = tool(tmp_path / "packaged", "cmake", "cmake version 4.1.0")
    monkeypatch.setenv("PATH", str(system.parent))
    monkeypatch.setattr(toolchain.sysconfig, "get_path", lambda name: str(packaged.parent))
    assert find_tool("cmake") == str(system)


def test_the_packaged_tool_takes_the_place_of_an_old_one(tmp_path, monkeypatch) -> None:
    system = tool(tmp_path / "system", "cmake", "cmake version 3.16.3")
    packaged = tool(tmp_path / "packaged", "cmake", "cmake version 4.1.0")
    monkeypatch.setenv("PATH", str(system.parent))
    monkeypatch.setattr(toolchain.sysconfig, "get_path", lambda name: str(packaged.parent))
    assert find_tool("cmake") == str(packaged)


def test_a_missing_or_old_tool_is_named_with_the_remedy(tmp_path, monkeypatch) -> None:
    system = tool(tmp_path / "system", "ninja", "1.8.2")
    monkeypatch.setenv("PATH", str(system.parent))
    monkeypatch.setattr(toolchain.sysconfig, "get_path", lambda name: str(tmp_path / "none"))
    with pytest.raises(BuildError, match=r"ninja 1\.10 or newer.*1\.8\.2.*pip install ninja"):
        find_tool("ninja")


def test_cc_and_cxx_name_the_compiler(tmp_path) -> None:
    cc, cxx = tool(tmp_path / "b", "mycc", "mycc 9.1"), tool(tmp_path / "b", "my++", "my++ 9.1")
    found = find_compiler({"CC": str(cc), "CXX": str(cxx)})
    assert (found.cc, found.cxx, found.version) == (str(cc), str(cxx), "my++ 9.1")


def test_no_compiler_is_an_error_with_the_package_to_install(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="build-essential"):
        find_compiler({})


def test_the_users_flags_belong_to_the_compiler(tmp_path) -> None:
    cc, cxx = tool(tmp_path / "b", "mycc", "mycc 9.1"), tool(tmp_path / "b", "my++", "my++ 9.1")
    found = find_compiler({"CC": str(cc), "CXX": str(cxx), "CXXFLAGS": "-O2", "LDFLAGS": "", "HOME": "/"})
    assert found.flags == ("CXXFLAGS=-O2",)
