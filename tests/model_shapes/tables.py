"""The metadata of real models, and where each figure is from.  What is not marked is from the model's config.json, as
llama.cpp's converter (convert_hf_to_gguf.py, conversion/) maps it; parameter counts check them in
unit/inspect/test_inspect_models.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Table:
    """One model."""

    title: str
    architecture: str
    n_vocab: int
    metadata: Mapping[str, object]
    """`%` stands for the architecture."""
    quants: tuple[tuple[str, str], ...]
    """Pattern of a tensor's name and its quantisation, the first that fits; vectors and convolutions are F32."""
    tokenizer: Mapping[str, object] = field(default_factory=dict)
    norm_epsilon: float = 1e-6
    """llama.cpp loads no model without; no figure depends on it."""


def _kv_heads(n_layer: int, heads: int, layers: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(heads if layer in layers else 0 for layer in range(n_layer))


_QWEN35 = {
    # Key names and values as the loader lists them for real files (llama.cpp issues 23577 and 23792, pull 22673).
    "%.context_length": 262144,
    "%.attention.key_length": 256,
    "%.attention.value_length": 256,
    "%.rope.dimension_count": 64,
    "%.rope.dimension_sections": (11, 11, 10, 0),
    "%.rope.freq_base": 10_000_000.0,
    "%.ssm.conv_kernel": 4,
    "%.ssm.state_size": 128,
    "%.ssm.group_count": 16,
    "%.full_attention_interval": 4,
    "%.nextn_predict_layers": 1,
}
_QWEN35_TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen35",
    "tokenizer.ggml.eos_token_id": 248046,
    "tokenizer.ggml.bos_token_id": 248044,
    "tokenizer.ggml.padding_token_id": 248055,
    "tokenizer.ggml.add_bos_token": False,
}

MODELS = {
    "qwen3.6-27b": Table(
        title="Qwen3.6-27B UD-Q4_K_XL",
        architecture="qwen35",
        n_vocab=248320,  # tokens of the same listings
        metadata=_QWEN35
        | {
            "%.block_count": 65,  # 64 and one for multi-token prediction
            "%.embedding_length": 5120,
            "%.feed_forward_length": 17408,
            "%.attention.head_count": 24,
            "%.attention.head_count_kv": 4,
            "%.ssm.time_step_rank": 48,
            "%.ssm.inner_size": 6144,
            "general.file_type": 15,
        },
        # Approximated: the sum of all trunk tensors but the token embedding is that of the log in issue 8 (16,104
        # MiB on the GPU); of the real mix only its kind is known (more bits for attention than for experts and FFN).
        quants=(
            (r"^token_embd", "Q4_K"),
            (r"^output\.", "Q6_K"),
            (r"^blk\.64\.", "Q8_0"),
            (r"^blk\.0\.(ffn_down|attn_qkv)", "Q6_K"),
            (r"ssm_(alpha|beta)", "Q8_0"),
            (r"ssm_out|attn_(k|v|output)\.", "Q6_K"),
            (r"attn_gate", "Q6_K"),
            (r"attn_(qkv|q)\.", "Q5_K"),
            (r"ffn_down", "Q5_K"),
            (r"", "Q4_K"),
        ),
        tokenizer=_QWEN35_TOKENIZER,
    ),
    "qwen3.6-35b-a3b": Table(
        title="Qwen3.6-35B-A3B UD-Q4_K_XL",
        architecture="qwen35moe",
        n_vocab=248320,
        metadata=_QWEN35
        | {
            # As listed in llama.cpp pull 22673 and ik_llama.cpp issue 1432.
            "%.block_count": 41,  # 40 and one for multi-token prediction
            "%.embedding_length": 2048,
            "%.attention.head_count": 16,
            "%.attention.head_count_kv": 2,
            "%.ssm.time_step_rank": 32,
            "%.ssm.inner_size": 4096,
            "%.expert_count": 256,
            "%.expert_used_count": 8,
            "%.expert_feed_forward_length": 512,
            "%.expert_shared_feed_forward_length": 512,
            "general.file_type": 15,
        },
        # Approximated.
        quants=(
            (r"^token_embd", "Q4_K"),
            (r"^output\.", "Q6_K"),
            (r"ffn_gate_inp", "F32"),
            (r"ffn_down_exps", "Q5_K"),
            (r"_exps", "Q4_K"),
            (r"", "Q8_0"),
        ),
        tokenizer=_QWEN35_TOKENIZER,
    ),
    "gemma-3-27b": Table(
        title="Gemma 3 27B Q4_K_M",
        architecture="gemma3",
        n_vocab=262208,
        metadata={
            "%.context_length": 131072,
            "%.embedding_length": 5376,
            "%.block_count": 62,
            "%.feed_forward_length": 21504,
            "%.attention.head_count": 32,
            "%.attention.head_count_kv": 16,
            "%.attention.key_length": 128,
            "%.attention.value_length": 128,
            "%.attention.sliding_window": 1024,
            "%.rope.freq_base": 1_000_000.0,
            "%.rope.scaling.type": "linear",  # listed in llama.cpp issue 12433 for its smaller sister
            "%.rope.scaling.factor": 8.0,
            "general.file_type": 15,
        },
        quants=((r"^token_embd", "Q6_K"), (r"attn_v|ffn_down", "Q6_K"), (r"", "Q4_K")),  # approximated
        tokenizer={"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default", "tokenizer.ggml.bos_token_id": 2},
    ),
    "gemma-3-270m": Table(
        title="Gemma 3 270M Q4_K_M",
        architecture="gemma3",
        n_vocab=262144,
        metadata={  # all from the header of the real file (demo:gemma3)
            "%.context_length": 32768,
            "%.embedding_length": 640,
            "%.block_count": 18,
            "%.feed_forward_length": 2048,
            "%.attention.head_count": 4,
            "%.attention.head_count_kv": 1,
            "%.attention.key_length": 256,
            "%.attention.value_length": 256,
            "%.attention.sliding_window": 512,
            "%.rope.freq_base": 1_000_000.0,
            "general.file_type": 15,
        },
        quants=((r"^token_embd", "Q8_0"), (r"", "Q5_0")),  # approximated
        tokenizer={"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default", "tokenizer.ggml.bos_token_id": 2},
    ),
    "gpt-oss-20b": Table(
        title="gpt-oss-20b MXFP4",
        architecture="gpt-oss",
        n_vocab=201088,
        metadata={  # as listed in llama.cpp issues 15242 and 17609, ik_llama.cpp issue 822
            "%.context_length": 131072,
            "%.embedding_length": 2880,
            "%.block_count": 24,
            "%.feed_forward_length": 2880,
            "%.attention.head_count": 64,
            "%.attention.head_count_kv": 8,
            "%.attention.key_length": 64,
            "%.attention.value_length": 64,
            "%.attention.sliding_window": 128,
            "%.expert_count": 32,
            "%.expert_used_count": 4,
            "%.expert_feed_forward_length": 2880,
            "%.rope.freq_base": 150_000.0,
            "%.rope.scaling.type": "yarn",
            "%.rope.scaling.factor": 32.0,
            "%.rope.scaling.original_context_length": 4096,
            "general.file_type": 38,
        },
        quants=((r"ffn_gate_inp", "F32"), (r"_exps", "MXFP4"), (r"", "Q8_0")),
        tokenizer={"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-4o"},
    ),
    "granite-4.0-h-tiny": Table(
        title="Granite 4.0 H Tiny Q4_K_M",
        architecture="granitehybrid",
        n_vocab=100352,
        metadata={
            "%.context_length": 1 << 20,  # the converter writes it for hybrids (conversion/granite.py)
            "%.embedding_length": 1536,
            "%.block_count": 40,
            "%.feed_forward_length": 512,
            "%.attention.head_count": 12,
            "%.attention.head_count_kv": _kv_heads(40, 4, (5, 15, 25, 35)),
            "%.expert_count": 64,
            "%.expert_used_count": 6,
            "%.expert_shared_feed_forward_length": 1024,
            "%.ssm.conv_kernel": 4,
            "%.ssm.state_size": 128,
            "%.ssm.group_count": 1,
            "%.ssm.inner_size": 3072,
            "%.ssm.time_step_rank": 48,
            "%.rope.scaling.finetuned": False,
            "general.file_type": 15,
        },
        quants=((r"ffn_gate_inp", "F32"), (r"^token_embd|ffn_down", "Q6_K"), (r"", "Q4_K")),  # approximated
        tokenizer={"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "dbrx"},
    ),
    "granite-4.0-h-small": Table(
        title="Granite 4.0 H Small Q4_K_M",
        architecture="granitehybrid",
        n_vocab=100352,
        metadata={  # as listed in ollama issue 12982
            "%.context_length": 1 << 20,
            "%.embedding_length": 4096,
            "%.block_count": 40,
            "%.feed_forward_length": 768,
            "%.attention.head_count": 32,
            "%.attention.head_count_kv": _kv_heads(40, 8, (5, 15, 25, 35)),
            "%.expert_count": 72,
            "%.expert_used_count": 10,
            "%.expert_shared_feed_forward_length": 1536,
            "%.ssm.conv_kernel": 4,
            "%.ssm.state_size": 128,
            "%.ssm.group_count": 1,
            "%.ssm.inner_size": 8192,
            "%.ssm.time_step_rank": 128,
            "%.rope.scaling.finetuned": False,
            "general.file_type": 15,
        },
        quants=((r"ffn_gate_inp", "F32"), (r"^token_embd|ffn_down", "Q6_K"), (r"", "Q4_K")),  # approximated
        tokenizer={"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "dbrx"},
    ),
    "falcon-h1-7b": Table(
        title="Falcon-H1 7B Instruct Q4_K_M",
        architecture="falcon-h1",
        n_vocab=130048,
        metadata={  # depth, width, heads and state: table of transformers' documentation of FalconH1
            "%.context_length": 262144,
            "%.embedding_length": 3072,
            "%.block_count": 44,
            "%.feed_forward_length": 12288,
            "%.attention.head_count": 12,
            "%.attention.head_count_kv": 2,
            "%.attention.key_length": 128,
            "%.attention.value_length": 128,
            "%.ssm.conv_kernel": 4,
            "%.ssm.state_size": 256,
            "%.ssm.group_count": 1,
            "%.ssm.inner_size": 3072,
            "%.ssm.time_step_rank": 24,
            "%.rope.freq_base": 99_999_997_952.0,  # as listed for its larger sister
            "general.file_type": 15,
        },
        quants=((r"^output\.|ffn_down|attn_v", "Q6_K"), (r"", "Q4_K")),  # approximated
        tokenizer={"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "falcon-h1"},
    ),
    "lfm2-1.2b": Table(
        title="LFM2 1.2B Q4_K_M",
        architecture="lfm2",
        n_vocab=65536,
        metadata={
            "%.context_length": 128000,
            "%.embedding_length": 2048,
            "%.block_count": 16,
            "%.feed_forward_length": 8192,  # int(2 / 3 * 12288), as the converter adjusts it
            "%.attention.head_count": 32,
            "%.attention.head_count_kv": _kv_heads(16, 8, (2, 5, 8, 10, 12, 14)),
            "%.shortconv.l_cache": 3,
            "%.rope.freq_base": 1_000_000.0,
            "%.vocab_size": 65536,
            "general.file_type": 15,
        },
        quants=((r"^token_embd|ffn_down|attn_v", "Q6_K"), (r"", "Q4_K")),  # approximated
        tokenizer={"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "lfm2"},
    ),
    "mamba-codestral-7b": Table(
        title="Mamba-Codestral 7B v0.1 Q8_0",
        architecture="mamba2",
        n_vocab=32768,
        metadata={
            "%.context_length": 1 << 20,  # the converter writes it: there is no limit
            "%.embedding_length": 4096,
            "%.block_count": 64,
            "%.feed_forward_length": 0,
            "%.attention.head_count": 0,
            "%.ssm.conv_kernel": 4,
            "%.ssm.state_size": 128,
            "%.ssm.group_count": 8,
            "%.ssm.inner_size": 8192,
            "%.ssm.time_step_rank": 128,
            "general.file_type": 7,
        },
        quants=((r"", "Q8_0"),),
        tokenizer={"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default"},
    ),
    "llama-3.1-8b": Table(
        title="Llama 3.1 8B Instruct Q4_K_M",
        architecture="llama",
        n_vocab=128256,
        metadata={
            "%.context_length": 131072,
            "%.embedding_length": 4096,
            "%.block_count": 32,
            "%.feed_forward_length": 14336,
            "%.attention.head_count": 32,
            "%.attention.head_count_kv": 8,
            "%.rope.dimension_count": 128,
            "%.rope.freq_base": 500_000.0,
            "%.vocab_size": 128256,
            "general.file_type": 15,
        },
        quants=((r"^output\.", "Q6_K"), (r"attn_v|ffn_down", "Q6_K"), (r"", "Q4_K")),  # approximated
        tokenizer={
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "llama-bpe",
            "tokenizer.ggml.bos_token_id": 128000,
            "tokenizer.ggml.eos_token_id": 128009,
        },
    ),
}
"""Name -> its table."""
