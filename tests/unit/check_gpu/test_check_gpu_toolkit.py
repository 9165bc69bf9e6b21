"""Finding nvcc and cuBLAS where Python packages put them."""

from __future__ import annotations

import pytest


@pytest.fixture
def toolkit():
    from check_gpu import toolkit

    return toolkit


@pytest.fixture
def site(tmp_path):
    """A site-packages folder with cuBLAS 13."""
    root = tmp_path / "site" / "nvidia" / "cu13"
    for name in ("include/cublas_v2.h", "include/cudnn.h", "lib/libcublas.so.13", "lib/libcublasLt.so.13"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return tmp_path / "site"


@pytest.fixture
def installed(tmp_path):
    """A toolkit without cuBLAS."""
    root = tmp_path / "cuda"
    for name in ("bin/nvcc", "include/cuda.h", "lib64/libcudart.so.13", "nvvm/bin/cicc"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def test_cublas_is_found_in_a_python_package(toolkit, site, tmp_path):
    assert toolkit.find_cublas([tmp_path / "empty", site], "13") == site / "nvidia" / "cu13"


def test_cublas_of_another_major_version_is_none(toolkit, site):
    assert toolkit.find_cublas([site], "12") is None


def test_a_toolkit_is_completed_with_links_and_the_installed_one_is_not_touched(toolkit, site, installed, tmp_path):
    before = sorted(installed.rglob("*"))
    tree = toolkit.complete(installed, site / "nvidia" / "cu13", tmp_path / "toolkit")
    for name in ("bin/nvcc", "include/cuda.h", "include/cublas_v2.h", "lib/libcublas.so", "lib64/libcublasLt.so"):
        assert (tree / name).is_file(), name
    assert (tree / "lib" / "libcudart.so").read_text() == "lib64/libcudart.so.13"
    assert not (tree / "include" / "cudnn.h").exists()
    assert sorted(installed.rglob("*")) == before


def test_a_second_completion_replaces_the_first(toolkit, site, installed, tmp_path):
    toolkit.complete(installed, site / "nvidia" / "cu13", tmp_path / "toolkit")
    tree = toolkit.complete(installed, site / "nvidia" / "cu13", tmp_path / "toolkit")
    assert (tree / "lib" / "libcublas.so").is_file()


def test_a_complete_toolkit_is_used_as_it_is(toolkit, installed, tmp_path, monkeypatch):
    monkeypatch.setattr(toolkit, "find_system_root", lambda: installed)
    monkeypatch.setattr(toolkit, "nvcc_version", lambda nvcc: "13.0")
    monkeypatch.setattr(toolkit, "cublas_folder", lambda root: root / "lib64")
    assert toolkit.find([], tmp_path)[0] == installed


def test_a_toolkit_that_cannot_be_completed_says_what_to_do(toolkit, installed, tmp_path, monkeypatch):
    monkeypatch.setattr(toolkit, "find_system_root", lambda: installed)
    monkeypatch.setattr(toolkit, "nvcc_version", lambda nvcc: "13.0")
    monkeypatch.setattr(toolkit, "cublas_folder", lambda root: None)
    with pytest.raises(toolkit.NoToolkit, match="PYTHON="):
        toolkit.find([tmp_path], tmp_path)


def test_without_any_nvcc_the_places_that_were_searched_are_named(toolkit, tmp_path, monkeypatch):
    monkeypatch.setattr(toolkit, "find_system_root", lambda: None)
    with pytest.raises(toolkit.NoToolkit, match="CUDA_HOME"):
        toolkit.find([tmp_path], tmp_path)


def test_the_cuda_runtime_is_found_among_the_mapped_files():
    from check_gpu.cudart import mapped_runtime

    maps = "7f00-7f01 r-xp 00000000 08:01 12 /b/lib/libggml-base.so.0\n7f02-7f03 rw-p 00000000 00:00 0 \n"
    assert mapped_runtime(maps) is None
    assert mapped_runtime(maps + "7f04-7f05 r-xp 00000000 08:01 13 /t/lib/libcudart.so.13.0.96\n") == (
        "/t/lib/libcudart.so.13.0.96"
    )
