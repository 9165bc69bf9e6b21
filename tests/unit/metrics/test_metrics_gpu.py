"""GPUs as a fake NVML tells of them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml

from lcpd.metrics import Metrics
from lcpd.metrics.nvml import Nvml

WORKER = 42


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


def shown(library: FakeNvml) -> Metrics:
    metrics = Metrics()
    metrics.gpu.show(Nvml(library).read(WORKER))
    return metrics


def figure(metrics: Metrics, name: str, /, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"gpu": "0", **labels})


def test_a_gpu_is_shown_in_base_units() -> None:
    metrics = shown(FakeNvml())
    assert figure(metrics, "lcpd_gpu_info", name="A Board", driver="570.1") == 1
    assert figure(metrics, "lcpd_gpu_utilization_ratio") == 0.75
    assert figure(metrics, "lcpd_gpu_memory_utilization_ratio") == 0.5
    assert figure(metrics, "lcpd_gpu_memory_used_bytes") == 10
    assert figure(metrics, "lcpd_gpu_memory_total_bytes") == 24
    assert figure(metrics, "lcpd_gpu_worker_memory_bytes") == 7
    assert figure(metrics, "lcpd_gpu_power_watts") == 250
    assert figure(metrics, "lcpd_gpu_power_limit_watts") == 350
    assert figure(metrics, "lcpd_gpu_temperature_celsius") == 61
    assert figure(metrics, "lcpd_gpu_clock_hertz", clock="sm") == 1.7e9
    assert figure(metrics, "lcpd_gpu_clock_hertz", clock="memory") == 9.5e9


def test_why_clocks_are_not_faster_is_told_by_reason() -> None:
    metrics = shown(FakeNvml())
    assert figure(metrics, "lcpd_gpu_throttled", reason="sw_power_cap") == 1
    assert figure(metrics, "lcpd_gpu_throttled", reason="hw_thermal") == 0


def test_every_gpu_is_shown() -> None:
    metrics = shown(FakeNvml(boards=2))
    assert metrics.registry.get_sample_value("lcpd_gpu_memory_used_bytes", {"gpu": "1"}) == 11


def test_without_a_gpu_there_are_no_figures_and_the_library_is_asked_once() -> None:
    library = FakeNvml(boards=0)
    nvml = Nvml(library)
    assert nvml.read(WORKER) == nvml.read(WORKER) == []
    assert library.opened == 1
    assert figure(shown(library), "lcpd_gpu_utilization_ratio") is None


def test_what_a_board_does_not_tell_is_left_out() -> None:
    metrics = shown(FakeNvml(lacks=("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetUtilizationRates")))
    assert figure(metrics, "lcpd_gpu_power_limit_watts") is None
    assert figure(metrics, "lcpd_gpu_utilization_ratio") is None
    assert figure(metrics, "lcpd_gpu_power_watts") == 250


def test_a_gpu_that_stops_to_answer_is_shown_no_more() -> None:
    library = FakeNvml()
    nvml, metrics = Nvml(library), Metrics()
    metrics.gpu.show(nvml.read(WORKER))
    library.lacks = ("nvmlDeviceGetPowerUsage",)
    metrics.gpu.show(nvml.read(None))
    assert figure(metrics, "lcpd_gpu_power_watts") is None
    assert figure(metrics, "lcpd_gpu_worker_memory_bytes") is None


def test_the_fake_answers_nothing_that_the_library_does_not() -> None:
    library = FakeNvml()
    assert all(callable(getattr(pynvml, name)) for name in library.answers())
