"""Where the weights lie: on the GPU, and on the host.

Source: `load_tensors` (llama-model.cpp).  Of the layers the last `n_gpu_layers` go to the GPU, and the output counts as
one more after the last; token embeddings stay on the host ("very little benefit to offloading the input layer").  Where
the output shares the tensor of the embeddings and is offloaded, it is a copy on the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from lcpd.inspect.shape import ModelShape, TensorClass

_REPACKED = {
    "avx2": frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"}),
    "avx512f": frozenset({"Q2_K"}),
    "asimddp": frozenset({"Q4_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "Q8_0"}),
}
"""Feature of the CPU, as /proc/cpuinfo names it -> types of which the CPU backend keeps another copy, in the order in
which its kernels read them (ggml-cpu/repack.cpp, `ggml_repack_get_optimal_repack_type`)."""


@dataclass(frozen=True)
class Placed:
    """Bytes of weights."""

    gpu: int
    host: int


def offloaded(shape: ModelShape, gpu_layers: int | None) -> frozenset[int]:
    """Indices of the layers on the GPU; the output counts as the one behind the last (`i_gpu_start`)."""
    total = len(shape.layers)
    count = total + 1 if gpu_layers is None else gpu_layers
    return frozenset(range(max(0, total + 1 - count), total)) if count else frozenset()


def place(shape: ModelShape, gpu_layers: int | None, draft_heads: bool = False) -> Placed:
    """Where the weights go with so many layers on the GPU (None: all; 0: there is none).

    Layers for multi-token prediction are left out unless `draft_heads` (llama.h, `load_mtp`).
    """
    weights = shape.weights
    loaded = {
        layer.index: each.nbytes
        for layer, each in zip(shape.layers, weights.layers, strict=True)
        if draft_heads or not layer.mtp
    }
    outside = weights.nbytes - sum(each.nbytes for each in weights.layers)
    if gpu_layers == 0:
        return Placed(0, sum(loaded.values()) + outside)
    embedding = weights.nbytes_of(TensorClass.EMBEDDING)
    on_gpu = offloaded(shape, gpu_layers)
    layers = sum(nbytes for index, nbytes in loaded.items() if index in on_gpu)
    copied = embedding if shape.tied_embeddings else 0
    return Placed(layers + outside - embedding + copied, sum(loaded.values()) - layers + embedding)


def repacked(shape: ModelShape, cpu_flags: frozenset[str], draft_heads: bool = False) -> int:
    """Bytes of the copies that the CPU backend makes of matrices that it multiplies with.

    An estimate: matrices whose rows are no multiple of 8 are not copied, and the build may use fewer features.
    """
    types = frozenset[str]().union(*(types for flag, types in _REPACKED.items() if flag in cpu_flags))
    left_out = {TensorClass.NORM, TensorClass.EMBEDDING, TensorClass.VISION}
    if not draft_heads:
        left_out.add(TensorClass.MTP)
    return sum(share.nbytes for share in shape.weights.shares if share.quant in types and share.cls not in left_out)
