"""Which backend and which architectures."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcpd.build import gpu
from lcpd.build.errors import BuildError
from lcpd.build.gpu import (
    Gpu,
    Nvidia,
    choose_architectures,
    choose_backend,
    detect_nvidia,
    parse_nvidia_smi,
)

RTX = Nvidia((Gpu("NVIDIA GeForce RTX 3090", "8.6"), Gpu("NVIDIA GeForce RTX 3090", "8.6")), "580.65.06")


def test_nvidia_smi_lines_become_cards_and_a_driver() -> None:
    text = "NVIDIA GeForce RTX 3090, 8.6, 580.65.06\nNVIDIA GeForce RTX 3090, 8.6, 580.65.06\n"
    assert parse_nvidia_smi(text) == RTX


def test_a_name_with_a_comma_is_kept_whole() -> None:
    found = parse_nvidia_smi("NVIDIA H200, 141 GB, 9.0, 580.95")
    assert found is not None
    assert found.gpus == (Gpu("NVIDIA H200, 141 GB", "9.0"),)


@pytest.mark.parametrize("text", ["", "No devices were found\n", "NVIDIA-SMI has failed, because, ..."])
def test_an_nvidia_smi_without_cards_means_no_gpu(text: str) -> None:
    assert parse_nvidia_smi(text) is None


def test_auto_takes_cuda_where_a_card_and_its_driver_are() -> None:
    backend, reason = choose_backend("auto", RTX, vulkan=True)
    assert backend == "cuda"
    assert "RTX 3090" in reason


def test_auto_takes_vulkan_only_without_nvidia() -> None:
    assert choose_backend("auto", None, vulkan=True)[0] == "vulkan"


def test_auto_takes_the_cpu_where_no_gpu_works() -> None:
    assert choose_backend("auto", None, vulkan=False)[0] == "cpu"


@pytest.mark.parametrize("asked", ["cpu", "cuda", "vulkan"])
def test_an_explicit_backend_is_taken_as_it_is(asked: str) -> None:
    assert choose_backend(asked, RTX, vulkan=False)[0] == asked


def test_the_architectures_are_those_of_the_cards_once_each() -> None:
    mixed = Nvidia((Gpu("B", "12.0"), Gpu("A", "8.6"), Gpu("A", "8.6")), None)
    assert choose_architectures(None, mixed) == ("86-real", "120-real")


def test_asked_architectures_override_the_cards() -> None:
    assert choose_architectures("90, 75-virtual;120a", RTX) == ("75-virtual", "90", "120a")


@pytest.mark.parametrize("asked", ["sm_86", "8.6", "native", ""])
def test_a_malformed_architecture_is_refused_by_name(asked: str) -> None:
    with pytest.raises(BuildError, match="--cuda-arch"):
        choose_architectures(asked, RTX)


def test_cuda_without_a_card_asks_for_the_architecture() -> None:
    with pytest.raises(BuildError, match="say --cuda-arch"):
        choose_architectures(None, None)


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def bare_machine(tmp_path, monkeypatch) -> Path:
    """A machine without GPU and driver; returns its only folder of programs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu, "WSL_FOLDER", str(tmp_path))
    monkeypatch.setattr(gpu, "driver_library", lambda: None)
    return tmp_path


def test_an_installed_nvcc_is_no_gpu(bare_machine) -> None:
    program(bare_machine, "nvcc", "echo release 13.0")
    assert detect_nvidia() is None


def test_a_working_driver_shows_its_cards(bare_machine) -> None:
    program(bare_machine, "nvidia-smi", "echo 'NVIDIA H200, 9.0, 580.95.05'")
    assert detect_nvidia() == Nvidia((Gpu("NVIDIA H200", "9.0"),), "580.95.05")


def test_an_nvidia_smi_without_its_driver_is_no_gpu(bare_machine) -> None:
    program(bare_machine, "nvidia-smi", "echo 'could not communicate with the NVIDIA driver'; exit 9")
    assert detect_nvidia() is None


def test_a_driver_that_does_not_answer_is_no_gpu(bare_machine, monkeypatch) -> None:
    monkeypatch.setattr(gpu, "SMI_TIMEOUT_S", 0.05)
    program(bare_machine, "nvidia-smi", "exec /bin/sleep 600")
    assert detect_nvidia() is None
