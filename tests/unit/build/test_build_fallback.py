"""Fewer instructions after a crash of the self-test."""

from __future__ import annotations

import signal

import pytest

from lcpd.build.errors import BuildError
from lcpd.build.fallback import CpuLevel, SelfTestCrash, cmake_options, next_level, settle


def test_a_crash_on_a_cpu_with_amx_leaves_amx_out_first() -> None:
    assert next_level(CpuLevel.NATIVE, signal.SIGILL, cpu_has_amx=True) is CpuLevel.NATIVE_NO_AMX


def test_a_crash_on_a_cpu_without_amx_goes_straight_to_the_portable_set() -> None:
    assert next_level(CpuLevel.NATIVE, signal.SIGSEGV, cpu_has_amx=False) is CpuLevel.PORTABLE


def test_a_second_crash_goes_to_the_portable_set() -> None:
    assert next_level(CpuLevel.NATIVE_NO_AMX, signal.SIGSEGV, cpu_has_amx=True) is CpuLevel.PORTABLE


def test_nothing_is_left_after_the_portable_set() -> None:
    assert next_level(CpuLevel.PORTABLE, signal.SIGILL, cpu_has_amx=True) is None


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGKILL, signal.SIGTERM])
def test_a_signal_that_no_instruction_causes_changes_nothing(number: int) -> None:
    assert next_level(CpuLevel.NATIVE, number, cpu_has_amx=True) is None


def test_every_level_sets_the_same_cmake_entries_so_that_a_tree_can_change_level() -> None:
    names = {level: [option.split("=")[0] for option in cmake_options(level)] for level in CpuLevel}
    assert len({tuple(n) for n in names.values()}) == 1


def test_the_amx_flags_are_switched_off_for_native_without_amx_only() -> None:
    with_flags = [level for level in CpuLevel if any("-mno-amx-tile" in o for o in cmake_options(level))]
    assert with_flags == [CpuLevel.NATIVE_NO_AMX]


class Machine:
    """A machine on which the self-test dies at some levels."""

    def __init__(self, dies_at: set[CpuLevel], by: int = signal.SIGILL) -> None:
        self.dies_at = dies_at
        self.by = by
        self.tried: list[CpuLevel] = []
        self.said: list[str] = []

    def attempt(self, level: CpuLevel) -> str:
        self.tried.append(level)
        if level in self.dies_at:
            raise SelfTestCrash(self.by, "Fatal Python error: Illegal instruction")
        return f"built at {level}"


def test_a_build_that_survives_is_tried_once() -> None:
    machine = Machine(set())
    assert settle(CpuLevel.NATIVE, True, machine.attempt, machine.said.append) == (
        CpuLevel.NATIVE,
        "built at native",
    )
    assert machine.tried == [CpuLevel.NATIVE]
    assert machine.said == []


def test_the_user_is_told_what_died_and_what_is_tried_next() -> None:
    machine = Machine({CpuLevel.NATIVE})
    level, _ = settle(CpuLevel.NATIVE, True, machine.attempt, machine.said.append)
    assert level is CpuLevel.NATIVE_NO_AMX
    (said,) = machine.said
    assert "SIGILL" in said
    assert "AMX" in said


def test_all_levels_are_tried_in_order_before_giving_up() -> None:
    machine = Machine(set(CpuLevel), signal.SIGSEGV)
    with pytest.raises(BuildError, match=r"SIGSEGV[\s\S]*Illegal instruction[\s\S]*Remedy"):
        settle(CpuLevel.NATIVE, True, machine.attempt, machine.said.append)
    assert machine.tried == [CpuLevel.NATIVE, CpuLevel.NATIVE_NO_AMX, CpuLevel.PORTABLE]


def test_an_abort_is_reported_without_compiling_again() -> None:
    machine = Machine(set(CpuLevel), signal.SIGABRT)
    with pytest.raises(BuildError, match="SIGABRT"):
        settle(CpuLevel.NATIVE, True, machine.attempt, machine.said.append)
    assert machine.tried == [CpuLevel.NATIVE]
