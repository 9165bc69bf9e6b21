"""How much of `cache.ram` fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcpd.room import LEAST, fitting, limits_left

GIB = 1 << 30


@pytest.mark.parametrize(
    ("wanted", "available", "size"),
    [
        (8 * GIB, 8 * GIB, 8 * GIB),
        (8 * GIB, 8 * GIB - 1, 4 * GIB),
        (8 * GIB, 3 * GIB, 2 * GIB),
        (8 * GIB, -GIB, LEAST),
        (LEAST + 1, 0, LEAST + 1),  # half of it would be too little to be of use
        (1000, 0, 1000),
        (0, 0, 0),
    ],
)
def test_it_is_halved_until_it_fits_but_not_below_the_least(wanted: int, available: int, size: int) -> None:
    assert fitting(wanted, available) == size


def cgroup(folder: Path, current: int, maximum: str = "max", high: str = "max", cached: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "memory.max").write_text(f"{maximum}\n")
    (folder / "memory.high").write_text(f"{high}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 5\nactive_file {cached}\ninactive_file 0\n")


def test_what_limits_of_the_cgroup_and_of_those_around_it_leave_counts(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "cgroup", tmp_path / "fs"
    proc.write_text("4:memory:/old\n0::/system.slice/lcpd.service\n")
    cgroup(cgroups, 0)
    (cgroups / "memory.max").unlink()  # the root has none of these files
    cgroup(cgroups / "system.slice", 700, maximum="1000")
    cgroup(cgroups / "system.slice/lcpd.service", 300, maximum="900", high="600", cached=50)
    assert limits_left(proc, cgroups) == [350, 300]


def test_without_limits_and_without_cgroups_only_the_machine_counts(tmp_path: Path) -> None:
    proc = tmp_path / "cgroup"
    assert limits_left(proc, tmp_path) == []
    proc.write_text("4:memory:/old\n")
    assert limits_left(proc, tmp_path) == []
    proc.write_text("0::/\n")
    cgroup(tmp_path, 300)
    assert limits_left(proc, tmp_path) == []
