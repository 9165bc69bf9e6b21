"""From the end of a failed log to the usual cause."""

from __future__ import annotations

import pytest

from lcpd.build.compile import failure_text, parse_step
from lcpd.build.diagnose import diagnose


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("cc.s: fatal error: error writing to cc.s: No space left on device", "no disk space"),
        ("g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.", "out of memory"),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "out of memory"),
        ("cc1plus: out of memory allocating 65536 bytes", "out of memory"),
        (
            "nvcc fatal   : Unsupported gpu architecture 'compute_120a'",
            "this CUDA toolkit does not know the architecture",
        ),
        (
            "error: #error -- unsupported GNU version! gcc versions later than 15 are not supported!",
            "this CUDA toolkit does not accept the host compiler",
        ),
        (
            "ggml-cuda.cu:5:10: fatal error: cublas_v2.h: No such file or directory",
            "cuBLAS is missing from the CUDA toolkit",
        ),
        (
            'Target "ggml-cuda" links to:\n    CUDA::cublas\n  but the target was not found.',
            "cuBLAS is missing from the CUDA toolkit",
        ),
        ("  No CMAKE_CUDA_COMPILER could be found.", "no nvcc"),
        ("Could NOT find Vulkan (missing: Vulkan_LIBRARY glslc)", "Vulkan's build tools are missing"),
        ("  No CMAKE_CXX_COMPILER could be found.", "no working C++ compiler"),
        ('CMake was unable to find a build program corresponding to "Ninja".', "no cmake or ninja"),
    ],
)
def test_the_usual_cause_is_named_with_a_remedy(log: str, cause: str) -> None:
    found = diagnose(log, 1)
    assert found is not None
    assert found.name == cause
    assert found.remedy


@pytest.mark.parametrize("returncode", [-9, 137])
def test_a_build_killed_without_a_word_is_taken_for_lack_of_memory(returncode: int) -> None:
    found = diagnose("[12/214] Building CXX object x.o", returncode)
    assert found is not None
    assert "memory" in found.name


def test_an_ordinary_compiler_error_has_no_usual_cause() -> None:
    assert diagnose("sampler.cpp:12: error: expected ';' before '}' token\nninja: build stopped", 1) is None


def test_a_full_disk_is_named_even_when_a_compiler_was_killed_too() -> None:
    log = "Killed signal terminated program cc1plus\nNo space left on device"
    assert (found := diagnose(log, 1)) is not None
    assert found.name == "no disk space"


def test_the_failure_text_shows_the_last_thirty_lines_and_where_the_log_is(tmp_path) -> None:
    tail = [f"line {i}" for i in range(100)]
    text = failure_text(["/usr/bin/ninja", "-C", "x"], tail, 2, tmp_path / "a.log")
    assert "line 69" not in text.splitlines()
    assert "line 70" in text.splitlines()
    assert "ninja failed with exit code 2" in text
    assert str(tmp_path / "a.log") in text


def test_the_cause_is_found_above_the_lines_that_are_shown(tmp_path) -> None:
    tail = ["Killed signal terminated program cc1plus", *(f"line {i}" for i in range(60))]
    assert "out of memory" in failure_text(["ninja"], tail, 1, tmp_path / "a.log")


def test_a_step_is_read_from_ninjas_prefix_only() -> None:
    assert parse_step("[12/214] Building CXX object x.o") == (12, 214)
    assert parse_step("note: see [1/2]") is None
