"""Which files of a repository are one model, and which model a QUANT names.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from lcpd.models.reference import Shard

_QUANT = re.compile(
    r"(?:^|(?<=[-._ ]))(?:UD-)?"
    r"(?:I?Q[0-9]+(?:_[A-Z0-9]+)*|TQ[0-9]_[0-9]|BF16|FP?16|FP?32|(?:MX|NV)FP4(?:_MOE)?)"
    r"(?=$|[-. ])",
    re.IGNORECASE,
)


class QuantError(LookupError):
    """No variant, or more than one, is meant; the message lists what there is."""


@dataclass(frozen=True)
class Variant:
    """One model of a repository: one GGUF file, or all parts of a split one in order."""

    quant: str
    """The quantisation as the file's name spells it (``Q4_K_M``); the name itself where it has none."""
    files: tuple[str, ...]
    """Paths within the repository."""


def variants(paths: Iterable[str]) -> tuple[Variant, ...]:
    """The models among ``paths``, sorted by quantisation.

    Projectors (``mmproj``) and importance matrices are no models.  A split model counts only if
    every part is there.
    """
    names = {path for path in paths if path.lower().endswith(".gguf") and _is_model(path)}
    found: list[Variant] = []
    for path in sorted(names):
        pure = PurePosixPath(path)
        shard = Shard.of(pure.name)
        if shard is None:
            found.append(Variant(_quant_of(pure.stem), (path,)))
        elif shard.index == 1:
            files = tuple(str(pure.with_name(name)) for name in shard.siblings())
            if names.issuperset(files):
                found.append(Variant(_quant_of(shard.stem), files))
    return tuple(sorted(found, key=lambda variant: (variant.quant.lower(), variant.files)))


def choose(paths: Iterable[str], quant: str | None) -> Variant:
    """The model that ``quant`` means, upper or lower case: its whole quantisation, else a part of its name.

    Without ``quant`` the only one there is.  Raises ``QuantError``.
    """
    present = variants(paths)
    if not present:
        raise QuantError("it has no complete GGUF model")
    if quant is None:
        candidates = present
    else:
        wanted = quant.lower()
        exact = tuple(each for each in present if each.quant.lower() == wanted)
        candidates = exact or tuple(each for each in present if wanted in each.files[0].lower())
    if len(candidates) == 1:
        return candidates[0]
    offered = ", ".join(_labels(candidates or present))
    if quant is None:
        raise QuantError(f"it has several models; add one of these as :QUANT: {offered}")
    if candidates:
        raise QuantError(f"{quant!r} fits several of its models: {offered}")
    raise QuantError(f"it has no model {quant!r}; there are: {offered}")


def _is_model(path: str) -> bool:
    name = PurePosixPath(path).name.lower()
    return not name.startswith("mmproj") and "imatrix" not in name


def _quant_of(stem: str) -> str:
    labels = _QUANT.findall(stem)
    return str(labels[-1]) if labels else stem


def _labels(present: tuple[Variant, ...]) -> list[str]:
    """What to type for each variant: its quantisation, or its file's name where two have the same."""
    quants = [each.quant for each in present]
    return [each.quant if quants.count(each.quant) == 1 else PurePosixPath(each.files[0]).stem for each in present]
