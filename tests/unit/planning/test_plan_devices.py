"""Which cards a model may use, and how much of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcpd.build.record import Build
from lcpd.metrics.nvml import Nvml
from lcpd.planning import devices
from lcpd.planning.devices import machine_for, usable, visible
from unit.metrics.fake_nvml import FakeNvml

BUILD = Build("key", Path("build"), "cuda", "a commit", 1, "native", (), "2026-01-01")
CARDS = ("GPU-aa11", "GPU-ab22", "GPU-cc33")


@pytest.mark.parametrize(
    ("listed", "shown"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("1", [1]),
        ("2,0", [2, 0]),
        (" 2 , 0", [2, 0]),
        ("0,7,1", [0]),
        ("0,-1,1", [0]),
        ("0,nonsense,1", [0]),
        ("0,,1", [0]),
        ("1,1", []),
        ("GPU-cc33,GPU-aa", [2, 0]),
        ("GPU-a", []),
        ("GPU-cc,GPU-dd,0", [2]),
        ("MIG-aa11", []),
    ],
)
def test_the_cards_that_cuda_shows_are_read_from_the_variable_as_cuda_does(
    listed: str | None, shown: list[int]
) -> None:
    assert visible(listed, CARDS) == shown


@pytest.mark.parametrize(
    ("split", "expected"),
    [((), 30), ((0.0, 0.0), 30), ((1.0, 1.0), 20), ((1.0,), 10), ((0.0, 2.0), 20), ((1.0, 3.0), 26), ((1.0, 2.0), 30)],
)
def test_a_split_leaves_of_the_cards_what_the_fullest_one_allows(split: tuple[float, ...], expected: int) -> None:
    assert usable([10, 20], split) == expected


@pytest.mark.parametrize(("listed", "free"), [(None, 14 + 13 + 12), ("1", 13), ("GPU-2,0", 12 + 14), ("-1", None)])
def test_only_the_memory_of_cards_that_are_shown_is_planned_with(
    listed: str | None, free: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "Nvml", lambda: Nvml(FakeNvml(boards=3)))
    if listed is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    machine = machine_for(BUILD, None)
    assert machine.gpu == (free is not None)
    assert free is None or machine.device_bytes == free
