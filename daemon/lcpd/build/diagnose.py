"""From a failed compiler run to its usual cause: a pure function over the end of the log."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    name: str
    remedy: str


# First match wins, so the more specific patterns come first.
_CAUSES: tuple[tuple[str, Cause], ...] = (
    (
        r"No space left on device|Disk quota exceeded",
        Cause("no disk space", "free some space, or set LCPD_HOME to a folder on a larger disk"),
    ),
    (
        r"Killed signal terminated program|fatal error: Killed|virtual memory exhausted|Cannot allocate memory"
        r"|out of memory|bad_alloc|\bSIGKILL\b|died due to signal 9|signal 9\b",
        Cause("out of memory", "compile fewer files at once (lcpd build --jobs 1), or add swap"),
    ),
    (
        r"Unsupported gpu architecture|Value '(?:sm|compute)_\w+' is not defined for option 'gpu-",
        Cause(
            "this CUDA toolkit does not know the architecture",
            "say another --cuda-arch, or use a toolkit that knows this one: --cuda-toolkit pip is CUDA 13 (7.5 and"
            " later), cards before 7.5 need an installed CUDA 12",
        ),
    ),
    (
        r"unsupported GNU version|unsupported clang version",
        Cause(
            "this CUDA toolkit does not accept the host compiler",
            "install an older g++ and name it (CXX=g++-13 CC=gcc-13 lcpd build), or use --cuda-toolkit pip",
        ),
    ),
    (
        r"CUDA::cublas|cublas_v2\.h: No such file|cannot find -lcublas",
        Cause("cuBLAS is missing from the CUDA toolkit", "install libcublas-dev, or use --cuda-toolkit pip"),
    ),
    (
        r"No CMAKE_CUDA_COMPILER could be found|nvcc: (?:command )?not found|Failed to find nvcc"
        r"|CUDA Toolkit not found",
        Cause("no nvcc", "use --cuda-toolkit pip, or name a toolkit folder with --cuda-toolkit DIR"),
    ),
    (
        r"Could NOT find Vulkan|Could not find .*glslc|glslc: (?:command )?not found",
        Cause(
            "Vulkan's build tools are missing", "apt install libvulkan-dev glslc spirv-headers, or use --backend cpu"
        ),
    ),
    (
        r"No CMAKE_C(?:XX)?_COMPILER could be found|is not able to compile a simple test program"
        r"|CMAKE_C(?:XX)?_COMPILER not set|(?:g\+\+|gcc|c\+\+|cc1plus): (?:command )?not found",
        Cause("no working C++ compiler", "apt install build-essential"),
    ),
    (
        r"unable to find a build program corresponding to \"Ninja\"|CMAKE_MAKE_PROGRAM is not set"
        r"|(?:ninja|cmake): (?:command )?not found",
        Cause("no cmake or ninja", "apt install cmake ninja-build, or pip install cmake ninja"),
    ),
)
_SIGKILL_CODES = frozenset({-9, 137})


def diagnose(log_tail: str, returncode: int) -> Cause | None:
    """The usual cause of such a failure, or None: an ordinary compiler error explains itself in the log."""
    for pattern, cause in _CAUSES:
        if re.search(pattern, log_tail):
            return cause
    if returncode in _SIGKILL_CODES:
        return Cause("killed, usually for lack of memory", "compile fewer files at once (lcpd build --jobs 1)")
    return None
