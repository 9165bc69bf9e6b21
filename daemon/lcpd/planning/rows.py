"""Bytes of rows by their type."""

from __future__ import annotations

from lcpd.config.settings import KvType

_BLOCKS: dict[KvType, tuple[int, int]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
}
"""Elements and bytes of a block, of the types that a KV cache can have (ggml/src/ggml-common.h, `block_q8_0` ...)."""


def row_bytes(kind: KvType, elements: int) -> int:
    """Bytes of a row: `ggml_row_size` (ggml/src/ggml.c).  Raises ValueError where it is no whole number of blocks."""
    block, size = _BLOCKS[kind]
    if elements % block:
        raise ValueError(f"a row of {elements} elements cannot be {kind}, whose blocks have {block}")
    return elements // block * size


def block_elements(kind: KvType) -> int:
    """Elements of a block; heads of quantised K and V must be its multiples (llama-context.cpp,
    `llama_init_from_model`)."""
    return _BLOCKS[kind][0]
