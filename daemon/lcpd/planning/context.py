"""What context the worker will make for the settings: cells, sequences, batches, as libllama rounds them.

Sources: `_load` and `_window_cells` in lcpd.engine.worker; `llama_context::llama_context` in llama-context.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

from lcpd.config.settings import KvType
from lcpd.inspect.shape import ModelShape

DEFAULT_CTX_CAP = 32768
"""Tokens: what `model.ctx = 0` takes at most of the model's own limit."""
_PADDING = 256
"""llama-context.cpp, `GGML_PAD(cparams.n_ctx, 256)`; llama-kv-cache-iswa.cpp pads the windows alike."""
_ROLLS_BACK = frozenset(
    {"bailingmoe3", "deepseek4", "glm5-next", "kimi-k3", "lfm2", "lfm2moe"}
    | {"nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen4exp"}
)
"""llama-arch.cpp, `llm_arch_supports_rs_rollback`: elsewhere libllama takes n_rs_seq for 0."""


@dataclass(frozen=True)
class Wanted:
    """The settings that decide about memory; see ModelSettings for their meaning."""

    ctx: int = 0
    slots: int = 4
    kv: KvType = "f16"
    batch: int = 2048
    ubatch: int = 512
    flash_attn: bool = True
    """False where it is switched off: "auto" takes it wherever the backend can."""
    drafts: int = 0
    """Tokens drafted at a time by the model's own heads (MTP); 0: none."""
    gpu_layers: int | None = None
    """None: all."""
    mmap: bool = True


@dataclass(frozen=True)
class Context:
    """What is made for that."""

    ctx: int
    """Tokens that requests may use."""
    cells: int
    """Cells of a cache without a window."""
    window_cells: int
    """Cells of a cache with a window; 0 where there is none."""
    sequences: int
    """One for each slot, and one through which state comes in and out ("scratch")."""
    ubatch: int
    """Tokens computed together at most."""
    kv: KvType
    flash_attn: bool
    snapshots: int
    """Recurrent states that are kept of each sequence beside the current one, to roll drafts back (n_rs_seq)."""
    drafts: int


def resolve(shape: ModelShape, wanted: Wanted) -> Context:
    """The context for the settings."""
    sequences = wanted.slots + 1
    ctx = wanted.ctx or min(shape.n_ctx_train, DEFAULT_CTX_CAP)
    window = max((layer.window for layer in shape.window_layers), default=0)
    # lcpd gives models with windows enough cells for the windows of all sequences, whatever was asked for.
    least = window * sequences + wanted.ubatch if window and not shape.recurrent_layers else 0
    cells = padded(max(ctx, least))
    ubatch = min(wanted.ubatch, wanted.batch, ctx)
    return Context(
        ctx=ctx if window and not shape.recurrent_layers and cells > ctx else cells,
        cells=cells,
        window_cells=padded(min(cells, window * sequences + ubatch)) if window else 0,
        sequences=sequences,
        ubatch=ubatch,
        kv=wanted.kv,
        flash_attn=wanted.flash_attn,
        snapshots=wanted.drafts if shape.architecture in _ROLLS_BACK and shape.recurrent_layers else 0,
        drafts=wanted.drafts,
    )


def padded(cells: int) -> int:
    """Up to the next multiple of 256."""
    return -(-cells // _PADDING) * _PADDING
