"""A model's shape: everything that decides how much memory it takes, from the header of its file.

`shape_of(metadata, tensors)` makes it; `lcpd.inspect.parts.read_model(path)` reads both from a file, all parts of a
split model together:

    model = read_model(path)
    shape = shape_of(model.metadata, model.tensors)

Units: widths are elements, sizes bytes, contexts and windows tokens (= cells of the KV cache).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lcpd.inspect.header import Tensor, Value
from lcpd.inspect.layers import Kind, Layer, stack_of
from lcpd.inspect.metadata import Metadata, NotAModel, ShapeError
from lcpd.inspect.recurrent import Recurrent
from lcpd.inspect.weights import LayerBytes, Share, TensorClass, Weights, weights_of

__all__ = [
    "Experts",
    "Kind",
    "Layer",
    "LayerBytes",
    "ModelShape",
    "Recurrent",
    "Rope",
    "ShapeError",
    "Share",
    "TensorClass",
    "Weights",
    "shape_of",
]

_MROPE = frozenset({"qwen2vl", "paddleocr", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "qwen4exp", "qwen3tts"})
_MROPE_BY_SECTIONS = frozenset({"bailingmoe3", "glm4", "glm4moe", "hunyuan_vl"})
"""`llama_model_rope_type` of src/llama-model.cpp."""


@dataclass(frozen=True)
class Rope:
    """How positions are encoded, and how far they were stretched already (`load_hparams`)."""

    scaling: str
    """"none", "linear", "yarn" or "longrope": what the file asks for; "none" where its factor is 1."""
    factor: float
    """By how much positions are compressed; 1 for not at all."""
    original_context: int
    """Tokens the model was trained on before scaling; n_ctx_train where nothing is said."""
    freq_base: float
    multi: bool
    """M-RoPE: a cell of the KV cache has 12 bytes more of position (x, y, token) in exported state."""


@dataclass(frozen=True)
class Experts:
    """A mixture of experts."""

    count: int
    used: int
    """Of each layer's experts, how many a token goes through (the most of any layer)."""
    shared: int
    n_ff: int
    """Width of one expert (the widest of any layer); 0 where it is not said."""


@dataclass(frozen=True)
class ModelShape:
    """What decides a model's memory."""

    architecture: str
    name: str
    """general.name; "" where the file has none."""
    n_ctx_train: int
    n_embd: int
    n_vocab: int
    layers: tuple[Layer, ...]
    """All of them: the trunk, then those for multi-token prediction."""
    recurrent: Recurrent | None
    """The state of a sequence in each layer where `layer.recurrent`; None if there is no such layer."""
    window_kind: str
    """"" without sliding windows, "standard" or "chunked"."""
    v_width_max: int
    """The widest V row of any layer (`n_embd_v_gqa_max`): without flash attention all V rows are padded to it."""
    rope: Rope
    experts: Experts | None
    tied_embeddings: bool
    """No output tensor: llama.cpp takes the token embedding for it, and where the output is offloaded holds it twice,
    on the host to look rows up and on the device to make logits."""
    weights: Weights
    unmodelled: str
    """What a context of this architecture keeps that the layers do not tell; "" where they tell all."""

    @property
    def n_layer(self) -> int:
        """Layers of the trunk (without multi-token prediction): `n_layer()` of src/llama-hparams.cpp."""
        return sum(not layer.mtp for layer in self.layers)

    @property
    def n_mtp(self) -> int:
        """Layers for multi-token prediction (`nextn_predict_layers`)."""
        return len(self.layers) - self.n_layer

    @property
    def attention_layers(self) -> tuple[Layer, ...]:
        """Layers that the main context keeps K and V of for the whole context."""
        return tuple(layer for layer in self.layers if layer.cached and layer.kind is not Kind.WINDOW)

    @property
    def window_layers(self) -> tuple[Layer, ...]:
        """Layers that the main context keeps K and V of for the window only."""
        return tuple(layer for layer in self.layers if layer.cached and layer.kind is Kind.WINDOW)

    @property
    def recurrent_layers(self) -> tuple[Layer, ...]:
        """Layers with a recurrent state for each sequence."""
        return tuple(layer for layer in self.layers if layer.recurrent)

    @property
    def mtp_layers(self) -> tuple[Layer, ...]:
        """Layers that an MTP context keeps K and V of."""
        return tuple(layer for layer in self.layers if layer.mtp)

    @property
    def r_bytes(self) -> int:
        """Bytes of the convolution states (R) of one sequence, all layers together."""
        return 4 * self.recurrent.r_width * len(self.recurrent_layers) if self.recurrent else 0

    @property
    def s_bytes(self) -> int:
        """Bytes of the recurrent states proper (S) of one sequence, all layers together."""
        return 4 * self.recurrent.s_width * len(self.recurrent_layers) if self.recurrent else 0

    @property
    def hybrid(self) -> bool:
        """Whether it has both K and V and recurrent state."""
        return bool(self.recurrent_layers) and any(layer.cached for layer in self.layers)


def shape_of(metadata: Mapping[str, Value], tensors: Sequence[Tensor]) -> ModelShape:
    """The shape that a header describes.  Raises ShapeError; NotAModel for a projector and the like."""
    values = Metadata(metadata)
    if values.architecture == "clip":
        raise NotAModel("this is a projector (mmproj), not a language model; give the model it belongs to")
    if (kind := values.text("general.type")) in ("adapter", "imatrix"):
        raise NotAModel(f"this is an {kind}, not a language model; give the model it belongs to")
    stack = stack_of(values)
    by_name = {tensor.name for tensor in tensors}
    return ModelShape(
        architecture=values.architecture,
        name=values.text("general.name") or "",
        n_ctx_train=values.integer("%.context_length"),
        n_embd=values.integer("%.embedding_length"),
        n_vocab=_vocabulary(values, tensors),
        layers=stack.layers,
        recurrent=stack.recurrent,
        window_kind=stack.window_kind,
        v_width_max=stack.v_width_max,
        rope=_rope(values),
        experts=_experts(values, len(stack.layers)),
        tied_embeddings="output.weight" not in by_name and "token_embd.weight" in by_name,
        weights=weights_of(
            tensors,
            recurrent=tuple(layer.kind is Kind.RECURRENT for layer in stack.layers),
            mtp=tuple(layer.mtp for layer in stack.layers),
        ),
        unmodelled=stack.unmodelled,
    )


def _vocabulary(values: Metadata, tensors: Sequence[Tensor]) -> int:
    """Tokens: those of the tokenizer, else what the file says, else rows of the embedding."""
    if listed := values.count("tokenizer.ggml.tokens"):
        return listed
    rows = next((tensor.dimensions[-1] for tensor in tensors if tensor.name == "token_embd.weight"), 0)
    return values.integer("%.vocab_size", rows)


def _rope(values: Metadata) -> Rope:
    kind = values.text("%.rope.scaling.type") or "linear"
    factor = values.number("%.rope.scaling.factor", 0.0) or values.number("%.rope.scale_linear", 0.0) or 1.0
    n_ctx = values.integer("%.context_length")
    sections = values.integers("%.rope.dimension_sections") if values.is_array("%.rope.dimension_sections") else ()
    by_sections = values.architecture in _MROPE_BY_SECTIONS and len(sections) > 1 and all(sections[:2])
    return Rope(
        scaling=kind if factor != 1.0 or kind == "longrope" else "none",
        factor=factor,
        original_context=values.integer("%.rope.scaling.original_context_length", n_ctx),
        freq_base=values.number("%.rope.freq_base", 10000.0),
        multi=values.architecture in _MROPE or by_sections,
    )


def _experts(values: Metadata, n_layer: int) -> Experts | None:
    count = values.integer("%.expert_count", 0)
    if count == 0:
        return None
    return Experts(
        count=count,
        used=max(values.per_layer("%.expert_used_count", n_layer, 0)),
        shared=values.integer("%.expert_shared_count", 0),
        n_ff=max(values.per_layer("%.expert_feed_forward_length", n_layer, 0)),
    )
