"""What is carried, and that a damaged or foreign pack is refused."""

from __future__ import annotations

import tarfile
import zipfile
from dataclasses import replace

import pytest

from lcpd.build.pin import load_pin
from lcpd.paths import native_recipe


@pytest.fixture
def packing():
    from check_gpu import packing

    return packing


@pytest.fixture
def pin():
    return load_pin(native_recipe())


@pytest.fixture
def pack(packing, pin, tmp_path):
    """A pack with one source file and three wheels."""
    folder = tmp_path / "pack"
    (folder / "wheels").mkdir(parents=True)
    source = tmp_path / "CMakeLists.txt"
    source.write_text("project(x)")
    with tarfile.open(folder / packing.SOURCE, "w:xz") as archive:
        archive.add(source, "src/CMakeLists.txt")
    names = ["one-1-py3-none-any.whl", "Two_x-1-cp312-cp312-manylinux_2_17_x86_64.whl", "two_x-1-cp311-cp311-any.whl"]
    for name in names:
        with zipfile.ZipFile(folder / "wheels" / name, "w") as wheel:
            wheel.writestr(f"{name.split('-')[0].lower()}.py", name)
    packing.write_manifest(folder, pin, [packing.SOURCE, *(f"wheels/{n}" for n in names)])
    return folder


@pytest.mark.parametrize(
    "path",
    [
        "CMakeLists.txt",
        "ggml/src/ggml.c",
        "ggml/src/ggml-impl.h",
        "ggml/src/ggml-cpu/ops.cpp",
        "ggml/src/ggml-cuda/mmq.cu",
        "ggml/include/ggml-vulkan.h",
        "tools/ui/CMakeLists.txt",
        "tools/server/server.cpp",
        "scripts/ui-assets.cmake",
    ],
)
def test_what_the_build_reads_is_carried(packing, path):
    assert packing.is_compiled(path)


@pytest.mark.parametrize(
    "path",
    [
        "models/templates/x.jinja",
        "ggml/src/ggml-vulkan/ggml-vulkan.cpp",
        "tools/ui/src/app.ts",
        "tools/server/tests/unit/test.py",
        "tools/server/README.md",
        "tools/mtmd/test-1.jpeg",
    ],
)
def test_what_the_build_does_not_read_stays_behind(packing, path):
    assert not packing.is_compiled(path)


def test_a_wheel_is_for_any_python_or_for_exactly_one(packing):
    assert packing.wheel_fits("llama_cpp_python-0.3.36-py3-none-linux_x86_64.whl", (3, 13))
    assert packing.wheel_fits("msgspec-0.23.0-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", (3, 12))
    assert not packing.wheel_fits("msgspec-0.23.0-cp312-cp312-manylinux2014_x86_64.whl", (3, 11))


def test_a_complete_pack_of_this_checkout_is_accepted(packing, pin, pack):
    assert len(packing.read_manifest(pack, pin).files) == 4


def test_a_missing_pack_says_how_to_make_one(packing, pin, tmp_path):
    with pytest.raises(packing.PackError, match="make check-gpu-pack"):
        packing.read_manifest(tmp_path, pin)


def test_a_pack_of_another_llama_cpp_is_refused(packing, pin, pack):
    with pytest.raises(packing.PackError, match=r"pin\.toml says 9\.9"):
        packing.read_manifest(pack, replace(pin, version="9.9"))


def test_a_changed_file_is_refused_by_name(packing, pin, pack):
    (pack / "wheels" / "one-1-py3-none-any.whl").write_bytes(b"short")
    with pytest.raises(packing.PackError, match=r"one-1-py3-none-any\.whl .* changed"):
        packing.read_manifest(pack, pin)


def test_a_missing_file_is_refused_by_name(packing, pin, pack):
    (pack / packing.SOURCE).unlink()
    with pytest.raises(packing.PackError, match=r"llama\.cpp\.tar\.xz is missing"):
        packing.read_manifest(pack, pin)


def test_only_the_wheels_for_this_python_are_unpacked(packing, pin, pack, tmp_path):
    manifest = packing.read_manifest(pack, pin)
    packing.unpack_wheels(pack, manifest, tmp_path / "site", (3, 12), set())
    assert sorted(p.name for p in (tmp_path / "site").iterdir()) == ["one.py", "two_x.py"]
    assert (tmp_path / "site" / "two_x.py").read_text().startswith("Two_x-1-cp312")


def test_a_package_that_is_installed_already_is_left_out(packing, pin, pack, tmp_path):
    packing.unpack_wheels(pack, packing.read_manifest(pack, pin), tmp_path / "site", (3, 12), {"two-x"})
    assert [p.name for p in (tmp_path / "site").iterdir()] == ["one.py"]


def test_the_source_is_unpacked_once(packing, pack, tmp_path):
    target = tmp_path / "tree"
    packing.unpack_source(pack, target)
    (target / "src" / "mark").touch()
    packing.unpack_source(pack, target)
    assert (target / "src" / "CMakeLists.txt").read_text() == "project(x)"
    assert (target / "src" / "mark").exists()
