"""A whole model: the header of its file, or of all parts of a split one together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lcpd.inspect.header import DAMAGED, GgufError, Header, Tensor, Value, read_header
from lcpd.models.reference import Shard

PARTS_MAX = 1000


@dataclass(frozen=True)
class Part:
    """One file of a model."""

    path: Path
    nbytes: int
    tensors: int


@dataclass(frozen=True)
class Gguf:
    """A model's metadata and tensor infos, from all of its files."""

    metadata: Mapping[str, Value]
    """Of the first part."""
    tensors: tuple[Tensor, ...]
    """Of all parts."""
    parts: tuple[Part, ...]
    """In order; one where the model is not split."""
    version: int
    """Of GGUF."""

    @property
    def path(self) -> Path:
        """The file to load: the first part."""
        return self.parts[0].path

    @property
    def nbytes(self) -> int:
        """Bytes of all files together."""
        return sum(part.nbytes for part in self.parts)


def read_model(path: Path) -> Gguf:
    """Read the headers of the model whose (first) file is `path`.  Raises GgufError.

    The parts of a split model must all be there and fit each other, as `llama_model_loader` of
    src/llama-model-loader.cpp demands.
    """
    first = read_header(path)
    count = _split(path, first, "split.count", 1)
    if count == 0 or count > PARTS_MAX:
        raise GgufError(path, f"split.count is {count}, and must be from 1 to {PARTS_MAX}", DAMAGED)
    headers = [(path, first)]
    if count > 1:
        shard = Shard.of(path.name) if path.name.lower().endswith(".gguf") else None
        number = _split(path, first, "split.no", 0)
        if shard is None or (shard.index, shard.count) != (number + 1, count):
            stem = shard.stem if shard else path.stem
            name = f"{stem}-{number + 1:05}-of-{count:05}.gguf"
            raise GgufError(path, f"it is part {number + 1} of {count}, and is not named so", f"rename it to {name}")
        if number != 0:
            raise GgufError(path, f"it is part {number + 1} of {count}", f"give {shard.siblings()[0]}")
        for index, name in enumerate(shard.siblings()[1:], start=1):
            headers.append((path.with_name(name), _part(path.with_name(name), index, count)))
    tensors = tuple(tensor for _, header in headers for tensor in header.tensors)
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise GgufError(path, "two parts hold the same tensor", "get all parts from one place again")
    expected = _split(path, first, "split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise GgufError(
            path,
            f"the parts hold {len(tensors)} tensors together, and should hold {expected} (split.tensors.count)",
            "get all parts from one place again",
        )
    return Gguf(
        first.metadata,
        tensors,
        tuple(Part(part, header.file_size, len(header.tensors)) for part, header in headers),
        first.version,
    )


def _part(path: Path, index: int, count: int) -> Header:
    if not path.exists():
        raise GgufError(path, f"part {index + 1} of {count} is not here", "get it from where the others are from")
    header = read_header(path)
    if (_split(path, header, "split.no", -1), _split(path, header, "split.count", -1)) != (index, count):
        raise GgufError(path, f"it is not part {index + 1} of {count}, as it is named", "get all parts again")
    return header


def _split(path: Path, header: Header, key: str, default: int) -> int:
    value = header.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise GgufError(path, f"{key} is no whole number", DAMAGED)
    return value
