"""The carried folder: a manifest with checksums, the reduced llama.cpp source, and wheels.

<pack>/manifest.json   `Manifest`
<pack>/llama.cpp.tar.xz
<pack>/wheels/*.whl
"""

from __future__ import annotations

import json
import re
import shutil
import tarfile
import zipfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from lcpd.build.hashing import file_sha256
from lcpd.build.pin import Pin

FORMAT = 1
MANIFEST = "manifest.json"
SOURCE = "llama.cpp.tar.xz"
LIMIT = 60 << 20
"""Bytes of the checkout and the pack together."""

_BACKENDS = ("ggml-cpu", "ggml-cuda")
_NOT_COMPILED = {".md", ".png", ".jpg", ".jpeg", ".mp3", ".wav", ".gif", ".svg", ".pdf"}


class PackError(Exception):
    """The pack cannot be made or used; the text says why and what to do."""


@dataclass(frozen=True)
class Carried:
    """A file of the pack."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    package: str
    version: str
    sha256: str
    """Package, version and checksum of the pin that the source is from."""
    files: tuple[Carried, ...]


def is_compiled(path: str) -> bool:
    """Whether a file of the llama.cpp tree is read by a CPU or CUDA build of the bridge."""
    pure = PurePosixPath(path)
    parts = pure.parts
    if parts[0] == "models" or pure.suffix.lower() in _NOT_COMPILED:
        return False
    if parts[:2] == ("ggml", "src") and len(parts) > 3 and parts[2].startswith("ggml-"):
        return parts[2] in _BACKENDS
    if parts[:2] == ("tools", "ui"):
        return pure.name == "CMakeLists.txt"
    return not (parts[:2] == ("tools", "server") and len(parts) > 3)


def wheel_fits(name: str, version: tuple[int, int]) -> bool:
    """Whether a wheel is for this Python: a pure one, or one compiled for exactly this version."""
    tag = name.removesuffix(".whl").split("-")[-3]
    return tag in ("py3", "py2.py3", f"cp{version[0]}{version[1]}")


def write_manifest(pack: Path, pin: Pin, names: Iterable[str]) -> Manifest:
    """Describes these files of the pack."""
    files = tuple(Carried(name, (pack / name).stat().st_size, file_sha256(pack / name)) for name in sorted(names))
    manifest = Manifest(pin.package, pin.version, pin.sha256, files)
    (pack / MANIFEST).write_text(json.dumps({"format": FORMAT, **asdict(manifest)}, indent=2) + "\n", encoding="utf-8")
    return manifest


def read_manifest(pack: Path, pin: Pin) -> Manifest:
    """The manifest of a complete and unchanged pack of this checkout.  Raises `PackError`."""
    remedy = "run `make check-gpu-pack` where there is network, and carry the folder along with the checkout"
    path = pack / MANIFEST
    if not path.is_file():
        raise PackError(f"there is no pack in {pack}; {remedy}")
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if data.pop("format", None) != FORMAT:
        raise PackError(f"the pack in {pack} is of another format; {remedy}")
    manifest = Manifest(**{**data, "files": tuple(Carried(**f) for f in data["files"])})
    if (manifest.package, manifest.version, manifest.sha256) != (pin.package, pin.version, pin.sha256):
        raise PackError(f"the pack holds {manifest.package} {manifest.version}, pin.toml says {pin.version}; {remedy}")
    for file in manifest.files:
        if not (pack / file.name).is_file():
            raise PackError(f"{file.name} is missing in {pack}; {remedy}")
        if file_sha256(pack / file.name) != file.sha256:
            raise PackError(f"{file.name} in {pack} was changed or cut short; {remedy}")
    return manifest


def unpack_source(pack: Path, target: Path) -> None:
    """Puts the source tree at target, whole or not at all; does nothing when it is there."""
    if target.is_dir():
        return
    fresh = target.with_name(f".{target.name}.fresh")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    with tarfile.open(pack / SOURCE) as archive:
        archive.extractall(fresh, filter="data")
    fresh.rename(target)


def unpack_wheels(pack: Path, manifest: Manifest, target: Path, version: tuple[int, int], without: set[str]) -> None:
    """Makes target a folder for PYTHONPATH with the wheels for this Python, except the packages in `without`.

    The carried wheels hold nothing but files for site-packages, so unpacking is all the installation they need.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for file in manifest.files:
        name = Path(file.name).name
        if name.endswith(".whl") and wheel_fits(name, version) and package_of(name) not in without:
            with zipfile.ZipFile(pack / file.name) as wheel:
                wheel.extractall(target)


def package_of(wheel: str) -> str:
    """The normalised package name in a wheel's file name."""
    return re.sub(r"[-_.]+", "-", wheel.split("-")[0]).lower()
