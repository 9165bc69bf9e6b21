"""A tiny pure recurrent model (mamba2) with random weights and the tokenizer of the tiny hybrid.

It knows nothing, but its logits depend on all that it has read: forgetting is set to be slow, and what the recurrent
layers add outweighs the last token.  Always the same bytes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from lcpd.paths import demo_model

_SEED = 4
_LAYERS, _WIDTH, _INNER, _STATE, _HEADS, _GROUPS, _CONV = 4, 128, 256, 16, 8, 1, 4
_CONTEXT = 32768
_MIXED = _INNER + 2 * _GROUPS * _STATE
"""Channels of the convolution."""


def recurrent_model(folder: Path) -> Path:
    """The model's file, written into `folder` unless it is there."""
    recipe = hashlib.sha256(Path(__file__).read_bytes() + demo_model().read_bytes()).hexdigest()[:12]
    path = folder / f"tiny-mamba2-{recipe}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        _write(unfinished)
        unfinished.rename(path)
    return path


def _write(path: Path) -> None:
    tokenizer = gguf.GGUFReader(demo_model())
    writer = gguf.GGUFWriter(path, "mamba2")
    writer.add_name("tiny-mamba2")
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(_LAYERS)
    writer.add_ssm_conv_kernel(_CONV)
    writer.add_ssm_inner_size(_INNER)
    writer.add_ssm_state_size(_STATE)
    writer.add_ssm_time_step_rank(_HEADS)
    writer.add_ssm_group_count(_GROUPS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for field in tokenizer.fields.values():
        if field.name.startswith("tokenizer."):
            kind, *items = field.types
            writer.add_key_value(field.name, field.contents(), kind, items[0] if items else None)
    vocabulary = len(tokenizer.fields["tokenizer.ggml.tokens"].contents())
    for name, values in _weights(vocabulary).items():
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _weights(vocabulary: int) -> dict[str, npt.NDArray[np.floating]]:
    draw = np.random.default_rng(_SEED)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> npt.NDArray[np.floating]:
        return draw.standard_normal((rows, columns)) * gain / np.sqrt(columns)

    weights = {
        "token_embd.weight": draw.standard_normal((vocabulary, _WIDTH)),
        "output_norm.weight": np.ones(_WIDTH),
        "output.weight": matrix(vocabulary, _WIDTH, gain=3.0),
    }
    for layer in range(_LAYERS):
        steps = np.geomspace(0.002, 0.2, _HEADS)  # how much a token changes the state of each head
        weights |= {
            f"blk.{layer}.attn_norm.weight": np.ones(_WIDTH),
            f"blk.{layer}.ssm_in.weight": matrix(_INNER + _MIXED + _HEADS, _WIDTH),
            f"blk.{layer}.ssm_conv1d.weight": matrix(_MIXED, _CONV, gain=2.0),
            f"blk.{layer}.ssm_conv1d.bias": np.zeros(_MIXED),
            f"blk.{layer}.ssm_dt.bias": np.log(np.expm1(steps)),
            f"blk.{layer}.ssm_a": -np.ones((_HEADS, 1)),
            f"blk.{layer}.ssm_d": np.full((_HEADS, 1), 0.1),
            f"blk.{layer}.ssm_norm.weight": np.ones((_GROUPS, _INNER // _GROUPS)),
            f"blk.{layer}.ssm_out.weight": matrix(_WIDTH, _INNER, gain=2.0),
        }
    return weights
