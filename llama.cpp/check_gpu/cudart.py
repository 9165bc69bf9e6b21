"""The CUDA runtime that ggml already has in this process: pinned memory, and plain copies to measure against."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

TO_DEVICE, TO_HOST = 1, 2
"""driver_types.h, enum cudaMemcpyKind"""


class CudaError(RuntimeError):
    """A call of the CUDA runtime failed."""


def mapped_runtime(maps: str) -> str | None:
    """The path of libcudart in the text of ``/proc/self/maps``."""
    for line in maps.splitlines():
        path = line.split(maxsplit=5)[5] if len(line.split(maxsplit=5)) == 6 else ""
        if Path(path).name.startswith("libcudart.so"):
            return path
    return None


class Cudart:
    """The few calls that are needed here, on the current device."""

    def __init__(self, path: str) -> None:
        self._lib = ctypes.CDLL(path)
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self._lib.cudaMalloc.argtypes = [ctypes.POINTER(pointer), size]
        self._lib.cudaFree.argtypes = [pointer]
        self._lib.cudaMemcpy.argtypes = [pointer, pointer, size, ctypes.c_int]
        self._lib.cudaHostRegister.argtypes = [pointer, size, ctypes.c_uint]
        self._lib.cudaHostUnregister.argtypes = [pointer]
        self._lib.cudaGetErrorString.restype = ctypes.c_char_p

    @classmethod
    def of_this_process(cls) -> Cudart | None:
        """None where ggml was built without CUDA."""
        path = mapped_runtime(Path("/proc/self/maps").read_text(encoding="utf-8"))
        return None if path is None else cls(path)

    @contextmanager
    def device_memory(self, size: int) -> Iterator[int]:
        """An allocation on the device, as its address."""
        address = ctypes.c_void_p()
        self._check(self._lib.cudaMalloc(ctypes.byref(address), size), "cudaMalloc")
        try:
            yield address.value or 0
        finally:
            self._check(self._lib.cudaFree(address), "cudaFree")

    @contextmanager
    def pinned(self, data: Bytes) -> Iterator[None]:
        """The array's pages are page-locked while the context is open."""
        self._check(self._lib.cudaHostRegister(data.ctypes.data, data.nbytes, 0), "cudaHostRegister")
        try:
            yield
        finally:
            self._check(self._lib.cudaHostUnregister(data.ctypes.data), "cudaHostUnregister")

    def copy(self, data: Bytes, device: int, kind: int) -> None:
        """Copy the whole array to or from the device address; returns when it is done."""
        there, here = device, data.ctypes.data
        target, source = (there, here) if kind == TO_DEVICE else (here, there)
        self._check(self._lib.cudaMemcpy(target, source, data.nbytes, kind), "cudaMemcpy")

    def _check(self, status: int, call: str) -> None:
        if status != 0:
            raise CudaError(f"{call}: {self._lib.cudaGetErrorString(status).decode()}")
