"""What changes a build's key, and what changes only a few files in its tree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lcpd.build.cuda_toolkit import Prepared, Toolkit
from lcpd.build.fallback import CpuLevel
from lcpd.build.machine import Cpu
from lcpd.build.plan import PEER, BuildPlan, CudaPlan, configure_command, install_commands, ninja_targets
from lcpd.build.source import Source
from lcpd.build.toolchain import Compiler

SOURCE = Source("pin", "0c1e5709", "pin:a", "pin:a", "0c1e57098bba43ac29e6e3b677cdceebdd22334f", None)
CUDA = CudaPlan(("86-real",), Toolkit("installed", "13.0", Path("/opt/cuda")), Path("/lib/libcuda.so.1"))
PLAN = BuildPlan(
    source=SOURCE,
    recipe="r1",
    backend="cpu",
    cuda=None,
    compiler=Compiler("/usr/bin/gcc", "/usr/bin/g++", "g++ 12.2.0"),
    cpu=Cpu("x86_64", "A CPU", ("avx2",)),
    level=CpuLevel.NATIVE,
)
GPU_PLAN = replace(PLAN, backend="cuda", cuda=CUDA)


def configure(plan: BuildPlan, toolkit: Prepared | None = None) -> list[str]:
    return configure_command(plan, "cmake", "ninja", Path("r"), Path("t"), Path("s"), toolkit)


def prepared(*bundle: Path) -> Prepared:
    return Prepared(Path("/opt/cuda"), Path("/opt/cuda/lib64"), bundle)


def test_equal_inputs_have_equal_keys() -> None:
    assert replace(PLAN).key == PLAN.key


def test_the_key_shows_backend_and_source() -> None:
    assert PLAN.key.startswith("cpu-0c1e5709-")


@pytest.mark.parametrize(
    "change",
    [
        {"source": replace(SOURCE, content="pin:b")},
        {"recipe": "r2"},
        {"compiler": replace(PLAN.compiler, version="g++ 13.1.0")},
        {"compiler": replace(PLAN.compiler, flags=("CXXFLAGS=-O2",))},
        {"cpu": replace(PLAN.cpu, features=("avx2", "avx512f"))},
        {"level": CpuLevel.PORTABLE},
        {"backend": "vulkan"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_changes_the_bytes_changes_the_key(change) -> None:
    assert replace(PLAN, **change).key != PLAN.key


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": ("89-real",)},
        {"driver_library": None},
        {"toolkit": Toolkit("installed", "13.1", Path("/opt/cuda"))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_changes_the_cuda_backend_changes_key_and_tree(change) -> None:
    other = replace(GPU_PLAN, cuda=replace(CUDA, **change))
    assert other.key != GPU_PLAN.key
    assert other.tree_key != GPU_PLAN.tree_key


@pytest.mark.parametrize(
    "change",
    [{"recipe": "r2"}, {"level": CpuLevel.NATIVE_NO_AMX}, {"source": replace(SOURCE, content="pin:b")}],
    ids=lambda change: next(iter(change)),
)
def test_what_ninja_notices_by_itself_keeps_the_tree(change) -> None:
    assert replace(PLAN, **change).tree_key == PLAN.tree_key


def test_a_portable_build_fits_every_cpu_of_its_kind() -> None:
    portable = PLAN.at_level(CpuLevel.PORTABLE)
    assert replace(portable, cpu=Cpu("x86_64", "Another", ("sse2",))).key == portable.key


def test_the_known_commit_is_compiled_in() -> None:
    assert "-DLLAMA_BUILD_COMMIT=0c1e57098" in configure(PLAN)


def test_a_folder_of_unknown_commit_is_left_to_its_own_git() -> None:
    plan = replace(PLAN, source=replace(SOURCE, commit=None))
    assert not any("BUILD_COMMIT" in argument for argument in configure(plan))


def test_cuda_is_configured_from_the_toolkit_and_links_the_driver() -> None:
    command = configure(GPU_PLAN, prepared())
    assert "-DLCPD_BACKEND=cuda" in command
    assert "-DCMAKE_CUDA_ARCHITECTURES=86-real" in command
    assert "-DCMAKE_CUDA_COMPILER=/opt/cuda/bin/nvcc" in command
    assert "-DCUDA_cuda_driver_LIBRARY=/lib/libcuda.so.1" in command
    assert "-DGGML_CUDA_NO_VMM=OFF" in command


def test_without_a_driver_cuda_is_built_without_virtual_memory_management() -> None:
    command = configure(replace(GPU_PLAN, cuda=replace(CUDA, driver_library=None)), prepared())
    assert "-DGGML_CUDA_NO_VMM=ON" in command
    assert not any("cuda_driver" in argument for argument in command)


def test_an_installed_toolkit_is_found_at_run_time_where_it_is() -> None:
    assert "-DLCPD_EXTRA_RPATH=/opt/cuda/lib64" in configure(GPU_PLAN, prepared())


def test_a_toolkit_from_the_cache_is_not_needed_at_run_time() -> None:
    command = configure(GPU_PLAN, prepared(Path("/cache/libcublas.so.13")))
    assert "-DLCPD_EXTRA_RPATH=" in command


def test_the_peer_is_compiled_and_installed_on_top_of_the_libraries() -> None:
    assert ninja_targets(PEER) == ["lcpd_bridge", "llama-server"]
    components = [command[-1] for command in install_commands("cmake", Path("t"), Path("p"), PEER)]
    assert components == ["lcpd", "peer"]
