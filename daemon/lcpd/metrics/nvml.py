"""What NVML tells of the GPUs, as plain data.  It blocks for some milliseconds: not for the event loop's thread.

A question that a board does not answer (many consumer boards know no power limit, a virtual GPU no clocks) leaves its
figure out; a machine without a GPU or without NVIDIA's driver has no readings at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml

from lcpd.metrics.gpu import THROTTLE_REASONS

log = logging.getLogger(__name__)
T = TypeVar("T")

_BITS = dict(
    zip(
        THROTTLE_REASONS,
        (
            pynvml.nvmlClocksThrottleReasonGpuIdle,
            pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting,
            pynvml.nvmlClocksThrottleReasonSwPowerCap,
            pynvml.nvmlClocksThrottleReasonHwSlowdown,
            pynvml.nvmlClocksThrottleReasonSyncBoost,
            pynvml.nvmlClocksThrottleReasonSwThermalSlowdown,
            pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
            pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
            pynvml.nvmlClocksThrottleReasonDisplayClockSetting,
        ),
        strict=True,
    )
)


@dataclass(frozen=True)
class Reading:
    """One GPU now.  None: it does not say."""

    index: int
    name: str
    driver: str
    utilization: float | None
    """0 to 1."""
    memory_utilization: float | None
    """0 to 1."""
    memory_used: int | None
    """Bytes, of all processes."""
    memory_total: int | None
    worker_memory: int | None
    """Bytes of the worker; None where it does not run there, or cannot be told from others."""
    power: float | None
    """Watts."""
    power_limit: float | None
    temperature: float | None
    """Degrees Celsius."""
    clocks: Mapping[str, float]
    """Hertz, by clock."""
    throttled: Mapping[str, bool] | None
    """By reason."""
    uuid: str = ""
    """GPU-..., by which CUDA_VISIBLE_DEVICES can name it."""


class Nvml:
    """The library, opened when it is asked first.  For one thread at a time."""

    def __init__(self, library: Any = pynvml) -> None:
        self._nvml = library
        self._handles: list[Any] | None = None
        self._driver = ""

    def read(self, worker: int | None) -> list[Reading]:
        """All GPUs, with what the process `worker` has of them."""
        if self._handles is None:
            self._handles = self._open()
        return [self._one(index, handle, worker) for index, handle in enumerate(self._handles)]

    def _open(self) -> list[Any]:
        nvml = self._nvml
        try:
            nvml.nvmlInit()
            self._driver = _text(nvml.nvmlSystemGetDriverVersion())
            return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        except nvml.NVMLError as error:
            log.debug("no figures of GPUs: %s", error)
            return []

    def _one(self, index: int, handle: Any, worker: int | None) -> Reading:
        nvml = self._nvml
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        power = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        limit = self._ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        reasons = self._ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        clocks = {
            "sm": self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "memory": self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
        }
        return Reading(
            index=index,
            name=_text(self._ask(nvml.nvmlDeviceGetName, handle) or ""),
            driver=self._driver,
            utilization=rates.gpu / 100 if rates else None,
            memory_utilization=rates.memory / 100 if rates else None,
            memory_used=memory.used if memory else None,
            memory_total=memory.total if memory else None,
            worker_memory=self._memory_of(handle, worker),
            power=None if power is None else power / 1000,
            power_limit=None if limit is None else limit / 1000,
            temperature=self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            clocks={clock: megahertz * 1e6 for clock, megahertz in clocks.items() if megahertz is not None},
            throttled=None if reasons is None else {reason: bool(reasons & bit) for reason, bit in _BITS.items()},
            uuid=_text(self._ask(nvml.nvmlDeviceGetUUID, handle) or ""),
        )

    def _memory_of(self, handle: Any, pid: int | None) -> int | None:
        processes = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
        found = [process.usedGpuMemory for process in processes if process.pid == pid]
        return sum(found) if found and None not in found else None

    def _ask(self, question: Callable[..., T], *about: Any) -> T | None:
        try:
            return question(*about)
        except self._nvml.NVMLError:
            return None


def _text(value: str | bytes) -> str:
    """Old versions of the library answer with bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
