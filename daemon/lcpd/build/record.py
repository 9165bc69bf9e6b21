"""Finished builds as the rest of lcpd sees them: a folder with ``build.json``, ``lib/`` and maybe ``bin/``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lcpd.native import ABI
from lcpd.paths import dirs

MANIFEST = "build.json"
ACTIVE = "active"
FORMAT = 1


class BuildMissing(Exception):
    """There is no usable active build; the text says what to run."""


@dataclass(frozen=True)
class Build:
    """A finished, self-tested build."""

    key: str
    path: Path
    backend: str
    """``cpu``, ``cuda`` or ``vulkan``."""
    llama_cpp: str
    """Where the source came from and its commit, for people."""
    abi: int
    """``LCPD_ABI`` of the bridge in it, as the self-test read it from the library."""
    cpu_level: str
    """A ``fallback.CpuLevel``: which instructions the CPU backend may use."""
    devices: tuple[str, ...]
    """The ggml devices that the self-test saw."""
    created: str
    """ISO 8601, UTC."""

    @property
    def lib_dir(self) -> Path:
        """The value for ``LLAMA_CPP_LIB_PATH``: libllama, libggml*, libmtmd and liblcpd_bridge."""
        return self.path / "lib"

    @property
    def peer(self) -> Path | None:
        """``llama-server`` from the same source, where it was asked for."""
        path = self.path / "bin" / "llama-server"
        return path if path.is_file() else None


def read_build(path: Path) -> Build | None:
    """The build in this folder, or None where there is none or its manifest is of another format."""
    try:
        manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
    if manifest.get("format") != FORMAT:
        return None
    return Build(
        key=manifest["key"],
        path=path,
        backend=manifest["backend"],
        llama_cpp=manifest["llama_cpp"],
        abi=manifest["abi"],
        cpu_level=manifest["cpu_level"],
        devices=tuple(manifest["devices"]),
        created=manifest["created"],
    )


def active() -> Build | None:
    """The build in use, by its real folder: a later activation does not change what was returned."""
    link = dirs().builds / ACTIVE
    return read_build(link.resolve()) if link.is_symlink() else None


def require_active() -> Build:
    """The build in use.  Raises `BuildMissing` where there is none, or none that this version of lcpd can use."""
    build = active()
    if build is None:
        raise BuildMissing(f"no finished build of llama.cpp in {dirs().builds}; run: lcpd build")
    if build.abi != ABI:
        raise BuildMissing(
            f"the active build {build.key} has bridge ABI {build.abi}, this lcpd needs {ABI}; run: lcpd build"
        )
    return build
