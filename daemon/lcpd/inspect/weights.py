"""The tensors of a model by class and quantisation: how many bytes of what."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from lcpd.inspect.header import Tensor


class TensorClass(StrEnum):
    """What a tensor is for."""

    EMBEDDING = "embedding"
    """Token, position and per-layer token embeddings: looked up by row, and kept on the host by llama.cpp."""
    OUTPUT = "output"
    """The head that makes logits; none where the token embedding is used for it (tied)."""
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    """State-space, delta-net, short convolution and RWKV mixers, with all projections of such a layer."""
    FFN = "ffn"
    """Dense feed-forward matrices."""
    ROUTER = "router"
    """What chooses the experts."""
    EXPERTS = "experts"
    SHARED_EXPERTS = "shared experts"
    NORM = "norm"
    MTP = "mtp"
    """Everything in the layers for multi-token prediction; llama.cpp leaves them out unless told to draft."""
    VISION = "vision"
    """Of a projector file (architecture `clip`): vision and audio towers, and the projector."""
    OTHER = "other"


@dataclass(frozen=True)
class Share:
    """The tensors of one class in one quantisation."""

    cls: TensorClass
    quant: str
    """As ggml names it: Q4_K, F32, MXFP4."""
    tensors: int
    elements: int
    nbytes: int


@dataclass(frozen=True)
class LayerBytes:
    """What one layer weighs."""

    nbytes: int
    """All of its tensors, experts included."""
    experts: int
    """Bytes of those that are (routed) experts, which may stay on the host while the rest is offloaded."""


@dataclass(frozen=True)
class Weights:
    """All tensors of a model.  Bytes are those of the tensors (ggml_nbytes), without padding between them."""

    shares: tuple[Share, ...]
    """By class in the order of `TensorClass`, within it by bytes, the largest first."""
    layers: tuple[LayerBytes, ...]
    """One for each layer, those for multi-token prediction at the end."""

    @property
    def nbytes(self) -> int:
        """As llama.cpp prints it ("model size"), tensors for multi-token prediction included."""
        return sum(share.nbytes for share in self.shares)

    @property
    def elements(self) -> int:
        """As llama.cpp prints it ("model params")."""
        return sum(share.elements for share in self.shares)

    @property
    def bits_per_weight(self) -> float:
        """8 * bytes / elements ("BPW"; `llama_model_loader::print_info`); 0 without tensors."""
        return _bits(self.nbytes, self.elements)

    @property
    def classes(self) -> tuple[TensorClass, ...]:
        """Those that the model has, in the order of `TensorClass`."""
        present = {share.cls for share in self.shares}
        return tuple(cls for cls in TensorClass if cls in present)

    def of(self, cls: TensorClass) -> tuple[Share, ...]:
        return tuple(share for share in self.shares if share.cls is cls)

    def nbytes_of(self, cls: TensorClass) -> int:
        return sum(share.nbytes for share in self.of(cls))

    def elements_of(self, cls: TensorClass) -> int:
        return sum(share.elements for share in self.of(cls))

    def bits_per_weight_of(self, cls: TensorClass) -> float:
        return _bits(self.nbytes_of(cls), self.elements_of(cls))


def weights_of(tensors: Iterable[Tensor], recurrent: tuple[bool, ...], mtp: tuple[bool, ...]) -> Weights:
    """`recurrent` and `mtp`: for each layer, whether a recurrent mixer is all that mixes it, whether it is for
    multi-token prediction."""
    counts: dict[tuple[TensorClass, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    layer_bytes = [0] * len(mtp)
    expert_bytes = [0] * len(mtp)
    for tensor in tensors:
        layer = layer_of(tensor.name)
        inside = layer is not None and layer < len(mtp)
        cls = class_of(
            tensor.name,
            recurrent=inside and recurrent[layer or 0],
            mtp=inside and mtp[layer or 0],
        )
        entry = counts[cls, tensor.quant]
        entry[0] += 1
        entry[1] += tensor.elements
        entry[2] += tensor.nbytes
        if layer is not None and inside:
            layer_bytes[layer] += tensor.nbytes
            if _role(tensor.name) is TensorClass.EXPERTS:
                expert_bytes[layer] += tensor.nbytes
    order = list(TensorClass)
    shares = [Share(cls, quant, *entry) for (cls, quant), entry in counts.items()]
    shares.sort(key=lambda share: (order.index(share.cls), -share.nbytes, share.quant))
    return Weights(tuple(shares), tuple(map(LayerBytes, layer_bytes, expert_bytes)))


_BLOCK = re.compile(r"blk\.([0-9]{1,4})\.(.+)", re.DOTALL)
_EXPERTS = re.compile(r"ffn_(gate|up|down|gate_up)_(exps|chexps)\b|ffn_(gate|up|down)\.[0-9]+\b")
_EMBEDDINGS = ("token_embd.", "position_embd.", "token_types.", "per_layer_token_embd.")
_VISION = ("v.", "a.", "mm.", "resampler.", "adapter.", "model.vision")
_RECURRENT = ("ssm_", "shortconv.", "time_mix_", "channel_mix_")


def layer_of(name: str) -> int | None:
    """The layer a tensor belongs to: `blk.7.attn_q.weight` is of 7."""
    match = _BLOCK.match(name)
    return int(match[1]) if match else None


def class_of(name: str, *, recurrent: bool = False, mtp: bool = False) -> TensorClass:
    """`recurrent` and `mtp` are about the tensor's layer.  Names: LLM_TENSOR_NAMES of src/llama-arch.cpp."""
    if mtp or name.startswith("nextn."):
        return TensorClass.MTP
    role = _role(name)
    return TensorClass.RECURRENT if recurrent and role is TensorClass.ATTENTION else role


def _role(name: str) -> TensorClass:
    match = _BLOCK.match(name)
    if match is None:
        if name.startswith(_VISION):
            return TensorClass.VISION
        if "norm" in name:
            return TensorClass.NORM
        if name.startswith(_EMBEDDINGS):
            return TensorClass.EMBEDDING
        return TensorClass.OUTPUT if name.startswith("output.") else TensorClass.OTHER
    part = match[2]
    if part.startswith("nextn."):
        return TensorClass.MTP
    if part.startswith(_RECURRENT):
        return TensorClass.RECURRENT
    if "norm" in part:
        return TensorClass.NORM
    if _EXPERTS.match(part):
        return TensorClass.EXPERTS
    if "_shexp" in part and "_inp" not in part:
        return TensorClass.SHARED_EXPERTS
    if part.startswith(("ffn_gate_inp", "ffn_gate_tid2eid", "exp_probs")):
        return TensorClass.ROUTER
    if part.startswith("ffn"):
        return TensorClass.FFN
    return TensorClass.ATTENTION if part.startswith(("attn_", "indexer")) else TensorClass.OTHER


def _bits(nbytes: int, elements: int) -> float:
    return 8 * nbytes / elements if elements else 0.0
