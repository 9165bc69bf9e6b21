"""GPUs as a fake NVML tells of them."""

from __future__ import annotations

import pynvml

from lcpd.metrics import Metrics
from lcpd.metrics.nvml import Nvml
from unit.metrics.fake_nvml import WORKER, FakeNvml


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
