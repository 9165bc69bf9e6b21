"""Where lcpd keeps its files.

``$LCPD_HOME`` puts everything below one folder; without it the XDG base directories are used
(https://specifications.freedesktop.org/basedir-spec/latest/).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_REPOSITORY = _PACKAGE.parent.parent


@dataclass(frozen=True)
class Dirs:
    """The folders lcpd writes to.  None of them is created by looking it up."""

    config: Path
    """Holds ``lcpd.toml``."""
    builds: Path
    """One folder per compiled llama.cpp, and the ``active`` link."""
    models: Path
    """Downloaded models."""
    cache: Path
    """The prompt cache's disk tier and downloads that can be fetched again."""


def dirs() -> Dirs:
    """The folders for this process's environment (read anew on each call, so tests may change it)."""
    home = os.environ.get("LCPD_HOME")
    if home:
        base = Path(home).expanduser()
        return Dirs(config=base, builds=base / "builds", models=base / "models", cache=base / "cache")
    cache = _xdg("XDG_CACHE_HOME", ".cache")
    return Dirs(
        config=_xdg("XDG_CONFIG_HOME", ".config"),
        builds=cache / "builds",
        models=_xdg("XDG_DATA_HOME", ".local/share") / "models",
        cache=cache,
    )


def _xdg(variable: str, default: str) -> Path:
    value = os.environ.get(variable, "")
    # The specification: a relative path in these variables is invalid and ignored.
    base = Path(value) if value.startswith("/") else Path.home() / default
    return base / "lcpd"


def native_recipe() -> Path:
    """The folder with ``CMakeLists.txt``, ``pin.toml`` and ``bridge/``, in a checkout or an installed wheel."""
    installed = _PACKAGE / "_native"
    return installed if installed.is_dir() else _REPOSITORY / "llama.cpp"


def systemd_files() -> Path:
    """The folder with the unit files, in a checkout or an installed wheel."""
    installed = _PACKAGE / "_systemd"
    return installed if installed.is_dir() else _REPOSITORY / "systemd"


def demo_model() -> Path:
    """The tiny trained hybrid that ships with lcpd."""
    installed = _PACKAGE / "_assets" / "lcpd-tiny-hybrid.gguf"
    return installed if installed.is_file() else _REPOSITORY / "tests" / "assets" / "lcpd-tiny-hybrid.gguf"
