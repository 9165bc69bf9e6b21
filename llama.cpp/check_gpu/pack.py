"""Makes the folder that `make check-gpu` needs on a machine without network: ``python -m check_gpu.pack [FOLDER]``.

Needs the network (unless everything is in pip's cache) and the development environment.  The folder appears whole or
not at all; it is an error when it does not fit, with the checkout, into the limit.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker

from check_gpu.packing import LIMIT, SOURCE, PackError, is_compiled, unpack_source, write_manifest
from lcpd.build import source, toolchain
from lcpd.build.errors import BuildError
from lcpd.build.fetching import run_or_explain
from lcpd.build.pin import Pin, load_pin
from lcpd.build.report import reporter_for
from lcpd.paths import dirs, native_recipe

ROOT = Path(__file__).resolve().parents[2]
BINDINGS = "llama-cpp-python"
# What the bindings and lcpd's engine import; those with compiled code come once for each Python.
PURE = ("diskcache", "jinja2", "typing-extensions")
COMPILED = ("markupsafe", "msgspec")
PYTHONS = ("3.11", "3.12", "3.13")
# NumPy has 16 MB, so only for the Python of current distributions; elsewhere it has to be there already.
NUMPY_PYTHON = "3.12"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


@dataclass(frozen=True)
class Locked:
    """One entry of requirements.lock."""

    name: str
    version: str
    marker: str
    """Empty where it holds for every Python."""
    hashes: tuple[str, ...]


def read_lock(text: str) -> Iterator[Locked]:
    """The entries of a lock file with hashes."""
    for match in re.finditer(r"^([A-Za-z0-9._-]+)==(\S+)(?: ; (.*?))? \\\n((?:    --hash=\S+(?: \\)?\n)+)", text, re.M):
        yield Locked(match[1], match[2], match[3] or "", tuple(re.findall(r"--hash=(\S+)", match[4])))


def locked_for(entries: list[Locked], name: str, python: str) -> Locked:
    """The entry of a package that holds for a Python version.  Raises `PackError`."""
    environment = {"python_full_version": f"{python}.0", "python_version": python}
    for entry in entries:
        if entry.name == name and (not entry.marker or Marker(entry.marker).evaluate(environment)):
            return entry
    raise PackError(f"requirements.lock has no {name} for Python {python}")


def download(entry: Locked, python: str, folder: Path) -> None:
    """The locked wheel for a Python on x86-64 Linux, checked by its hash."""
    hashes = [f"--hash={value}" for value in entry.hashes]
    requirement = folder.parent / f"{entry.name}.txt"
    requirement.write_text(f"{entry.name}=={entry.version} {' '.join(hashes)}\n", encoding="utf-8")
    platforms = [part for platform in PLATFORMS for part in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--implementation", "cp", "--python-version", python, *platforms, "--dest", str(folder)]
    run_or_explain([*command, "--require-hashes", "-r", str(requirement)], f"could not download {entry.name}")
    requirement.unlink()


def build_bindings(entry: Locked, folder: Path) -> None:
    """The bindings as a wheel without compiled code: it fits every Python 3."""
    requirement = folder.parent / "bindings.txt"
    requirement.write_text(f"{entry.name}=={entry.version} --hash={entry.hashes[0]}\n", encoding="utf-8")
    command = ["env", "CMAKE_ARGS=-DLLAMA_BUILD=OFF -DLLAVA_BUILD=OFF", sys.executable, "-m", "pip", "wheel"]
    command += ["--quiet", "--no-deps", "--no-binary", BINDINGS, "--wheel-dir", str(folder)]
    run_or_explain([*command, "--require-hashes", "-r", str(requirement)], "could not build the bindings' wheel")
    requirement.unlink()


def write_source(tree: Path, archive: Path) -> int:
    """Packs what a build reads of the tree; returns the number of files."""
    files = sorted(p for p in tree.rglob("*") if p.is_file() and is_compiled(p.relative_to(tree).as_posix()))
    with tarfile.open(archive, "w:xz") as tar:
        for path in files:
            info = tar.gettarinfo(path, path.relative_to(tree).as_posix())
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            with path.open("rb") as data:
                tar.addfile(info, data)
    return len(files)


def verify_source(pack: Path, work: Path) -> None:
    """The packed tree configures, and ninja knows how to make every input of the bridge.  Raises `BuildError`."""
    tree, build = work / "tree", work / "build"
    unpack_source(pack, tree)
    configure = [toolchain.find_tool("cmake"), "-G", "Ninja", "-S", str(native_recipe()), "-B", str(build)]
    configure += [f"-DLLAMA_CPP_SRC={tree}", "-DLCPD_BACKEND=cpu", "-DLLAMA_BUILD_COMMIT=0", "-DLLAMA_BUILD_NUMBER=0"]
    run_or_explain(configure, "the reduced source does not configure")
    run_or_explain([toolchain.find_tool("ninja"), "-C", str(build), "-n", "lcpd_bridge"], "a source file is missing")


def checkout_bytes() -> int:
    """Size of what a copy of the checkout holds: tracked files, and new ones that are not ignored."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.split(b"\0")
    paths = [ROOT / os.fsdecode(name) for name in names if name]
    return sum(path.lstat().st_size for path in paths if path.is_file())


def make(target: Path, pin: Pin) -> None:
    """Makes the pack at target.  Raises `PackError` or `BuildError`."""
    report = reporter_for(sys.stdout)
    entries = list(read_lock((ROOT / "requirements.lock").read_text(encoding="utf-8")))
    tree = source.fetch(source.identify(None, pin), pin, dirs().cache, report)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".pack-") as folder:
        pack = Path(folder) / "pack"
        (pack / "wheels").mkdir(parents=True)
        count = write_source(tree, pack / SOURCE)
        report.say(f"{count} files of llama.cpp, {(pack / SOURCE).stat().st_size / 1e6:.1f} MB; configuring them")
        verify_source(pack, Path(folder) / "verify")
        report.say("wheels")
        build_bindings(locked_for(entries, BINDINGS, PYTHONS[0]), pack / "wheels")
        for name in PURE:
            download(locked_for(entries, name, PYTHONS[0]), PYTHONS[0], pack / "wheels")
        for name in COMPILED:
            for python in PYTHONS:
                download(locked_for(entries, name, python), python, pack / "wheels")
        download(locked_for(entries, "numpy", NUMPY_PYTHON), NUMPY_PYTHON, pack / "wheels")
        manifest = write_manifest(pack, pin, [SOURCE, *(f"wheels/{p.name}" for p in (pack / "wheels").iterdir())])
        for file in manifest.files:
            report.say(f"{file.size / 1e6:8.2f} MB  {file.name}")
        carried, checkout = sum(file.size for file in manifest.files), checkout_bytes()
        report.say(f"{carried / 1e6:8.2f} MB  in all, and {checkout / 1e6:.2f} MB of checkout")
        if carried + checkout > LIMIT:
            raise PackError(f"pack and checkout have {(carried + checkout) / 2**20:.1f} MiB, more than {LIMIT >> 20}")
        shutil.rmtree(target, ignore_errors=True)
        pack.rename(target)
    report.say(f"made {target}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make check-gpu-pack")
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "out" / "gpu-pack")
    options = parser.parse_args()
    try:
        make(options.folder.resolve(), load_pin(native_recipe()))
    except (PackError, BuildError) as error:
        print(f"check-gpu-pack: FAILED: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
