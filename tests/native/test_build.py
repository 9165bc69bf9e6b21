"""The finished build that `make test` made: what it holds, and that the self-test can tell good from bad."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lcpd.build import Build, require_active
from lcpd.build.errors import BuildError
from lcpd.build.pin import load_pin
from lcpd.build.selftest import run
from lcpd.native import ABI
from lcpd.paths import native_recipe

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def built() -> Build:
    return require_active()


def dynamic_section(path: Path) -> str:
    return subprocess.run(["readelf", "-d", str(path)], check=True, text=True, stdout=subprocess.PIPE).stdout


def test_the_active_build_passes_its_selftest(built: Build) -> None:
    findings = run(built.lib_dir, None, None)
    assert findings.abi == built.abi == ABI
    assert findings.build in built.llama_cpp
    assert any(name.startswith("CPU") for name in findings.devices)


def test_the_libraries_find_each_other_without_any_environment(built: Build) -> None:
    for library in built.lib_dir.glob("lib*.so"):
        assert re.search(r"RUNPATH.*\[\$ORIGIN", dynamic_section(library)), library.name


def test_a_build_that_was_moved_still_passes(built: Build, tmp_path) -> None:
    moved = Path(shutil.copytree(built.lib_dir, tmp_path / "elsewhere", symlinks=True))
    assert run(moved, None, None).abi == ABI


def test_the_bridge_exports_its_own_names_only(built: Build) -> None:
    command = ["nm", "-D", "--defined-only", str(built.lib_dir / "liblcpd_bridge.so")]
    lines = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout.splitlines()
    names = {line.split()[-1].partition("@")[0] for line in lines}
    # Inline functions and type information of C++ templates are weak and shared by design.
    strong = {line.split()[-1] for line in lines if line.split()[-2] in ("T", "D", "B", "R")}
    assert "lcpd_abi" in names
    assert {name for name in strong if not name.startswith("lcpd_")} == set()


def test_every_function_of_the_header_is_exported(built: Build) -> None:
    header = (native_recipe() / "bridge" / "lcpd_bridge.h").read_text()
    declared = set(re.findall(r"\b(lcpd_\w+)\(", re.sub(r"//[^\n]*", "", header)))
    command = ["nm", "-D", "--defined-only", str(built.lib_dir / "liblcpd_bridge.so")]
    listing = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
    assert declared - set(re.findall(r"\b(lcpd_\w+)$", listing, re.MULTILINE)) == set()


def test_the_selftest_refuses_another_commit(built: Build) -> None:
    with pytest.raises(BuildError, match=r"expected commit ffff"):
        run(built.lib_dir, "f" * 40, None)


def test_the_selftest_refuses_a_build_without_the_gpu_that_the_driver_shows(built: Build) -> None:
    with pytest.raises(BuildError, match="no NOSUCH device"):
        run(built.lib_dir, None, "NOSUCH")


def test_the_selftest_refuses_a_model_that_does_not_load(built: Build, tmp_path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")
    with pytest.raises(BuildError, match="could not load the model"):
        run(built.lib_dir, None, None, broken)


def test_the_selftest_refuses_a_build_with_a_library_missing(built: Build, tmp_path) -> None:
    partial = Path(shutil.copytree(built.lib_dir, tmp_path / "partial", symlinks=True))
    for library in partial.glob("libmtmd.so*"):
        library.unlink()
    with pytest.raises(BuildError, match=r"the self-test of the finished build failed[\s\S]*mtmd"):
        run(partial, None, None)


def test_an_up_to_date_build_is_recognised(built: Build) -> None:
    """Holds where the active build is of this checkout and machine, which `make test` sees to."""
    command = [sys.executable, "-c", "from lcpd.cli.build import build; build()", "--backend", built.backend]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, timeout=60)
    assert done.returncode == 0
    assert done.stdout.strip() == f"up to date: {built.key}"


@pytest.mark.peer
def test_the_peer_is_of_the_same_llama_cpp(built: Build) -> None:
    assert built.peer is not None, "run: lcpd build --target llama-server"
    done = subprocess.run([str(built.peer), "--version"], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    commit = load_pin(native_recipe()).commit[:9]
    assert done.returncode == 0
    assert f"commit {commit}" in done.stdout or commit not in built.llama_cpp
