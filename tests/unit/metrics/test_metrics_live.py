"""Figures that are looked up when they are asked for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from lcpd.config import Settings
from lcpd.engine.supervisor import State
from lcpd.metrics import Metrics, live
from lcpd.metrics.live import Live
from lcpd.metrics.nvml import Reading

BOARD = Reading(0, "A Board", "570", 0.5, None, None, None, None, None, None, None, {}, None)


class SlowNvml:
    """Answers at once the first time, and from then on when it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = threading.Event()
        self.workers: list[int | None] = []

    def read(self, worker: int | None) -> list[Reading]:
        self.asked += 1
        self.workers.append(worker)
        if self.asked > 1:
            self.may_answer.wait()
        return [BOARD]


def make(nvml: SlowNvml) -> tuple[Live, Metrics]:
    metrics = Metrics()
    supervisor = SimpleNamespace(pid=42, state=State.READY, info=None, load_seconds=2.5, shrunk="")
    chat = SimpleNamespace(pid=None)
    return Live(metrics, Settings(), "a-model", supervisor, chat, nvml), metrics  # type: ignore[arg-type]


async def test_a_driver_that_hangs_does_not_hold_up_a_scrape_and_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "_WITHIN", 0.02)
    nvml = SlowNvml()
    figures, metrics = make(nvml)
    for _ in range(3):
        body, _ = await figures.expose("")
        assert b'lcpd_gpu_utilization_ratio{gpu="0"} 0.5' in body
    assert (nvml.asked, nvml.workers) == (2, [42, 42])
    nvml.may_answer.set()
    await figures.expose("")
    assert metrics.registry.get_sample_value("lcpd_model_load_seconds") == 2.5


STOP_WITH_A_DRIVER_THAT_HANGS = """
import asyncio
from test_metrics_live import SlowNvml, live, make

live._WITHIN = 0.02

async def main():
    figures, _ = make(SlowNvml())
    for _ in range(2):
        await figures.expose("")

asyncio.run(main())
print("ended")
"""


def test_a_driver_that_hangs_does_not_keep_the_process_from_its_end() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STOP_WITH_A_DRIVER_THAT_HANGS],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ended\n", "")


async def test_scrapes_at_the_same_time_share_what_is_read() -> None:
    nvml = SlowNvml()
    figures, _ = make(nvml)
    bodies = await asyncio.gather(*(figures.expose("") for _ in range(3)))
    assert all(b"lcpd_gpu_utilization_ratio{" in body for body, _ in bodies)
    assert nvml.asked == 1


async def test_without_a_model_its_name_is_known() -> None:
    nvml = SlowNvml()
    _, metrics = make(nvml)
    assert metrics.registry.get_sample_value("lcpd_model_info", {"model": "a-model"}) == 1
