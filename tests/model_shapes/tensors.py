"""The tensors that llama.cpp asks for (`load_arch_tensors` in src/models/<architecture>.cpp), from the metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

Dimensions = tuple[int, ...]
"""Elements in the order of ggml, the contiguous dimension first."""
Tensors = Iterator[tuple[str, Dimensions]]
Metadata = Mapping[str, object]


def _int(metadata: Metadata, key: str, default: int = 0) -> int:
    value = metadata.get(f"%.{key}", default)
    assert isinstance(value, int)
    return value


def _ends(metadata: Metadata, n_vocab: int, *, tied: bool, norm: str = "output_norm") -> Tensors:
    """What is outside the layers."""
    n_embd = _int(metadata, "embedding_length")
    yield "token_embd.weight", (n_embd, n_vocab)
    yield f"{norm}.weight", (n_embd,)
    if not tied:
        yield "output.weight", (n_embd, n_vocab)


def _attention(metadata: Metadata, layer: int, n_head_kv: int, *, gated: bool = False, bias: bool = False) -> Tensors:
    n_embd, n_head = _int(metadata, "embedding_length"), _int(metadata, "attention.head_count")
    head = _int(metadata, "attention.key_length", n_embd // n_head)
    widths = {"q": n_head * head * (2 if gated else 1), "k": n_head_kv * head, "v": n_head_kv * head}
    for part, width in widths.items():
        yield f"blk.{layer}.attn_{part}.weight", (n_embd, width)
        if bias:
            yield f"blk.{layer}.attn_{part}.bias", (width,)
    yield f"blk.{layer}.attn_output.weight", (n_head * head, n_embd)
    if bias:
        yield f"blk.{layer}.attn_output.bias", (n_embd,)


def _head_norms(metadata: Metadata, layer: int) -> Tensors:
    n_embd, n_head = _int(metadata, "embedding_length"), _int(metadata, "attention.head_count")
    head = _int(metadata, "attention.key_length", n_embd // n_head)
    yield f"blk.{layer}.attn_q_norm.weight", (head,)
    yield f"blk.{layer}.attn_k_norm.weight", (head,)


def _vectors(metadata: Metadata, layer: int, *names: str) -> Tensors:
    for name in names:
        yield f"blk.{layer}.{name}.weight", (_int(metadata, "embedding_length"),)


def _ffn(metadata: Metadata, layer: int, width: int, suffix: str = "") -> Tensors:
    n_embd = _int(metadata, "embedding_length")
    yield f"blk.{layer}.ffn_gate{suffix}.weight", (n_embd, width)
    yield f"blk.{layer}.ffn_up{suffix}.weight", (n_embd, width)
    yield f"blk.{layer}.ffn_down{suffix}.weight", (width, n_embd)


def _experts(metadata: Metadata, layer: int, width: int) -> Tensors:
    n_embd, count = _int(metadata, "embedding_length"), _int(metadata, "expert_count")
    yield f"blk.{layer}.ffn_gate_inp.weight", (n_embd, count)
    yield f"blk.{layer}.ffn_gate_exps.weight", (n_embd, width, count)
    yield f"blk.{layer}.ffn_up_exps.weight", (n_embd, width, count)
    yield f"blk.{layer}.ffn_down_exps.weight", (width, n_embd, count)


def _mamba2(metadata: Metadata, layer: int) -> Tensors:
    n_embd, inner = _int(metadata, "embedding_length"), _int(metadata, "ssm.inner_size")
    groups, heads = _int(metadata, "ssm.group_count"), _int(metadata, "ssm.time_step_rank")
    channels = inner + 2 * groups * _int(metadata, "ssm.state_size")
    yield f"blk.{layer}.ssm_in.weight", (n_embd, inner + channels + heads)
    yield f"blk.{layer}.ssm_conv1d.weight", (_int(metadata, "ssm.conv_kernel"), channels)
    yield f"blk.{layer}.ssm_conv1d.bias", (channels,)
    yield f"blk.{layer}.ssm_dt.bias", (heads,)
    yield f"blk.{layer}.ssm_a", (1, heads)
    yield f"blk.{layer}.ssm_d", (1, heads)
    yield f"blk.{layer}.ssm_norm.weight", (inner // groups, groups)
    yield f"blk.{layer}.ssm_out.weight", (inner, n_embd)


def _delta_net(metadata: Metadata, layer: int) -> Tensors:
    n_embd, inner = _int(metadata, "embedding_length"), _int(metadata, "ssm.inner_size")
    state, heads = _int(metadata, "ssm.state_size"), _int(metadata, "ssm.time_step_rank")
    channels = inner + 2 * _int(metadata, "ssm.group_count") * state
    yield f"blk.{layer}.attn_qkv.weight", (n_embd, channels)
    yield f"blk.{layer}.attn_gate.weight", (n_embd, inner)
    yield f"blk.{layer}.ssm_conv1d.weight", (_int(metadata, "ssm.conv_kernel"), channels)
    yield f"blk.{layer}.ssm_dt.bias", (heads,)
    yield f"blk.{layer}.ssm_a", (heads,)
    yield f"blk.{layer}.ssm_beta.weight", (n_embd, heads)
    yield f"blk.{layer}.ssm_alpha.weight", (n_embd, heads)
    yield f"blk.{layer}.ssm_norm.weight", (state,)
    yield f"blk.{layer}.ssm_out.weight", (inner, n_embd)


def llama(metadata: Metadata, n_vocab: int) -> Tensors:
    yield from _ends(metadata, n_vocab, tied=False)
    yield "rope_freqs.weight", (_int(metadata, "rope.dimension_count") // 2,)
    for layer in range(_int(metadata, "block_count")):
        yield from _vectors(metadata, layer, "attn_norm", "ffn_norm")
        yield from _attention(metadata, layer, _int(metadata, "attention.head_count_kv"))
        yield from _ffn(metadata, layer, _int(metadata, "feed_forward_length"))


def gemma3(metadata: Metadata, n_vocab: int) -> Tensors:
    yield from _ends(metadata, n_vocab, tied=True)
    for layer in range(_int(metadata, "block_count")):
        yield from _vectors(metadata, layer, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        yield from _head_norms(metadata, layer)
        yield from _attention(metadata, layer, _int(metadata, "attention.head_count_kv"))
        yield from _ffn(metadata, layer, _int(metadata, "feed_forward_length"))


def gpt_oss(metadata: Metadata, n_vocab: int) -> Tensors:
    yield from _ends(metadata, n_vocab, tied=False)
    n_embd, width = _int(metadata, "embedding_length"), _int(metadata, "expert_feed_forward_length")
    count = _int(metadata, "expert_count")
    for layer in range(_int(metadata, "block_count")):
        yield from _vectors(metadata, layer, "attn_norm", "post_attention_norm")
        yield from _attention(metadata, layer, _int(metadata, "attention.head_count_kv"), bias=True)
        yield f"blk.{layer}.attn_sinks.weight", (_int(metadata, "attention.head_count"),)
        yield from _experts(metadata, layer, width)
        yield f"blk.{layer}.ffn_gate_inp.bias", (count,)
        yield f"blk.{layer}.ffn_gate_exps.bias", (width, count)
        yield f"blk.{layer}.ffn_up_exps.bias", (width, count)
        yield f"blk.{layer}.ffn_down_exps.bias", (n_embd, count)


def qwen35(metadata: Metadata, n_vocab: int) -> Tensors:
    yield from _ends(metadata, n_vocab, tied=False)
    for layer in range(_int(metadata, "block_count")):
        yield from _qwen35_mixer(metadata, layer)
        yield from _ffn(metadata, layer, _int(metadata, "feed_forward_length"))


def qwen35moe(metadata: Metadata, n_vocab: int) -> Tensors:
    yield from _ends(metadata, n_vocab, tied=False)
    for layer in range(_int(metadata, "block_count")):
        yield from _qwen35_mixer(metadata, layer)
        yield from _experts(metadata, layer, _int(metadata, "expert_feed_forward_length"))
        yield from _vectors(metadata, layer, "ffn_gate_inp_shexp")
        yield from _ffn(metadata, layer, _int(metadata, "expert_shared_feed_forward_length"), "_shexp")


def _qwen35_mixer(metadata: Metadata, layer: int) -> Tensors:
    """All of a layer but its feed-forward part; the last layers are for multi-token prediction."""
    n_embd = _int(metadata, "embedding_length")
    mtp = layer >= _int(metadata, "block_count") - _int(metadata, "nextn_predict_layers")
    yield from _vectors(metadata, layer, "attn_norm", "post_attention_norm")
    if mtp or (layer + 1) % _int(metadata, "full_attention_interval") == 0:
        yield from _attention(metadata, layer, _int(metadata, "attention.head_count_kv"), gated=True)
        yield from _head_norms(metadata, layer)
    else:
        yield from _delta_net(metadata, layer)
    if mtp:
        yield f"blk.{layer}.nextn.eh_proj.weight", (2 * n_embd, n_embd)
        yield from _vectors(metadata, layer, "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")


def granitehybrid(metadata: Metadata, n_vocab: int) -> Tensors:
    yield from _ends(metadata, n_vocab, tied=True)
    kv_heads = metadata["%.attention.head_count_kv"]
    assert isinstance(kv_heads, tuple)
    for layer, n_head_kv in enumerate(kv_heads):
        yield from _vectors(metadata, layer, "attn_norm", "ffn_norm")
        yield from _attention(metadata, layer, n_head_kv) if n_head_kv else _mamba2(metadata, layer)
        yield from _experts(metadata, layer, _int(metadata, "feed_forward_length"))
        yield from _ffn(metadata, layer, _int(metadata, "expert_shared_feed_forward_length"), "_shexp")


def falcon_h1(metadata: Metadata, n_vocab: int) -> Tensors:
    yield from _ends(metadata, n_vocab, tied=False)
    for layer in range(_int(metadata, "block_count")):
        yield from _vectors(metadata, layer, "attn_norm")
        yield f"blk.{layer}.ffn_norm", (_int(metadata, "embedding_length"),)  # spelt so in these files
        yield from _mamba2(metadata, layer)
        yield from _attention(metadata, layer, _int(metadata, "attention.head_count_kv"))
        yield from _ffn(metadata, layer, _int(metadata, "feed_forward_length"))


def lfm2(metadata: Metadata, n_vocab: int) -> Tensors:
    yield from _ends(metadata, n_vocab, tied=True, norm="token_embd_norm")
    n_embd = _int(metadata, "embedding_length")
    kv_heads = metadata["%.attention.head_count_kv"]
    assert isinstance(kv_heads, tuple)
    for layer, n_head_kv in enumerate(kv_heads):
        yield from _vectors(metadata, layer, "attn_norm", "ffn_norm")
        if n_head_kv:
            yield from _head_norms(metadata, layer)
            yield from _attention(metadata, layer, n_head_kv)
        else:
            yield f"blk.{layer}.shortconv.conv.weight", (_int(metadata, "shortconv.l_cache"), n_embd)
            yield f"blk.{layer}.shortconv.in_proj.weight", (n_embd, 3 * n_embd)
            yield f"blk.{layer}.shortconv.out_proj.weight", (n_embd, n_embd)
        yield from _ffn(metadata, layer, _int(metadata, "feed_forward_length"))


def mamba2(metadata: Metadata, n_vocab: int) -> Tensors:
    yield from _ends(metadata, n_vocab, tied=False)
    for layer in range(_int(metadata, "block_count")):
        yield from _vectors(metadata, layer, "attn_norm")
        yield from _mamba2(metadata, layer)


RECIPES: dict[str, Callable[[Metadata, int], Tensors]] = {
    "llama": llama,
    "gemma3": gemma3,
    "gpt-oss": gpt_oss,
    "qwen35": qwen35,
    "qwen35moe": qwen35moe,
    "granitehybrid": granitehybrid,
    "falcon-h1": falcon_h1,
    "lfm2": lfm2,
    "mamba2": mamba2,
}
"""Architecture -> its tensors."""
