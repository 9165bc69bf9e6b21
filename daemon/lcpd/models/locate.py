"""Where the file of a model reference lies."""

from __future__ import annotations

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
            remedy = "check model.ref"
    shard = Shard.of(path.name)
    for name in shard.siblings() if shard else (path.name,):
        if not path.with_name(name).is_file():
            raise ModelMissing(f"model {ref}: there is no file {path.with_name(name)}; {remedy}")
    return path


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
