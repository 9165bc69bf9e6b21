"""Downloads through pip, which knows the user's index, proxy and certificates; checked by SHA-256."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from lcpd.build.errors import BuildError
from lcpd.build.hashing import file_sha256


def pip_command(package: str, version: str, folder: Path, from_source: bool) -> list[str]:
    """Downloads one file into folder.  Only the package itself is ever taken from source: for what its source
    distribution needs to tell its name (CMake among it) pip shall use wheels."""
    choice = ["--no-binary", package] if from_source else ["--only-binary", ":all:"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *choice]
    return [*pip, "--dest", str(folder), f"{package}=={version}"]


def download(package: str, version: str, sha256: str, folder: Path, from_source: bool = False) -> Path:
    """The downloaded file, below folder.  Raises `BuildError` when it cannot be had or is not the pinned one."""
    if importlib.util.find_spec("pip") is None:
        raise BuildError(f"this Python environment has no pip; run: {sys.executable} -m ensurepip")
    target = folder / package
    command = pip_command(package, version, target, from_source)
    run_or_explain(command, f"could not download {package} {version}")
    files = list(target.iterdir())
    if len(files) != 1:
        raise BuildError(f"pip downloaded {[f.name for f in files]} for {package} {version}, expected one file")
    found = file_sha256(files[0])
    if found != sha256:
        raise BuildError(
            f"{files[0].name} has SHA-256 {found}, but pin.toml says {sha256}: it is not the file that was reviewed,"
            " so it is not used. Check the package index that pip is configured for"
        )
    return files[0]


def run_or_explain(command: list[str], what: str) -> None:
    """Runs the command; raises `BuildError` with ``what`` and the end of its output."""
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        tail = "\n".join(done.stdout.strip().splitlines()[-8:])
        raise BuildError(f"{what}; {command[0]} said:\n{tail}")
