"""What `make check-cuda-build` reads from the dynamic linker."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from lcpd.paths import native_recipe

LDD = """\tlibggml-base.so.0 => /b/lib/libggml-base.so.0 (0x00007f)
\tlibcudart.so.13 => /b/lib/libcudart.so.13 (0x00007f)
\tlibcuda.so.1 => not found
"""


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_cuda_build", native_recipe() / "check_cuda_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_drivers_library_may_be_missing_on_a_machine_without_a_gpu(script) -> None:
    assert script.missing_libraries(LDD) == []


def test_any_other_missing_library_is_found(script) -> None:
    assert script.missing_libraries(LDD + "\tlibcublas.so.13 => not found\n") == ["libcublas.so.13"]
