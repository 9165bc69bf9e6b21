"""Compute buffers: what a batch needs while it is computed.

libllama finds their size by laying out the graph of a whole batch (`llama_context::sched_reserve`, llama-context.cpp),
and can do so without allocating anything: :mod:`lcpd.planning.dry_run`.  What is here is an *estimate* for where that
cannot be asked, because the card or the model's file is not at hand.  The graph is largest in one of two places:

    at the end     logits of every token of the batch, and the last hidden states
    in a layer     the attention masks (inputs that live as long as the graph), without flash attention the attention
                   scores of all heads, and what flows between the matrices

The factors of the hidden states are fitted to dry runs on the CPU, so as to be too large rather than too small
(docs/planning.md lists how far off they are).
"""

from __future__ import annotations

from dataclasses import dataclass

from lcpd.inspect.shape import ModelShape
from lcpd.planning.context import Context

_F32 = 4


@dataclass(frozen=True)
class Compute:
    """Bytes of the compute buffers."""

    device: int
    """Where the layers are: on the GPU, or the host without one."""
    host: int
    """Beside a GPU: inputs on their way to it."""


def output_bytes(shape: ModelShape, context: Context) -> int:
    """The buffer from which logits are read, on the host; exact (`llama_context::output_reserve`)."""
    return shape.n_vocab * context.sequences * _F32


def estimate(shape: ModelShape, context: Context, gpu: bool) -> Compute:
    """See the module."""
    tokens = context.ubatch
    masks = _masks(shape, context)
    # The masks' place is free by then, but seldom of use: logits are larger.
    at_end = masks + tokens * _F32 * (shape.n_vocab + 4 * shape.n_embd)
    in_layer = masks + _scores(shape, context) + tokens * _F32 * _flow(shape) + _scanned(shape, context)
    if gpu:
        in_layer += _f16_copies(shape, context)
    return Compute(max(at_end, in_layer), masks + tokens * _F32 * shape.n_embd if gpu else 0)


def _masks(shape: ModelShape, context: Context) -> int:
    """One for each kind of cache: cells x tokens, f16 with flash attention, else f32 (`build_attn_inp_kq_mask`,
    llama-graph.cpp)."""
    cells = context.cells if shape.attention_layers else 0
    return (cells + context.window_cells) * context.ubatch * (2 if context.flash_attn else 4)


def _scores(shape: ModelShape, context: Context) -> int:
    """Attention scores of all heads over all cells, which flash attention never holds (`build_attn_mha`)."""
    if context.flash_attn:
        return 0
    heads = max((layer.n_head * context.cells for layer in shape.attention_layers), default=0)
    in_window = max((layer.n_head * context.window_cells for layer in shape.window_layers), default=0)
    return max(heads, in_window) * context.ubatch * _F32


def _f16_copies(shape: ModelShape, context: Context) -> int:
    """CUDA's flash attention reads K and V of a layer in f16, and makes copies of caches of other types
    (`ggml_cuda_flash_attn_ext_get_alloc_size`, ggml-cuda/fattn.cu)."""
    if context.kv == "f16" or not context.flash_attn:
        return 0
    widest = max((layer.k_width + layer.v_width for layer in shape.attention_layers), default=0)
    in_window = max((layer.k_width + layer.v_width for layer in shape.window_layers), default=0)
    return 2 * max(widest * context.cells, in_window * context.window_cells)


def _scanned(shape: ModelShape, context: Context) -> int:
    """A scan over a state space gives the new states of all sequences beside its output (`ggml_ssm_scan`, ggml.c)."""
    if shape.recurrent is None or shape.recurrent.family != "state space":
        return 0
    return shape.recurrent.s_width * context.sequences * _F32


def _flow(shape: ModelShape) -> int:
    """Elements for each token that are held at once in the layer that holds the most."""
    attention = max((layer.n_head * (layer.head_k + layer.head_v) for layer in shape.layers), default=0)
    forward = 2 * max(layer.n_ff for layer in shape.layers)
    if shape.experts:
        each = 2 * shape.experts.n_ff + shape.n_embd
        forward = max(forward, shape.experts.used * each + shape.experts.count)
    recurrent = 0
    if shape.recurrent:
        recurrent = 3 * (shape.recurrent.conv_channels + shape.recurrent.d_inner)
    return 4 * shape.n_embd + max(attention + forward, recurrent)
