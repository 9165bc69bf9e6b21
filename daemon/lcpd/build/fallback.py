"""Which instructions the CPU backend may use, and what to try after a crash.

``-march=native`` believes CPUID.  Some hypervisors report AMX but do not let a guest use it: the first tile instruction
then kills the process.  So the self-test runs in a child, and when that child dies by such a signal the CPU backend
alone is compiled again with fewer instructions.  What worked is remembered for the machine, so that the crash is not
repeated by the next build.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

from lcpd.build.errors import BuildError

T = TypeVar("T")


class CpuLevel(StrEnum):
    NATIVE = "native"
    NATIVE_NO_AMX = "native-no-amx"
    PORTABLE = "portable"
    """x86-64-v3 (AVX2, FMA, F16C, BMI2) on x86, the compiler's default elsewhere."""


_DESCRIPTIONS = {
    CpuLevel.NATIVE: "all instructions of this CPU",
    CpuLevel.NATIVE_NO_AMX: "all instructions of this CPU but AMX",
    CpuLevel.PORTABLE: "the portable instruction set (x86-64-v3)",
}
_CRASHES = frozenset({signal.SIGILL, signal.SIGSEGV, signal.SIGBUS})
_PORTABLE_X86 = ("SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C")


def describe(level: CpuLevel) -> str:
    return _DESCRIPTIONS[level]


def cmake_options(level: CpuLevel) -> tuple[str, ...]:
    """CMake cache entries; every level sets the same ones, so that one tree can change from level to level."""
    native = "OFF" if level is CpuLevel.PORTABLE else "ON"
    no_amx = "-mno-amx-tile;-mno-amx-int8;-mno-amx-bf16" if level is CpuLevel.NATIVE_NO_AMX else ""
    portable = tuple(f"-DGGML_{name}=ON" for name in _PORTABLE_X86)
    return (f"-DGGML_NATIVE={native}", f"-DLCPD_CPU_FLAGS={no_amx}", *portable)


def is_cpu_crash(signal_number: int) -> bool:
    """Whether this signal can mean that an instruction was executed which the machine does not allow."""
    return signal_number in _CRASHES


def next_level(level: CpuLevel, signal_number: int, cpu_has_amx: bool) -> CpuLevel | None:
    """What to try after the self-test died by this signal; None where fewer instructions cannot help."""
    if not is_cpu_crash(signal_number) or level is CpuLevel.PORTABLE:
        return None
    if level is CpuLevel.NATIVE and cpu_has_amx:
        return CpuLevel.NATIVE_NO_AMX
    return CpuLevel.PORTABLE


class SelfTestCrash(Exception):
    """The self-test's process died by a signal."""

    def __init__(self, signal_number: int, output: str) -> None:
        super().__init__(signal_name(signal_number))
        self.signal_number = signal_number
        self.output = output


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def settle(
    start: CpuLevel, cpu_has_amx: bool, attempt: Callable[[CpuLevel], T], say: Callable[[str], None]
) -> tuple[CpuLevel, T]:
    """Calls ``attempt`` with ever fewer instructions until the self-test in it survives.

    Returns the level that worked and what ``attempt`` returned.  Raises `BuildError` when none works.
    """
    level = start
    while True:
        try:
            return level, attempt(level)
        except SelfTestCrash as crash:
            following = next_level(level, crash.signal_number, cpu_has_amx)
            if following is None:
                raise BuildError(
                    f"the self-test of the finished build died by {crash} with {describe(level)}; its last lines:\n"
                    f"{crash.output}\n"
                    "The previous active build, if any, stays in use. Remedy: try another --source, or another"
                    " compiler (CC=... CXX=... lcpd build)"
                ) from crash
            say(
                f"the self-test died by {crash}: this machine does not allow {describe(level)};"
                f" compiling the CPU backend again with {describe(following)}"
            )
            level = following
