"""Projectors: files (mmproj-*.gguf, architecture `clip`) that let a model see or hear.

Keys: tools/mtmd/clip-impl.h of llama.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lcpd.inspect.metadata import Metadata


@dataclass(frozen=True)
class Tower:
    """One encoder of a projector."""

    projector: str
    """How its output is fitted to the model: "gemma3", "qwen3vl_merger", ...; "" where nothing is said."""
    layers: int
    width: int
    """Elements of an embedding inside."""
    output: int
    """Elements of what it hands to the model: must be the model's embedding length (or a multiple of it)."""
    image_size: int
    """Pixels a side; 0 for audio."""
    patch_size: int


@dataclass(frozen=True)
class Projector:
    """What a projector file holds."""

    vision: Tower | None
    audio: Tower | None


def projector_of(metadata: Metadata) -> Projector:
    """The projector that a header describes.  Raises ShapeError."""
    vision = metadata.flag("clip.has_vision_encoder")
    audio = metadata.flag("clip.has_audio_encoder")
    return Projector(
        vision=_tower(metadata, "vision") if vision else None,
        audio=_tower(metadata, "audio") if audio else None,
    )


def _tower(metadata: Metadata, kind: str) -> Tower:
    own = metadata.text(f"clip.{kind}.projector_type")
    return Tower(
        projector=own or metadata.text("clip.projector_type") or "",
        layers=metadata.integer(f"clip.{kind}.block_count", 0),
        width=metadata.integer(f"clip.{kind}.embedding_length", 0),
        output=metadata.integer(f"clip.{kind}.projection_dim", 0),
        image_size=metadata.integer(f"clip.{kind}.image_size", 0),
        patch_size=metadata.integer(f"clip.{kind}.patch_size", 0),
    )


def projectors_beside(path: Path) -> tuple[Path, ...]:
    """Files in the model's folder that are named as projectors are; nothing is opened."""
    try:
        return tuple(sorted(found for found in path.parent.glob("*mmproj*.gguf") if found.is_file() and found != path))
    except OSError:
        return ()
