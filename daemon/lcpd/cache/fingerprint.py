"""Whether state bytes of an earlier daemon mean the same to this one.

A fingerprint keeps its fields, so that a mismatch can be told by name.

    field              why
    -----              ---
    format             what lcpd stores, and how it cuts it
    model file         size, time of change, and a hash of the GGUF header with its metadata and tensor infos, of the
                       first and of the last MiB: of every part of a split model
    llama.cpp          the build: libllama's layout of state, and how it computes
    backend            as above
    kv type            what K and V rows consist of
    flash attention    as it came out when the context was made: without it V is stored transposed
    rope               the model's own (in its header); where it has factors for long contexts, llama.cpp chooses them
                       by the context's length, and the K rows depend on it
    context type       what a sequence's state is made of, and that its cells are unified

Not part of it: `n_batch`, `n_ubatch`, threads, layers on the GPU (they change the order of sums, as every cut of a
prompt does), the number of slots, and the context's length in all other cases.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

import xxhash

from lcpd.build.record import Build
from lcpd.config.settings import ModelSettings
from lcpd.engine.protocol import ModelInfo
from lcpd.inspect.header import GgufError, read_header
from lcpd.models.reference import Shard

FORMAT = 1
"""Raised whenever stored state means something else to lcpd than before."""
EDGE = 1 << 20
"""Bytes at both ends of a model file that are always hashed."""
_LONG_FACTORS = "rope_factors_long"
"""Part of a tensor's name."""

Fingerprint: TypeAlias = dict[str, str]


@dataclass(frozen=True)
class ModelFile:
    """What identifies a model without reading all of it."""

    identity: str
    long_factors: bool
    """Whether it has rope factors of its own for long contexts."""


def fingerprint(file: ModelFile, build: Build, settings: ModelSettings, info: ModelInfo) -> Fingerprint:
    """The fields of the module's table."""
    flash = {True: "on", False: "off", None: f"{settings.flash_attn} (asked for)"}[info.flash_attn]
    return {
        "format": str(FORMAT),
        "model file": file.identity,
        "llama.cpp": f"{build.llama_cpp}, build {build.key}",
        "backend": build.backend,
        "kv type": settings.kv,
        "flash attention": flash,
        "rope": f"by context length, {info.n_ctx}" if file.long_factors else "the model's",
        "context type": f"{info.kind}, unified",
    }


def digest(fields: Mapping[str, str]) -> str:
    """The fingerprint in 32 hexadecimal digits; the order of the fields does not matter."""
    return xxhash.xxh3_128_hexdigest("\0".join(f"{name}\0{fields[name]}" for name in sorted(fields)).encode())


def difference(stored: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """What differs, such as "kv type (f16, now q8_0)"; "" where nothing does."""
    names = [*ours, *(name for name in stored if name not in ours)]
    return ", ".join(
        f"{name} ({stored.get(name, 'unknown')}, now {ours.get(name, 'unknown')})"
        for name in names
        if stored.get(name) != ours.get(name)
    )


# ---- model files -----------------------------------------------------------------------------------------


def read_model(path: Path) -> ModelFile:
    """Identify a model by its file, the first one of a split model.  Raises OSError."""
    shard = Shard.of(path.name) if path.suffix == ".gguf" else None
    hashed = xxhash.xxh3_128()
    size = 0
    long_factors = False
    for part in shard.siblings() if shard else (path.name,):
        with path.with_name(part).open("rb") as file:
            status = os.fstat(file.fileno())
            hashed.update(struct.pack("<qq", status.st_size, status.st_mtime_ns))
            length, factors = _header(path.with_name(part))
            _hash(file, 0, max(length, EDGE), hashed)
            _hash(file, max(0, status.st_size - EDGE), EDGE, hashed)
        size += status.st_size
        long_factors |= factors
    return ModelFile(f"{size} bytes, {hashed.hexdigest()}", long_factors)


def _header(path: Path) -> tuple[int, bool]:
    """The header's bytes, and whether it has rope factors for long contexts; 0 and False for what has none."""
    try:
        header = read_header(path)
    except GgufError:
        return 0, False
    return header.length, any(_LONG_FACTORS in tensor.name for tensor in header.tensors)


def _hash(file: BinaryIO, begin: int, size: int, hashed: xxhash.xxh3_128) -> None:
    file.seek(begin)
    while size > 0 and (block := file.read(min(size, EDGE))):
        hashed.update(block)
        size -= len(block)
