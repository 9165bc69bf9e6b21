"""What a native build depends on."""

from __future__ import annotations

from lcpd.build.machine import GIB, default_jobs, parse_cpuinfo, required_disk

X86 = "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: sse4_2 avx2 amx_tile\n\nprocessor\t: 1\nmodel name\t: B\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd sve\nCPU part\t: 0xd4f\n"


def test_model_and_features_come_from_the_first_processor() -> None:
    cpu = parse_cpuinfo(X86, "x86_64")
    assert (cpu.model, cpu.features, cpu.has_amx) == ("A CPU", ("amx_tile", "avx2", "sse4_2"), True)


def test_arm_names_its_features_otherwise() -> None:
    cpu = parse_cpuinfo(ARM, "aarch64")
    assert (cpu.model, cpu.features, cpu.has_amx) == ("0xd4f", ("asimd", "fp", "sve"), False)


def test_another_feature_is_another_fingerprint() -> None:
    without = parse_cpuinfo(X86.replace(" amx_tile", ""), "x86_64")
    assert without.fingerprint != parse_cpuinfo(X86, "x86_64").fingerprint


def test_the_order_of_features_does_not_matter() -> None:
    reordered = parse_cpuinfo(X86.replace("sse4_2 avx2", "avx2 sse4_2"), "x86_64")
    assert reordered.fingerprint == parse_cpuinfo(X86, "x86_64").fingerprint


def test_jobs_are_limited_by_memory_and_never_zero() -> None:
    assert default_jobs(8, 64 * GIB, "cpu") == 8
    assert default_jobs(8, 4 * GIB, "cpu") == 4
    assert default_jobs(8, 4 * GIB, "cuda") == 2
    assert default_jobs(8, GIB // 2, "cpu") == 1


def test_more_to_fetch_and_to_compile_needs_more_disk() -> None:
    cpu = required_disk("cpu", 0, has_source=True, needs_wheels=False)
    assert required_disk("cpu", 0, has_source=False, needs_wheels=False) > cpu
    one = required_disk("cuda", 1, has_source=True, needs_wheels=False)
    assert cpu < one < required_disk("cuda", 2, has_source=True, needs_wheels=False)
    assert required_disk("cuda", 1, has_source=True, needs_wheels=True) > one
