"""``pin.toml``: the exact source and CUDA wheels that belong to this version of lcpd."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Wheel:
    package: str
    version: str
    sha256: Mapping[str, str]
    """By machine name as ``platform.machine()`` gives it."""


@dataclass(frozen=True)
class Pin:
    package: str
    version: str
    sha256: str
    folder: str
    commit: str
    repository: str
    cuda_version: str
    cuda_minimum_driver: int
    cuda_wheels: tuple[Wheel, ...]


def load_pin(recipe: Path) -> Pin:
    """Reads ``pin.toml`` of the recipe folder."""
    data = tomllib.loads((recipe / "pin.toml").read_text(encoding="utf-8"))
    source, cuda = data["source"], data["cuda"]
    return Pin(
        package=source["package"],
        version=source["version"],
        sha256=source["sha256"],
        folder=source["folder"],
        commit=source["commit"],
        repository=source["repository"],
        cuda_version=cuda["version"],
        cuda_minimum_driver=cuda["minimum_driver"],
        cuda_wheels=tuple(Wheel(w["package"], w["version"], w["sha256"]) for w in cuda["wheels"]),
    )
