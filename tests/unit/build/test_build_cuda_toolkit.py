"""Which CUDA toolkit, and how one is put together."""

from __future__ import annotations

import io
import platform
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from lcpd.build import cuda_toolkit, fetching
from lcpd.build.cuda_toolkit import (
    CUBLAS,
    Toolkit,
    add_link_names,
    find_system_root,
    identify,
    is_prepared,
    parse_top,
    prepare,
    unpack_wheel,
)
from lcpd.build.errors import BuildError
from lcpd.build.gpu import Gpu, Nvidia
from lcpd.build.hashing import file_sha256
from lcpd.build.pin import Pin, Wheel, load_pin
from lcpd.build.report import PlainReporter
from lcpd.paths import native_recipe

NVCC = """#!/bin/sh
case $1 in
  --version) echo 'Cuda compilation tools, release {version}, V1';;
  *) echo '#$ TOP={root}' >&2;;
esac
"""


@pytest.fixture
def pin() -> Pin:
    return load_pin(native_recipe())


@pytest.fixture(autouse=True)
def no_toolkit_here(monkeypatch) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)


def install(root: Path, version: str = "13.0", cublas: bool = True) -> Path:
    for folder in ("bin", "include", "lib64", "nvvm/bin"):
        (root / folder).mkdir(parents=True)
    (root / "bin" / "nvcc").write_text(NVCC.format(version=version, root=root))
    (root / "bin" / "nvcc").chmod(0o755)
    (root / "nvvm" / "bin" / "cicc").touch()
    (root / "include" / "cuda.h").touch()
    (root / "lib64" / "libcudart.so.13").touch()
    if cublas:
        for name in ("include/cublas_v2.h", "lib64/libcublas.so", "lib64/libcublasLt.so"):
            (root / name).touch()
    return root


def test_a_complete_folder_is_used_as_it_is(tmp_path, pin) -> None:
    root = install(tmp_path / "cuda", "12.8")
    assert identify(str(root), pin, None) == Toolkit("installed", "12.8", root)


def test_a_folder_without_cublas_is_completed_from_the_wheel(tmp_path, pin) -> None:
    root = install(tmp_path / "cuda", "13.1", cublas=False)
    assert identify(str(root), pin, None).how == "completed"


def test_a_toolkit_of_another_major_version_cannot_be_completed(tmp_path, pin) -> None:
    root = install(tmp_path / "cuda", "12.8", cublas=False)
    with pytest.raises(BuildError, match=r"12\.8.*has no cuBLAS.*libcublas-dev"):
        identify(str(root), pin, None)


def test_a_folder_without_nvcc_is_refused(tmp_path, pin) -> None:
    with pytest.raises(BuildError, match="no bin/nvcc"):
        identify(str(tmp_path), pin, None)


def test_auto_prefers_the_installed_toolkit(tmp_path, pin, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(install(tmp_path / "cuda")))
    assert identify("auto", pin, None).how == "installed"


def test_auto_takes_the_wheels_where_the_installed_one_cannot_be_completed(tmp_path, pin, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(install(tmp_path / "cuda", "12.8", cublas=False)))
    assert identify("auto", pin, None).how == "wheels"


def test_auto_takes_the_wheels_where_none_is_installed(pin, monkeypatch) -> None:
    monkeypatch.setattr(cuda_toolkit, "find_system_root", lambda: None)
    assert identify("auto", pin, None).how == "wheels"


def test_system_without_one_is_an_error(pin, monkeypatch) -> None:
    monkeypatch.setattr(cuda_toolkit, "find_system_root", lambda: None)
    with pytest.raises(BuildError, match="no nvcc found"):
        identify("system", pin, None)


def test_a_driver_too_old_for_the_wheels_is_named(pin) -> None:
    old = Nvidia((Gpu("RTX", "8.6"),), "550.90.07")
    with pytest.raises(BuildError, match=r"550\.90\.07 is too old for CUDA 13\.0 \(needs 580\)"):
        identify("pip", pin, old)


def test_the_root_is_asked_from_nvcc_because_the_one_in_the_path_may_be_a_wrapper(tmp_path, monkeypatch) -> None:
    root = install(tmp_path / "cuda")
    wrapper = tmp_path / "bin" / "nvcc"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {root}/bin/nvcc "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:/usr/bin:/bin")
    assert find_system_root() == root


def test_no_top_line_means_no_toolkit() -> None:
    assert parse_top("nvcc fatal: something") is None


def make_wheel(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_a_wheel_adds_its_toolkit_files_and_makes_programs_executable(tmp_path) -> None:
    wheel = make_wheel(
        tmp_path / "w.whl",
        {
            "nvidia/cu13/bin/nvcc": "program",
            "nvidia/cu13/nvvm/bin/cicc": "program",
            "nvidia/cu13/include/a.h": "header",
            "nvidia_x-1.dist-info/METADATA": "text",
            "nvidia/cu13/lib/../../../../escape": "no",
        },
    )
    unpack_wheel(wheel, tmp_path / "t")
    files = {p.relative_to(tmp_path / "t").as_posix(): p for p in (tmp_path / "t").rglob("*") if p.is_file()}
    assert set(files) == {"bin/nvcc", "nvvm/bin/cicc", "include/a.h"}
    assert files["bin/nvcc"].stat().st_mode & 0o111
    assert files["nvvm/bin/cicc"].stat().st_mode & 0o111
    assert not files["include/a.h"].stat().st_mode & 0o111


def test_libraries_get_the_names_that_linkers_look_for(tmp_path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "include").mkdir()
    (tmp_path / "lib" / "libcublasLt.so.13").write_text("x")
    add_link_names(tmp_path)
    assert (tmp_path / "lib64" / "libcublasLt.so").read_text() == "x"
    (target,) = (tmp_path / "targets").iterdir()
    assert (target / "lib" / "libcublasLt.so.13").read_text() == "x"


def test_an_installed_toolkit_is_completed_by_links_once_and_not_changed(tmp_path, pin, monkeypatch) -> None:
    root = install(tmp_path / "cuda", cublas=False)
    wheel = make_wheel(
        tmp_path / "nvidia_cublas-1-x.whl",
        {
            "nvidia/cu13/include/cublas_v2.h": "h",
            "nvidia/cu13/lib/libcublas.so.13": "b",
            "nvidia/cu13/lib/libcublasLt.so.13": "l",
        },
    )
    calls: list[str] = []

    def command(package: str, version: str, folder: Path, from_source: bool) -> list[str]:
        calls.append(package)
        return ["sh", "-c", 'mkdir -p "$2"; cp "$1" "$2"', "sh", str(wheel), str(folder)]

    monkeypatch.setattr(fetching, "pip_command", command)
    hashes = {platform.machine(): file_sha256(wheel)}
    pin = replace(pin, cuda_wheels=(Wheel(CUBLAS, "1", hashes),))
    before = sorted(p for p in root.rglob("*"))
    toolkit = Toolkit("completed", "13.0", root)
    report = PlainReporter(io.StringIO())
    assert not is_prepared(toolkit, pin, tmp_path / "cache")
    ready = prepare(toolkit, pin, tmp_path / "cache", report)
    assert prepare(toolkit, pin, tmp_path / "cache", report) == ready
    assert is_prepared(toolkit, pin, tmp_path / "cache")
    assert calls == [CUBLAS]
    assert not ready.nvcc.is_symlink()
    assert (ready.root / "include" / "cuda.h").is_symlink()
    assert [p.name for p in ready.bundle] == ["libcublas.so.13", "libcublasLt.so.13", "libcudart.so.13"]
    assert sorted(p for p in root.rglob("*")) == before


def test_a_wheel_with_another_hash_is_refused(tmp_path, pin, monkeypatch) -> None:
    wheel = make_wheel(tmp_path / "nvidia_cublas-1-x.whl", {"nvidia/cu13/include/a.h": "h"})
    script = 'mkdir -p "$2"; cp "$1" "$2"'
    monkeypatch.setattr(
        fetching, "pip_command", lambda p, v, folder, s: ["sh", "-c", script, "sh", str(wheel), str(folder)]
    )
    pin = replace(pin, cuda_wheels=(Wheel(CUBLAS, "1", {platform.machine(): "0" * 64}),))
    toolkit = Toolkit("completed", "13.0", install(tmp_path / "cuda", cublas=False))
    with pytest.raises(BuildError, match=r"pin\.toml says"):
        prepare(toolkit, pin, tmp_path / "cache", PlainReporter(io.StringIO()))
    assert list((tmp_path / "cache" / "cuda").iterdir()) == []
