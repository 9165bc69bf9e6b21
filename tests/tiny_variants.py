"""Tiny models for what none of the demo models can: code between two pieces of code, reranking, nothing but embedding.

The first is the tiny hybrid with some of its special tokens named for it.  The others have random weights, which say
nothing, but always the same.  All have the tiny hybrid's tokenizer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from lcpd.paths import demo_model

RERANK_TEMPLATE = "<|im_start|>system\nDoes the text answer?<|im_end|>\n{query}\n<think>\n{document}</think>\n"
_SEED = 6
_LAYERS, _WIDTH, _HEADS, _KV_HEADS, _HEAD, _INNER = 2, 64, 4, 2, 16, 128
_GAP_TOKENS = {
    "fim_pre": "<tool_call>",
    "fim_suf": "</tool_call>",
    "fim_mid": "<tool_response>",
    "fim_rep": "</think>",
    "fim_sep": "<think>",
}


def infill_model(folder: Path, files: bool = True) -> Path:
    """A model with the tokens for infill; those that separate files only with `files`."""

    def write(writer: gguf.GGUFWriter, source: gguf.GGUFReader) -> None:
        for field in source.fields.values():
            if not field.name.startswith("GGUF.") and field.name != "general.architecture":
                _copy(writer, field)
        vocabulary = source.fields["tokenizer.ggml.tokens"].contents()
        for name, text in _GAP_TOKENS.items():
            if files or name not in ("fim_rep", "fim_sep"):
                writer.add_uint32(f"tokenizer.ggml.{name}_token_id", vocabulary.index(text))
        for tensor in source.tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)

    return _made(folder / f"tiny-infill-{'files' if files else 'plain'}", "qwen35", write)


def reranker_model(folder: Path, template: bool) -> Path:
    """A Qwen3 with a head that says yes or no; with a template for pairs, or with an end token behind every text."""

    def write(writer: gguf.GGUFWriter, source: gguf.GGUFReader) -> None:
        writer.add_name("tiny-reranker")
        writer.add_context_length(512)
        writer.add_embedding_length(_WIDTH)
        writer.add_feed_forward_length(_INNER)
        writer.add_block_count(_LAYERS)
        writer.add_head_count(_HEADS)
        writer.add_head_count_kv(_KV_HEADS)
        writer.add_key_length(_HEAD)
        writer.add_value_length(_HEAD)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(10_000.0)
        writer.add_file_type(gguf.LlamaFileType.ALL_F32)
        writer.add_pooling_type(gguf.PoolingType.RANK)
        writer.add_array("qwen3.classifier.output_labels", ["yes", "no"])
        for field in source.fields.values():
            if field.name.startswith("tokenizer."):
                _copy(writer, field)
        if template:
            writer.add_string("tokenizer.chat_template.rerank", RERANK_TEMPLATE)
        else:
            writer.add_bool("tokenizer.ggml.add_eos_token", True)
        vocabulary = len(source.fields["tokenizer.ggml.tokens"].contents())
        for name, values in _reranker_weights(vocabulary).items():
            writer.add_tensor(name, values.astype(np.float32))

    return _made(folder / f"tiny-reranker-{'template' if template else 'plain'}", "qwen3", write)


def encoder_model(folder: Path, ranks: bool) -> Path:
    """A BERT, which cannot generate: it embeds, or ranks."""

    def write(writer: gguf.GGUFWriter, source: gguf.GGUFReader) -> None:
        writer.add_name("tiny-encoder")
        writer.add_context_length(512)
        writer.add_embedding_length(_WIDTH)
        writer.add_feed_forward_length(_INNER)
        writer.add_block_count(_LAYERS)
        writer.add_head_count(_HEADS)
        writer.add_layer_norm_eps(1e-6)
        writer.add_causal_attention(False)
        writer.add_token_type_count(2)
        writer.add_file_type(gguf.LlamaFileType.ALL_F32)
        writer.add_pooling_type(gguf.PoolingType.RANK if ranks else gguf.PoolingType.CLS)
        for field in source.fields.values():
            if field.name.startswith("tokenizer."):
                _copy(writer, field)
        vocabulary = len(source.fields["tokenizer.ggml.tokens"].contents())
        weights = _encoder_weights(vocabulary)
        if ranks:
            weights |= {"cls.weight": np.eye(_WIDTH), "cls.bias": np.zeros(_WIDTH)}
            weights |= {"cls.output.weight": np.ones((1, _WIDTH)), "cls.output.bias": np.zeros(1)}
        for name, values in weights.items():
            writer.add_tensor(name, values.astype(np.float32))

    return _made(folder / f"tiny-encoder-{'ranks' if ranks else 'embeds'}", "bert", write)


def _made(path: Path, architecture: str, write: Callable[[gguf.GGUFWriter, gguf.GGUFReader], None]) -> Path:
    recipe = hashlib.sha256(Path(__file__).read_bytes() + demo_model().read_bytes()).hexdigest()[:12]
    path = path.with_name(f"{path.name}-{recipe}.gguf")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        writer = gguf.GGUFWriter(unfinished, architecture)
        write(writer, gguf.GGUFReader(demo_model()))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        unfinished.rename(path)
    return path


def _copy(writer: gguf.GGUFWriter, field: gguf.ReaderField) -> None:
    kind, *items = field.types
    writer.add_key_value(field.name, field.contents(), kind, items[0] if items else None)


def _encoder_weights(vocabulary: int) -> dict[str, npt.NDArray[np.floating]]:
    draw = np.random.default_rng(_SEED)

    def matrix(rows: int, columns: int) -> npt.NDArray[np.floating]:
        return draw.standard_normal((rows, columns)) / np.sqrt(columns)

    weights = {
        "token_embd.weight": draw.standard_normal((vocabulary, _WIDTH)),
        "token_types.weight": draw.standard_normal((2, _WIDTH)),
        "position_embd.weight": draw.standard_normal((512, _WIDTH)),
        "token_embd_norm.weight": np.ones(_WIDTH),
        "token_embd_norm.bias": np.zeros(_WIDTH),
    }
    for layer in range(_LAYERS):
        squares = ("attn_q", "attn_k", "attn_v", "attn_output")
        shapes = {**dict.fromkeys(squares, (_WIDTH, _WIDTH)), "ffn_up": (_INNER, _WIDTH), "ffn_down": (_WIDTH, _INNER)}
        for name, (rows, columns) in shapes.items():
            weights[f"blk.{layer}.{name}.weight"] = matrix(rows, columns)
            weights[f"blk.{layer}.{name}.bias"] = np.zeros(rows)
        for name in ("attn_output_norm", "layer_output_norm"):
            weights[f"blk.{layer}.{name}.weight"] = np.ones(_WIDTH)
            weights[f"blk.{layer}.{name}.bias"] = np.zeros(_WIDTH)
    return weights


def _reranker_weights(vocabulary: int) -> dict[str, npt.NDArray[np.floating]]:
    draw = np.random.default_rng(_SEED)

    def matrix(rows: int, columns: int) -> npt.NDArray[np.floating]:
        return draw.standard_normal((rows, columns)) / np.sqrt(columns)

    weights = {
        "token_embd.weight": draw.standard_normal((vocabulary, _WIDTH)),
        "output_norm.weight": np.ones(_WIDTH),
        "cls.output.weight": matrix(2, _WIDTH),
    }
    for layer in range(_LAYERS):
        weights |= {
            f"blk.{layer}.attn_norm.weight": np.ones(_WIDTH),
            f"blk.{layer}.attn_q.weight": matrix(_HEADS * _HEAD, _WIDTH),
            f"blk.{layer}.attn_k.weight": matrix(_KV_HEADS * _HEAD, _WIDTH),
            f"blk.{layer}.attn_v.weight": matrix(_KV_HEADS * _HEAD, _WIDTH),
            f"blk.{layer}.attn_q_norm.weight": np.ones(_HEAD),
            f"blk.{layer}.attn_k_norm.weight": np.ones(_HEAD),
            f"blk.{layer}.attn_output.weight": matrix(_WIDTH, _HEADS * _HEAD),
            f"blk.{layer}.ffn_norm.weight": np.ones(_WIDTH),
            f"blk.{layer}.ffn_gate.weight": matrix(_INNER, _WIDTH),
            f"blk.{layer}.ffn_down.weight": matrix(_WIDTH, _INNER),
            f"blk.{layer}.ffn_up.weight": matrix(_INNER, _WIDTH),
        }
    return weights
