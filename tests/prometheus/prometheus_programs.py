"""Where prometheus and promtool come from: this machine, or Debian's package unpacked into lcpd's cache folder.

The package is unpacked, not installed: no service is started, no root is needed, and the machine stays as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lcpd.paths import dirs

_WITHIN = 300
"""Seconds for a download of 20 MB and for apt's lists."""


class Unavailable(Exception):
    """There is no Prometheus, and it cannot be had; the text says why."""


@dataclass(frozen=True)
class Programs:
    prometheus: Path
    promtool: Path


@cache
def programs() -> Programs:
    """Both programs; Debian's package is fetched where they are not installed.  Raises Unavailable."""
    folder = dirs().cache / "prometheus"
    for place in (shutil.which("prometheus"), str(folder / "usr/bin/prometheus")):
        if place and Path(place).is_file() and Path(place).with_name("promtool").is_file():
            return Programs(Path(place), Path(place).with_name("promtool"))
    _unpack(folder)
    return Programs(folder / "usr/bin/prometheus", folder / "usr/bin/promtool")


def _unpack(folder: Path) -> None:
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise Unavailable(f"prometheus is not installed, and there is no {program} to fetch Debian's package with")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        problem = _run(["apt-get", "download", "prometheus"], work)
        if problem and os.geteuid() == 0:
            # The lists of a fresh machine are empty.
            problem = _run(["apt-get", "update", "-qq"], work) or _run(["apt-get", "download", "prometheus"], work)
        packages = list(Path(work).glob("prometheus_*.deb"))
        if not packages:
            raise Unavailable(f"prometheus is not installed and cannot be fetched: {problem or 'no such package'}")
        problem = _run(["dpkg-deb", "-x", str(packages[0]), "unpacked"], work)
        if problem:
            raise Unavailable(f"{packages[0].name} cannot be unpacked: {problem}")
        shutil.rmtree(folder, ignore_errors=True)
        (Path(work) / "unpacked").rename(folder)


def _run(command: list[str], folder: str) -> str:
    """Run to the end; returns what went wrong, "" if nothing did."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_WITHIN)
    except subprocess.TimeoutExpired:
        return f"{' '.join(command)} took longer than {_WITHIN} s"
    return "" if done.returncode == 0 else (done.stderr.strip()[-500:] or f"exit status {done.returncode}")
