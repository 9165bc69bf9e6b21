"""Everything that `lcpd inspect` says of a file, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gguf.constants import LlamaFileType

from lcpd.inspect.chat import ChatTemplate, chat_template
from lcpd.inspect.header import GgufError
from lcpd.inspect.layers import Kind, Layer
from lcpd.inspect.metadata import Metadata, ShapeError
from lcpd.inspect.parts import Gguf, read_model
from lcpd.inspect.projector import Projector, projector_of, projectors_beside
from lcpd.inspect.shape import ModelShape, shape_of
from lcpd.inspect.tokenizer import Tokenizer, tokenizer_of
from lcpd.inspect.weights import Weights, weights_of
from lcpd.models.variants import variants

Json = dict[str, Any]
F16 = 2
"""Bytes of an element."""
EXAMPLE_FACTOR = 4
"""By which the context is extended in the example: what Qwen, for one, gives in its model cards."""


@dataclass(frozen=True)
class ModelReport:
    """A language model."""

    file: Gguf
    shape: ModelShape
    file_type: str
    """general.file_type, as llama.cpp names it: Q4_K_M; "" where nothing is said."""
    label: str
    """The quantisation by the file's name: UD-Q4_K_XL; "" where the name has none."""
    template: ChatTemplate | None
    tokenizer: Tokenizer
    no_positions: bool
    """Whether attention has no rotary positions (granite hybrids), and so no limit of its own."""
    projectors: tuple[Path, ...]
    """Files beside it that look like projectors."""


@dataclass(frozen=True)
class ProjectorReport:
    """A projector file."""

    file: Gguf
    name: str
    projector: Projector
    weights: Weights


def inspect_file(path: Path) -> ModelReport | ProjectorReport:
    """Read what a file says; of a split model `path` is the first part.  Raises GgufError."""
    file = read_model(path)
    metadata = Metadata(file.metadata)
    try:
        if metadata.architecture == "clip":
            name = metadata.text("general.name") or ""
            return ProjectorReport(file, name, projector_of(metadata), weights_of(file.tensors, (), ()))
        return ModelReport(
            file=file,
            shape=shape_of(file.metadata, file.tensors),
            file_type=_file_type(metadata),
            label=_label(path),
            template=chat_template(metadata),
            tokenizer=tokenizer_of(metadata, path),
            no_positions=metadata.architecture == "granitehybrid"
            and metadata.flag("%.rope.scaling.finetuned") is False,
            projectors=projectors_beside(path),
        )
    except ShapeError as error:
        raise GgufError.about(path, str(error)) from None


def _file_type(metadata: Metadata) -> str:
    number = metadata.integer("general.file_type", -1) if metadata.has("general.file_type") else -1
    try:
        return LlamaFileType(number).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        return "" if number < 0 else f"type {number}"


def _label(path: Path) -> str:
    found = variants((path.name,))
    return found[0].quant if found and found[0].quant != path.stem else ""


# ---- figures ---------------------------------------------------------------------------------------------


def kv_bytes(shape: ModelShape, layers: tuple[Layer, ...]) -> int:
    """Bytes of K and V of one token in these layers, in f16."""
    return F16 * sum(layer.k_width + layer.v_width for layer in layers)


def context_limit(report: ModelReport) -> str:
    """What bounds the context: "rope", or "none" where nothing in the model does."""
    attends = any(layer.attends for layer in report.shape.layers if not layer.mtp)
    return "rope" if attends and not report.no_positions else "none"


def indices(shape: ModelShape, *kinds: Kind) -> list[int]:
    """Layers of the trunk of these kinds."""
    return [layer.index for layer in shape.layers if not layer.mtp and layer.kind in kinds]


# ---- JSON ------------------------------------------------------------------------------------------------


def as_json(report: ModelReport | ProjectorReport) -> Json:
    """The report as `--json` prints it; docs/inspect.md describes it.  Sizes are bytes, widths elements."""
    if isinstance(report, ProjectorReport):
        return {
            "kind": "projector",
            "name": report.name,
            "file": _file(report.file),
            "projector": asdict(report.projector),
            "weights": _weights(report.weights),
        }
    shape = report.shape
    return {
        "kind": "model",
        "name": shape.name,
        "architecture": shape.architecture,
        "parameters": shape.weights.elements,
        "file_type": report.file_type,
        "label": report.label,
        "file": _file(report.file),
        "layers": {
            "count": shape.n_layer,
            "mtp": shape.n_mtp,
            "attention": indices(shape, Kind.ATTENTION),
            "sliding_window": indices(shape, Kind.WINDOW),
            "recurrent": indices(shape, Kind.RECURRENT),
            "attention_and_recurrent": indices(shape, Kind.BOTH),
            "none": indices(shape, Kind.NONE),
            "window": max((layer.window for layer in shape.layers), default=0),
            "each": [asdict(layer) for layer in shape.layers],
            "unmodelled": shape.unmodelled,
        },
        "embedding_length": shape.n_embd,
        "experts": asdict(shape.experts) if shape.experts else None,
        "recurrent": asdict(shape.recurrent) | {"sequence_bytes": shape.r_bytes + shape.s_bytes}
        if shape.recurrent
        else None,
        "kv_bytes_per_token_f16": {
            "attention": kv_bytes(shape, shape.attention_layers),
            "sliding_window": kv_bytes(shape, shape.window_layers),
        },
        "context": {
            "native": shape.n_ctx_train,
            "limited_by": context_limit(report),
            "trained": shape.rope.original_context,
            "scaling": shape.rope.scaling,
            "factor": shape.rope.factor,
            "freq_base": shape.rope.freq_base,
        },
        "weights": _weights(shape.weights) | {"tied_embeddings": shape.tied_embeddings},
        "tokenizer": asdict(report.tokenizer) | {"vocabulary": shape.n_vocab},
        "chat_template": asdict(report.template) if report.template else None,
        "projectors": [str(path) for path in report.projectors],
    }


def _file(file: Gguf) -> Json:
    return {
        "path": str(file.path),
        "bytes": file.nbytes,
        "gguf_version": file.version,
        "parts": [{"path": str(part.path), "bytes": part.nbytes, "tensors": part.tensors} for part in file.parts],
    }


def _weights(weights: Weights) -> Json:
    return {
        "bytes": weights.nbytes,
        "bits_per_weight": round(weights.bits_per_weight, 4),
        "classes": {
            str(cls): {
                "bytes": weights.nbytes_of(cls),
                "parameters": weights.elements_of(cls),
                "bits_per_weight": round(weights.bits_per_weight_of(cls), 4),
                "quants": [
                    {"quant": s.quant, "tensors": s.tensors, "parameters": s.elements, "bytes": s.nbytes}
                    for s in weights.of(cls)
                ],
            }
            for cls in weights.classes
        },
    }
