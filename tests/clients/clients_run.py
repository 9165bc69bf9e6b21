"""Installing and running real clients.

They are installed once, into the folder `clients` of lcpd's cache, never into the repository.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from lcpd.paths import dirs

INSTALL_WITHIN = 600
"""Seconds; some of them are large."""
RUN_WITHIN = 120
"""Seconds for one headless run."""


def npm_program(package: str, version: str, name: str) -> Path:
    """A program of an npm package; the test is skipped where it is not installed and is not to be, or cannot be."""
    _need_node()
    folder = _folder(package, version)
    install = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", f"{package}@{version}"]
    return _installed(f"{package}@{version}", folder / "node_modules" / ".bin" / name, [install])


def npm_modules(*packages: str) -> Path:
    """The ``node_modules`` of packages such as "openai@7.1.0", together; skips as `npm_program` does."""
    _need_node()
    folder = dirs().cache / "clients" / "-".join(package.strip("@").replace("/", "-") for package in packages)
    install = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", *packages]
    # npm writes this file last of all.
    return _installed(" ".join(packages), folder / "node_modules" / ".package-lock.json", [install]).parent


def pypi_program(package: str, version: str, name: str) -> Path:
    """As `npm_program`, for a package from PyPI, which gets a virtual environment of its own."""
    folder = _folder(package, version)
    create = [sys.executable, "-m", "venv", str(folder)]
    install = [str(folder / "bin" / "pip"), "install", "--quiet", f"{package}=={version}"]
    return _installed(f"{package}=={version}", folder / "bin" / name, [create, install])


def _need_node() -> None:
    for needed in ("node", "npm"):
        if shutil.which(needed) is None:
            pytest.skip(f"{needed} is not installed")


def _folder(package: str, version: str) -> Path:
    return dirs().cache / "clients" / f"{package.strip('@').replace('/', '-')}-{version}"


def _installed(what: str, program: Path, commands: list[list[str]]) -> Path:
    if not program.exists():
        if "INSTALL_CLIENTS" not in os.environ:
            pytest.skip(f"{what} is not installed: make test-clients")
        program.parent.mkdir(parents=True, exist_ok=True)
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_WITHIN)
            if done.returncode:
                pytest.skip(f"{what} cannot be installed: {done.stderr[-500:]}")
    return program


def environment(home: Path, **more: str) -> dict[str, str]:
    """A client's environment; nothing of this machine's settings reaches it."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TZ") if name in os.environ}
    return {**kept, "HOME": str(home), **more}


async def run_client(command: list[str], folder: Path, within: float = RUN_WITHIN, status: int = 0, **more: str) -> str:
    """The output of a client that runs in `folder`; AssertionError where it ends with another exit status."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=environment(folder, **more),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), within)
    finally:
        await end(process)
    assert process.returncode == status, f"exit status {process.returncode}\n{output.decode()}\n{errors.decode()}"
    return output.decode()


async def connect(client: str, url: str, home: Path) -> None:
    """Configure a client in an empty home folder, as its user would."""
    command = [sys.executable, "-m", "lcpd", "connect", client, "--apply", "--url", url]
    await run_client(command, home, LCPD_HOME=str(home / "lcpd"))


async def end(process: asyncio.subprocess.Process) -> None:
    """End a client that leads a session of its own, and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def end_all_at_home(home: Path) -> None:
    """End what a client has left running in a session of its own: what has `home` in its environment."""
    mark = f"HOME={home}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
