"""How many threads to compute with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lcpd.engine import threads


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Eight logical CPUs on four cores and no quota; returns the file for the quota."""
    quota = tmp_path / "cpu.max"
    real = threads._cgroup_quota
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(threads, "_core", lambda cpu: f"{cpu % 4},{cpu % 4 + 4}")
    monkeypatch.setattr(threads, "_cgroup_quota", lambda _: real(quota))
    return quota


def test_hyper_threads_of_one_core_count_once(machine: Path) -> None:
    assert threads.free_cores() == 4


def test_only_cores_within_the_affinity_count(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 4})
    assert threads.free_cores() == 2


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 4),
        ("200000 100000", 2),
        ("250000 100000", 2),
        ("50000 100000", 1),  # half a CPU still needs a thread
        ("900000 100000", 4),
        ("not what the kernel writes", 4),
    ],
)
def test_the_cgroups_quota_limits_the_cores(machine: Path, quota: str, cores: int) -> None:
    machine.write_text(quota)
    assert threads.free_cores() == cores


def test_this_machine_has_at_least_one_core() -> None:
    assert 1 <= threads.free_cores() <= len(os.sched_getaffinity(0))
