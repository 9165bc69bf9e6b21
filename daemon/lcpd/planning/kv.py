"""The KV cache: a row of K and one of V for each cell and layer.

Sources: the constructors of `llama_kv_cache` (llama-kv-cache.cpp: one tensor of n_embd_k_gqa x cells for K, one for V)
and `llama_kv_cache_iswa` (llama-kv-cache-iswa.cpp: layers with a window get a cache of their own, of
`GGML_PAD(min(cells, n_swa * sequences + n_ubatch), 256)` cells, because the cache is unified and not swa_full).
Which layers have K and V at all is `llama_model::create_memory` (llama-model.cpp), told by the model's shape.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lcpd.config.settings import UNQUANTISED_KV, KvType
from lcpd.inspect.shape import Layer, ModelShape
from lcpd.planning.context import Context
from lcpd.planning.rows import block_elements, row_bytes


@dataclass(frozen=True)
class Cache:
    """One KV cache.  Sizes in bytes."""

    name: str
    """`full`, `window` or `draft`."""
    layers: int
    cells: int
    k_bytes: int
    v_bytes: int

    @property
    def nbytes(self) -> int:
        return self.k_bytes + self.v_bytes


def caches(shape: ModelShape, context: Context, layers: Collection[int] | None = None) -> tuple[Cache, ...]:
    """The caches of the main context, in the order in which libllama makes them, and that of the draft heads.

    `layers`: indices of those that count; None: all.
    """
    drafting = shape.mtp_layers if context.drafts else ()
    candidates = (
        ("full", shape.attention_layers, context.cells),
        ("window", shape.window_layers, context.window_cells),
        # The MTP context has as many cells, and keeps its own layers alone (`mtp_on_hybrid_qwen`, llama-model.cpp).
        ("draft", drafting, context.cells),
    )
    found = []
    for name, kept, cells in candidates:
        counted = [layer for layer in kept if layers is None or layer.index in layers]
        rows = [_row_pair(shape, layer, context.kv, context.flash_attn) for layer in counted]
        if kept:
            found.append(
                Cache(name, len(counted), cells, cells * sum(k for k, _ in rows), cells * sum(v for _, v in rows))
            )
    return tuple(found)


def token_bytes(shape: ModelShape, kv: KvType, flash_attn: bool = True) -> int:
    """What one more token of context costs, in the layers without a window."""
    return sum(sum(_row_pair(shape, layer, kv, flash_attn)) for layer in shape.attention_layers)


def _row_pair(shape: ModelShape, layer: Layer, kv: KvType, flash_attn: bool) -> tuple[int, int]:
    """Bytes of a row of K and of V.  Without flash attention V is transposed, and all layers have the widest rows."""
    width = layer.v_width if flash_attn or not layer.v_width else shape.v_width_max
    return row_bytes(kv, layer.k_width), row_bytes(kv, width)


def types_that_work(shape: ModelShape, flash_attn: bool) -> tuple[KvType, ...]:
    """KV types that libllama accepts for this model, the most exact ones first.

    `llama_init_from_model` (llama-context.cpp): quantised V needs flash attention, and heads must consist of whole
    blocks.
    """
    order: tuple[KvType, ...] = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
    return tuple(kind for kind in order if refusal(shape, kind, flash_attn) is None)


def refusal(shape: ModelShape, kind: KvType, flash_attn: bool) -> str | None:
    """Why libllama would not make a cache of this type; None where it would."""
    if kind in UNQUANTISED_KV:
        return None
    if not flash_attn:
        return f"{kind} needs flash attention (model.flash_attn)"
    block = block_elements(kind)
    odd = {size for layer in shape.layers if layer.attends for size in (layer.head_k, layer.head_v) if size % block}
    return f"{kind} has blocks of {block}, which heads of {min(odd)} do not consist of" if odd else None
