"""Where the file of a model reference lies."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from lcpd import paths
from lcpd.models.catalogue import PACKAGED
from lcpd.models.reference import Demo, File, Hub, Shard, parse
from lcpd.models.variants import QuantError, choose
from lcpd.paths import Dirs


class ModelMissing(Exception):
    """The model is not on this machine; the message says how to get it."""


def resolve(ref: str, dirs: Dirs) -> Path:
    """The GGUF file that ``ref`` names (of a split model the first part); every part of it exists.

    Nothing is downloaded.  Raises ``BadReference`` for what is no reference and ``ModelMissing`` for what is
    not here.
    """
    reference = parse(ref)
    match reference:
        case Demo():
            path = demo_file(reference, dirs)
            remedy = f"run: lcpd pull {ref}"
            if reference.name == "hybrid":
                remedy = "it ships with lcpd: this installation is damaged, install it again"
        case Hub():
            path = _hub_file(reference, dirs)
            remedy = f"run: lcpd pull {ref}"
        case File():
            path = reference.path
            remedy = "check the path"
    shard = Shard.of(path.name)
    for name in shard.siblings() if shard else (path.name,):
        if problem := _no_file(path.with_name(name)):
            raise ModelMissing(f"model {ref}: {problem}; {remedy}")
    return path


_KINDS = {
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a named pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}


def _no_file(path: Path) -> str:
    """Why there is no regular file at `path`; empty where there is one."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a path with a 0 byte
        number = error.errno if isinstance(error, OSError) else None
        if number == errno.ELOOP:
            return f"{path} is a symbolic link that leads back to itself"
        if number == errno.ENOENT and path.is_symlink():
            return f"{path} is a symbolic link to {path.readlink()}, which is not there"
        if number in (errno.ENOENT, errno.ENOTDIR):
            return f"there is no file {path}"
        return f"{path} cannot be looked at ({os.strerror(number) if number else error})"
    if stat.S_ISREG(mode):
        return ""
    kind = next((kind for is_kind, kind in _KINDS.items() if is_kind(mode)), "something else")
    return f"{path} is {kind}, not a .gguf file"


def demo_file(reference: Demo, dirs: Dirs) -> Path:
    """Where this demo model lies, or will lie once it is pulled."""
    if reference.name == "hybrid":
        return paths.demo_model()
    return dirs.models / "demo" / PACKAGED[reference.name].filename


def hub_folder(reference: Hub, dirs: Dirs) -> Path:
    """The folder that mirrors the repository."""
    return dirs.models / "hf" / reference.owner / reference.repo


def _hub_file(reference: Hub, dirs: Dirs) -> Path:
    folder = hub_folder(reference, dirs)
    present = [str(path.relative_to(folder)) for path in folder.rglob("*.gguf")]
    if not present:
        raise ModelMissing(f"model {reference} is not on this machine; run: lcpd pull {reference}")
    try:
        return folder / choose(present, reference.quant).files[0]
    except QuantError as error:
        raise ModelMissing(f"model {reference}: in {folder}: {error}; run: lcpd pull {reference}") from None
