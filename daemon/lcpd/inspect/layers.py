"""What each layer of a model is, and what of it a context keeps: the rules of llama.cpp for every architecture.

Sources are those of llama.cpp: `load_hparams` and `create_memory` are in src/llama-model.cpp, `load_arch_hparams` of an
architecture in src/models/<architecture>.cpp, `n_embd_*` in src/llama-hparams.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lcpd.inspect.metadata import MAX_LAYERS, Metadata, ShapeError
from lcpd.inspect.recurrent import (
    DELTA_ATTENTION,
    DELTA_NET,
    LIGHTNING,
    RWKV,
    SHORT_CONVOLUTION,
    Recurrent,
    state_of,
)
from lcpd.inspect.windows import window_of, windowed_layers


class Kind(StrEnum):
    """How a layer mixes tokens."""

    ATTENTION = "attention"
    """Over the whole context: K and V of each token are kept."""
    WINDOW = "sliding window"
    """Attention over the last `window` tokens: K and V of as many (and a batch) are kept."""
    RECURRENT = "recurrent"
    """By a state of fixed size for each sequence."""
    BOTH = "attention + recurrent"
    """Attention over the whole context and a recurrent state, side by side (Falcon-H1)."""
    NONE = "none"
    """Not at all (feed-forward only), or with the K and V of another layer: nothing is kept."""


@dataclass(frozen=True)
class Layer:
    """One layer.  Widths count elements."""

    index: int
    kind: Kind
    mtp: bool
    """For multi-token prediction: not run by the main context, which keeps nothing for it unless `cached`."""
    cached: bool
    """Whether the *main* context keeps K (and V) of this layer."""
    window: int
    """Tokens that a sliding-window layer sees; 0 for all others."""
    n_head: int
    n_head_kv: int
    head_k: int
    """Elements of a key of one head."""
    head_v: int
    k_width: int
    """Elements of K for one token (`n_embd_k_gqa` = head_k * n_head_kv): a row in the cache of the main context where
    `cached`, of the MTP context where `mtp`.  0 where the layer has no attention of its own."""
    v_width: int
    """The same for V (`n_embd_v_gqa`); 0 with multi-head latent attention, which keeps K alone.  Without flash
    attention rows are padded to `ModelShape.v_width_max`."""
    n_ff: int

    @property
    def attends(self) -> bool:
        return self.kind in (Kind.ATTENTION, Kind.WINDOW, Kind.BOTH)

    @property
    def recurrent(self) -> bool:
        """Whether a sequence has a recurrent state (R and S) in this layer."""
        return self.kind in (Kind.RECURRENT, Kind.BOTH)


@dataclass(frozen=True)
class Stack:
    """All layers of a model."""

    layers: tuple[Layer, ...]
    recurrent: Recurrent | None
    window_kind: str
    """"" without sliding windows; "standard" (the last n tokens), or "chunked" (Llama 4: since the last multiple)."""
    v_width_max: int
    unmodelled: str
    """What the context of this architecture keeps beyond (or instead of) what the layers say; "" for nothing."""


_RECURRENT_ONLY = RWKV | {"mamba", "mamba2"}
"""`llm_arch_is_recurrent` of src/llama-arch.cpp."""
_BY_INTERVAL = dict.fromkeys(DELTA_NET, 4) | {LIGHTNING: 8}
"""Every n-th layer is full attention, the others are recurrent, unless an array says which."""
_BY_KV_HEADS = DELTA_ATTENTION | SHORT_CONVOLUTION | {"granitehybrid", "jamba", "plamo2"}
"""A layer without KV heads is recurrent."""
_BY_KV_HEADS_AND_FFN = frozenset({"nemotron_h", "nemotron_h_moe"})
"""A layer without KV heads is recurrent if it is no feed-forward layer either."""
_NO_MEMORY = frozenset(
    {"bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "eurobert"}
    | {"wavtokenizer-dec", "gemma-embedding", "dream", "llada", "llada-moe", "rnd1"}
)
"""`create_memory`: a context that keeps nothing."""
_OWN_MEMORY = {
    "minimax-m3": "an indexer key cache beside K and V",
    "glm-dsa": "an indexer key cache beside K",
    "deepseek32": "an indexer key cache beside K",
    "glm5-next": "an indexer key cache beside K and the recurrent state",
    "qwen4exp": "an indexer key cache and an n-gram state beside K, V and the recurrent state",
    "hy_v4": "an indexer key cache beside K",
    "dots3note": "an indexer key cache beside K, and compressed K in its windows",
    "deepseek4": "compressed K at several ratios instead of K and V",
    "dflash": "a draft model's cache, which depends on its target",
    "eagle3": "a draft model's cache, which depends on its target",
    "gemma4-assistant": "no cache of its own: it shares that of its target",
    "graniteswitch": "a layer more, for the router of adapters",
    "nanbeige": "its layers several times over (num_loops)",
    "t5": "an encoder's output beside K and V",
}
"""Architectures whose context is not described by K, V, R and S of their layers alone."""


def stack_of(metadata: Metadata) -> Stack:
    """`load_hparams` and `create_memory`.  Raises ShapeError."""
    architecture = metadata.architecture
    n_all = metadata.integer("%.block_count")
    if not 1 <= n_all <= MAX_LAYERS:
        raise ShapeError(f"{metadata.key('%.block_count')} must be from 1 to {MAX_LAYERS}, and is {n_all}")
    n_mtp = metadata.integer("%.nextn_predict_layers", 0)
    if n_mtp > n_all:
        raise ShapeError(f"{metadata.key('%.nextn_predict_layers')} is {n_mtp}, of {n_all} layers in all")
    trunk = n_all - n_mtp
    heads = metadata.per_layer("%.attention.head_count", n_all, 0)
    kv_heads = metadata.per_layer("%.attention.head_count_kv", n_all, heads)
    n_ff = metadata.per_layer("%.feed_forward_length", n_all, 0)
    recurrent = _recurrent_layers(metadata, n_all, trunk, kv_heads, n_ff)
    window, window_kind = window_of(metadata, trunk)
    windowed = windowed_layers(metadata, n_all, trunk, recurrent) if window else (False,) * n_all
    sizes, sizes_in_window = _head_sizes(metadata, heads[0])
    latent = metadata.has("%.attention.key_length_mla") and metadata.has("%.attention.value_length_mla")
    own_kv = _layers_with_own_kv(metadata, n_all)
    both = architecture == "falcon-h1"

    layers = []
    for index in range(n_all):
        mtp = index >= trunk
        head_k, head_v = sizes_in_window if windowed[index] else sizes
        attention = (not recurrent[index] or both) and kv_heads[index] > 0 and index < own_kv
        if architecture in _BY_KV_HEADS_AND_FFN and not mtp:
            attention = attention and n_ff[index] == 0
        if recurrent[index]:
            kind = Kind.BOTH if attention else Kind.RECURRENT
        elif attention:
            kind = Kind.WINDOW if windowed[index] else Kind.ATTENTION
        else:
            kind = Kind.NONE
        layers.append(
            Layer(
                index=index,
                kind=kind,
                mtp=mtp,
                cached=attention and _in_main_context(architecture, mtp, trunk, n_ff[index]),
                window=window if kind is Kind.WINDOW else 0,
                n_head=heads[index],
                n_head_kv=kv_heads[index],
                head_k=head_k,
                head_v=head_v,
                k_width=head_k * kv_heads[index] if attention else 0,
                v_width=head_v * kv_heads[index] if attention and not latent else 0,
                n_ff=n_ff[index],
            )
        )
    widest = max((sizes_in_window if windowed[index] else sizes)[1] * kv_heads[index] for index in range(n_all))
    has_state = any(layer.recurrent for layer in layers)
    return Stack(
        layers=tuple(layers),
        recurrent=state_of(metadata, heads[0], sizes[0]) if has_state else None,
        window_kind=window_kind if any(layer.kind is Kind.WINDOW for layer in layers) else "",
        v_width_max=widest,
        unmodelled=_OWN_MEMORY.get(architecture, ""),
    )


def _recurrent_layers(
    metadata: Metadata, n_all: int, trunk: int, kv_heads: tuple[int, ...], n_ff: tuple[int, ...]
) -> tuple[bool, ...]:
    """`is_recr_impl` of each layer: `load_hparams`, then `load_arch_hparams` of the architecture."""
    architecture = metadata.architecture
    if architecture in _RECURRENT_ONLY or architecture == "falcon-h1":
        return (True,) * n_all
    if architecture in _BY_INTERVAL:
        if metadata.has("%.attention.recurrent_layers"):
            named = metadata.per_layer("%.attention.recurrent_layers", n_all, 0)
            return tuple(bool(flag) and index < trunk for index, flag in enumerate(named))
        interval = metadata.integer("%.full_attention_interval", _BY_INTERVAL[architecture])
        if interval == 0:
            raise ShapeError(f"{metadata.key('%.full_attention_interval')} must not be 0")
        return tuple(index < trunk and (index + 1) % interval != 0 for index in range(n_all))
    if architecture in _BY_KV_HEADS:
        return tuple(index < trunk and kv_heads[index] == 0 for index in range(n_all))
    if architecture in _BY_KV_HEADS_AND_FFN:
        return tuple(index < trunk and kv_heads[index] == 0 and n_ff[index] == 0 for index in range(n_all))
    return (False,) * n_all


def _in_main_context(architecture: str, mtp: bool, trunk: int, n_ff: int) -> bool:
    """Whether an attention layer passes the filter that `create_memory` gives to the main context's cache."""
    if architecture in _NO_MEMORY:
        return False
    if not mtp:
        return True
    if trunk == 0:
        return True  # a draft model that consists of such layers
    if architecture in _BY_KV_HEADS_AND_FFN:
        return n_ff == 0
    # Hybrids without a filter of their own keep every layer that is not recurrent.
    return architecture in _BY_KV_HEADS


# ---- heads and states ------------------------------------------------------------------------------------


def _head_sizes(metadata: Metadata, n_head: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Elements of a head's key and value, in full-attention and in sliding-window layers: `load_hparams`."""
    if n_head == 0 and metadata.architecture != "plamo2":
        full = (0, 0)
    else:
        default = metadata.integer("%.embedding_length") // n_head if n_head else 0
        full = (
            metadata.integer("%.attention.key_length", default),
            metadata.integer("%.attention.value_length", default),
        )
    return full, (
        metadata.integer("%.attention.key_length_swa", full[0]),
        metadata.integer("%.attention.value_length_swa", full[1]),
    )


def _layers_with_own_kv(metadata: Metadata, n_all: int) -> int:
    """`n_layer_kv_from_start`: the layers after so many use the K and V of an earlier one."""
    if metadata.architecture == "gemma3n":
        return 20
    if metadata.architecture == "gemma4":
        return max(0, n_all - metadata.integer("%.attention.shared_kv_layers", 0))
    return n_all
