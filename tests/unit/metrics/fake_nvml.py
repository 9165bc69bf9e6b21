"""An NVML without GPUs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml

WORKER = 42
"""The process that has memory of every board."""


class FakeNvml:
    """As much of pynvml as is asked, about boards that are numbers."""

    NVMLError = pynvml.NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU

    def __init__(self, boards: int = 1, lacks: tuple[str, ...] = ()) -> None:
        self.boards = boards
        self.lacks = lacks
        self.opened = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.opened += 1
        if not self.boards:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    def __getattr__(self, name: str) -> Any:
        return self._not_supported if name in self.lacks else self.answers()[name]

    def answers(self) -> dict[str, Callable[..., Any]]:
        """What each function says."""
        return {
            "nvmlSystemGetDriverVersion": lambda: "570.1",
            "nvmlDeviceGetCount": lambda: self.boards,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetName": lambda handle: b"A Board",
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=75, memory=50),
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=10 + handle, total=24),
            "nvmlDeviceGetPowerUsage": lambda handle: 250_000,
            "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 350_000,
            "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
            "nvmlDeviceGetClockInfo": lambda handle, clock: {self.NVML_CLOCK_SM: 1700, self.NVML_CLOCK_MEM: 9500}[
                clock
            ],
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: pynvml.nvmlClocksThrottleReasonSwPowerCap,
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: [
                SimpleNamespace(pid=WORKER, usedGpuMemory=7),
                SimpleNamespace(pid=1, usedGpuMemory=3),
            ],
        }

    def _not_supported(self, *_: Any) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
