"""A container that systemd boots, with the real units in it.

Its root is this machine's, under an overlay in memory: nothing that happens in it is kept.  It has process, network,
mount and cgroup namespaces of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lcpd.build import require_active

WITHIN = 120
"""Seconds after which what is waited for will not come."""
REPOSITORY = Path(__file__).parents[2]
PYTHON = f"/opt/python/bin/{Path(sys.executable).resolve().name}"
ENVIRONMENT = {
    "PYTHONPATH": "/opt/lcpd/daemon:/opt/packages",
    "LD_LIBRARY_PATH": "/opt/python/lib",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
}
"""What makes this interpreter and its packages work where a system service can reach them."""
_NEEDED = ("systemd-nspawn", "unshare", "nsenter", "systemctl")
_BOOT = """
set -e
root=$1; shift
mount -t tmpfs tmpfs "$root"
mkdir "$root/upper" "$root/work" "$root/merged"
mount -t overlay overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" "$root/merged"
exec systemd-nspawn --quiet --directory="$root/merged" --register=no --keep-unit --private-network --console=pipe "$@" \
    --boot -- systemd.unit=basic.target
"""
_ASK = """
import json, sys, httpx
method, url, key, body = json.loads(sys.argv[1])
headers = {"Authorization": f"Bearer {key}"} if key else {}
answer = httpx.request(method, url, json=body, headers=headers, timeout=120)
print(json.dumps([answer.status_code, answer.json()]))
"""


def hindrance() -> str | None:
    """Why no container can be booted here; None where one can."""
    if missing := [tool for tool in _NEEDED if shutil.which(tool) is None]:
        return f"not installed: {', '.join(missing)}"
    if os.geteuid() != 0:
        return "needs root"
    if Path("/run/systemd/system").is_dir():
        return "systemd runs here: the cgroups are its own"
    if "overlay" not in Path("/proc/filesystems").read_text():
        return "the kernel has no overlayfs"
    if not _cgroup_folders():
        return "no cgroup2 file system is mounted"
    return None


def _cgroup_folders() -> list[Path]:
    """Where cgroups can be made: the unified hierarchy, and systemd's own of version 1 where it is there."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    if not any(kind == "cgroup2" for _, _, kind, *_ in mounts):
        return []
    return [Path(at) for _, at, kind, options, *_ in mounts if kind == "cgroup2" or "name=systemd" in options]


class Container:
    """A booted container."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "console.log"
        self._cgroups = [at / f"lcpd-test-{os.getpid()}" for at in _cgroup_folders()]
        for cgroup in self._cgroups:
            cgroup.mkdir()
        (folder / "root").mkdir()
        build = require_active()
        binds = {
            sys.base_prefix: "/opt/python",
            sysconfig.get_path("purelib"): "/opt/packages",
            REPOSITORY: "/opt/lcpd",
            build.path: f"/opt/builds/{build.path.name}",
        }
        script = "".join(f"echo $$ > {cgroup}/cgroup.procs\n" for cgroup in self._cgroups) + _BOOT
        command = ["unshare", "--mount", "--propagation", "private", "bash", "-c", script, "boot", folder / "root"]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, *(f"--bind-ro={source}:{target}" for source, target in binds.items())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
            )
        self._until("booted", lambda: self.try_run("systemctl", "is-active", "basic.target").returncode == 0)
        self._build = f"/opt/builds/{build.path.name}"
        self.use_build("/var/lib/lcpd/builds")

    def _leader(self) -> str:
        """The process id of the container's systemd."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return children[-1] if children else "0"

    def _until(self, what: str, true: Any) -> None:
        deadline = time.monotonic() + WITHIN
        while not true():
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"not {what} within {WITHIN} s:\n{self.journal()}"
            time.sleep(0.1)

    def try_run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it."""
        enter = ["nsenter", "--all", "--target", self._leader(), "env", *(f"{k}={v}" for k, v in ENVIRONMENT.items())]
        return subprocess.run([*enter, *command], capture_output=True, text=True, timeout=WITHIN)

    def run(self, *command: str) -> str:
        """Run a command in it, which must succeed; returns what it printed."""
        done = self.try_run(*command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}\n{self.journal()}"
        return done.stdout

    def lcpd(self, *arguments: str) -> str:
        """Run lcpd's command in it."""
        return self.run(PYTHON, "-m", "lcpd", *arguments)

    def use_build(self, folder: str) -> None:
        """Let this machine's active build be the one of a builds folder in it."""
        self.run("mkdir", "-p", folder)
        self.run("ln", "-s", self._build, f"{folder}/active")

    def write(self, path: str, text: str) -> None:
        """Write one of its files."""
        self.run("sh", "-c", 'mkdir -p "$(dirname "$1")" && printf %s "$2" > "$1"', "write", path, text)

    def property(self, name: str) -> str:
        """One of lcpd.service's, as systemd tells it."""
        return self.run("systemctl", "show", "--property", name, "--value", "lcpd.service").strip()

    def wait_for(self, name: str, value: str) -> None:
        """Wait until a property of lcpd.service has a value."""
        self._until(f"{name}={value}", lambda: self.property(name) == value)

    def begin_to_ask(self, path: str, body: object = None, key: str | None = "secret") -> subprocess.Popen[str]:
        """Send one request to lcpd from inside."""
        asked = json.dumps(["GET" if body is None else "POST", f"http://127.0.0.1:8080{path}", key, body])
        command = ["nsenter", "--net", "--target", self._leader(), sys.executable, "-c", _ASK, asked]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def answer(self, asking: subprocess.Popen[str]) -> tuple[int, Any]:
        """Status and body of the answer."""
        out, problems = asking.communicate(timeout=WITHIN)
        assert asking.returncode == 0, f"{problems}\n{self.journal()}"
        status, body = json.loads(out)
        return status, body

    def ask(self, path: str, body: object = None, key: str | None = "secret") -> tuple[int, Any]:
        """Send one request to lcpd from inside, and read the answer."""
        return self.answer(self.begin_to_ask(path, body, key))

    def journal(self) -> str:
        """What lcpd and systemd have said."""
        return self.try_run("journalctl", "--no-pager", "--lines=60", "--unit=lcpd.service").stdout

    def close(self) -> None:
        """Switch it off."""
        leader = int(self._leader())
        if leader:
            os.kill(leader, signal.SIGRTMIN + 4)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for cgroup in self._cgroups:
            for folder in [*sorted(cgroup.rglob("*/"), reverse=True), cgroup]:
                folder.rmdir()


@pytest.fixture(scope="session")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """Booted once for all tests."""
    if reason := hindrance():
        pytest.skip(f"no container can be booted: {reason}")
    container = Container(tmp_path_factory.mktemp("container"))
    yield container
    container.close()
