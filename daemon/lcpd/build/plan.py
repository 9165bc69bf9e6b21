"""What is going to be built, and the key under which it is kept: pure values, no I/O.

Two keys.  ``key`` names a finished build and covers everything that can change its bytes.  ``tree_key`` names the CMake
tree it is compiled in and leaves out what ninja notices by itself (the bridge's files, an edited source folder) and
what CMake can change in place (the CPU level), so that such a change compiles a few files only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from lcpd.build.cuda_toolkit import Prepared, Toolkit
from lcpd.build.fallback import CpuLevel, cmake_options
from lcpd.build.hashing import value_sha256
from lcpd.build.machine import Cpu
from lcpd.build.source import Source
from lcpd.build.toolchain import Compiler

LIBRARIES = "libs"
PEER = "llama-server"
TARGETS = (LIBRARIES, PEER)


@dataclass(frozen=True)
class CudaPlan:
    architectures: tuple[str, ...]
    toolkit: Toolkit
    driver_library: Path | None
    """``libcuda.so.1`` to link for virtual memory management; without one that feature is left out."""


@dataclass(frozen=True)
class BuildPlan:
    source: Source
    recipe: str
    """Hash of our CMakeLists.txt and bridge."""
    backend: str
    cuda: CudaPlan | None
    compiler: Compiler
    cpu: Cpu
    level: CpuLevel

    @property
    def inputs(self) -> dict[str, object]:
        """Everything that can change the bytes of the build; kept in its manifest."""
        return {
            **self._tree_inputs,
            "source": self.source.content,
            "recipe": self.recipe,
            "cpu": self.cpu.machine if self.level is CpuLevel.PORTABLE else self.cpu.fingerprint,
            "cpu_level": self.level.value,
        }

    @property
    def _tree_inputs(self) -> dict[str, object]:
        cuda = None
        if self.cuda is not None:
            cuda = {
                "architectures": list(self.cuda.architectures),
                "toolkit": self.cuda.toolkit.ident,
                "vmm": self.cuda.driver_library is not None,
            }
        compiler = [self.compiler.cc, self.compiler.cxx, self.compiler.version, *self.compiler.flags]
        return {"place": self.source.place, "backend": self.backend, "cuda": cuda, "compiler": compiler}

    @property
    def key(self) -> str:
        return f"{self.backend}-{self.source.label}-{value_sha256(self.inputs)[:12]}"

    @property
    def tree_key(self) -> str:
        return f"{self.backend}-{value_sha256(self._tree_inputs)[:12]}"

    def at_level(self, level: CpuLevel) -> BuildPlan:
        return replace(self, level=level)


def configure_command(
    plan: BuildPlan, cmake: str, ninja: str, recipe: Path, tree: Path, source: Path, toolkit: Prepared | None
) -> list[str]:
    """The CMake call that configures ``tree``; calling it again with another level changes the tree in place."""
    command = [
        cmake,
        "-G",
        "Ninja",
        "-S",
        str(recipe),
        "-B",
        str(tree),
        f"-DCMAKE_MAKE_PROGRAM={ninja}",
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_C_COMPILER={plan.compiler.cc}",
        f"-DCMAKE_CXX_COMPILER={plan.compiler.cxx}",
        f"-DLLAMA_CPP_SRC={source}",
        f"-DLCPD_BACKEND={plan.backend}",
        *cmake_options(plan.level),
        "-Wno-dev",
    ]
    if plan.source.commit is not None:
        # The unpacked tree has no git history of its own to ask.
        command += [f"-DLLAMA_BUILD_COMMIT={plan.source.commit[:9]}", "-DLLAMA_BUILD_NUMBER=0"]
    if plan.cuda is not None:
        assert toolkit is not None
        command += [
            f"-DCMAKE_CUDA_ARCHITECTURES={';'.join(plan.cuda.architectures)}",
            f"-DCUDAToolkit_ROOT={toolkit.root}",
            f"-DCMAKE_CUDA_COMPILER={toolkit.nvcc}",
            f"-DCMAKE_CUDA_HOST_COMPILER={plan.compiler.cxx}",
            f"-DLCPD_EXTRA_RPATH={'' if toolkit.bundle else toolkit.library_folder}",
        ]
        if plan.cuda.driver_library is None:
            command.append("-DGGML_CUDA_NO_VMM=ON")
        else:
            command += ["-DGGML_CUDA_NO_VMM=OFF", f"-DCUDA_cuda_driver_LIBRARY={plan.cuda.driver_library}"]
    return command


def ninja_targets(target: str) -> list[str]:
    """Ninja's names for a ``--target``: the bridge pulls in every library, the peer comes on top."""
    return ["lcpd_bridge", "llama-server"] if target == PEER else ["lcpd_bridge"]


def install_commands(cmake: str, tree: Path, prefix: Path, target: str) -> list[list[str]]:
    components = ["lcpd", "peer"] if target == PEER else ["lcpd"]
    base = [cmake, "--install", str(tree), "--prefix", str(prefix)]
    return [[*base, "--component", component] for component in components]
