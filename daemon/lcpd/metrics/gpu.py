"""The GPUs, as NVML tells; absent without one, and where a board does not tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge

from lcpd.metrics.definition import Topic

if TYPE_CHECKING:
    from lcpd.metrics.nvml import Reading

_GPU = {"gpu": "indices, as NVML counts"}
CLOCKS = ("sm", "memory")
THROTTLE_REASONS = (
    "idle",
    "applications_clocks",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
    "display_clocks",
)


class GpuFigures(Topic):
    """See the module."""

    title = "GPU"

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.boards = self.gauge(
            "lcpd_gpu_info",
            "",
            "Which GPUs are there, with which driver (1)?",
            {**_GPU, "name": "the GPU's", "driver": "the driver's version"},
        )
        self.utilization = self.gauge(
            "lcpd_gpu_utilization_ratio", "ratio", "Which share of the time did a GPU compute something?", _GPU
        )
        self.memory_utilization = self.gauge(
            "lcpd_gpu_memory_utilization_ratio",
            "ratio",
            "Which share of the time was its memory read or written? Decoding is bound by this.",
            _GPU,
        )
        self.memory_used = self.gauge(
            "lcpd_gpu_memory_used_bytes", "bytes", "How much of its memory is in use, by all processes?", _GPU
        )
        self.memory_total = self.gauge("lcpd_gpu_memory_total_bytes", "bytes", "How much memory has it?", _GPU)
        self.worker_memory = self.gauge(
            "lcpd_gpu_worker_memory_bytes", "bytes", "How much of it is the worker's?", _GPU
        )
        self.power = self.gauge("lcpd_gpu_power_watts", "watts", "How much power does it take?", _GPU)
        self.power_limit = self.gauge("lcpd_gpu_power_limit_watts", "watts", "How much may it take?", _GPU)
        self.temperature = self.gauge("lcpd_gpu_temperature_celsius", "celsius", "How hot is it?", _GPU)
        self.clock = self.gauge(
            "lcpd_gpu_clock_hertz", "hertz", "How fast are its clocks?", {**_GPU, "clock": ", ".join(CLOCKS)}
        )
        self.throttled = self.gauge(
            "lcpd_gpu_throttled",
            "",
            "What keeps its clocks from being faster (1)?",
            {**_GPU, "reason": ", ".join(THROTTLE_REASONS)},
        )

    def show(self, readings: Sequence[Reading]) -> None:
        """How they do now; what was shown before and is not told any more goes."""
        for gauge in vars(self).values():
            if isinstance(gauge, Gauge):
                gauge.clear()
        for one in readings:
            gpu = str(one.index)
            self.boards.labels(gpu, one.name, one.driver).set(1)
            values = (
                (self.utilization, one.utilization),
                (self.memory_utilization, one.memory_utilization),
                (self.memory_used, one.memory_used),
                (self.memory_total, one.memory_total),
                (self.worker_memory, one.worker_memory),
                (self.power, one.power),
                (self.power_limit, one.power_limit),
                (self.temperature, one.temperature),
            )
            for gauge, value in values:
                if value is not None:
                    gauge.labels(gpu).set(value)
            for clock, hertz in one.clocks.items():
                self.clock.labels(gpu, clock).set(hertz)
            for reason, active in (one.throttled or {}).items():
                self.throttled.labels(gpu, reason).set(active)
