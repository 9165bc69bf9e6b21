"""The recurrent state of a sequence: `n_embd_r` and `n_embd_s` of src/llama-hparams.cpp.

Which of its cases counts depends on the hyperparameters that `load_arch_hparams` of an architecture reads, so here on
the architecture.
"""

from __future__ import annotations

from dataclasses import dataclass

from lcpd.inspect.metadata import Metadata

RWKV = frozenset({"rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
SHORT_CONVOLUTION = frozenset({"lfm2", "lfm2moe"})
DELTA_ATTENTION = frozenset({"bailingmoe3", "glm5-next", "kimi-k3", "kimi-linear"})
DELTA_NET = ("qwen3next", "qwen35", "qwen35moe", "qwen4exp")
LIGHTNING = "minimax-01"
_UNGROUPED = frozenset({"jamba", "mamba"})
"""State spaces of the first generation, whose convolution runs over d_inner alone."""


@dataclass(frozen=True)
class Recurrent:
    """The recurrent state of a sequence in each recurrent layer.  It is always F32, whatever the KV type."""

    family: str
    """"state space", "gated delta net", "short convolution", "RWKV", "Kimi delta attention" or "lightning"."""
    d_conv: int
    """Taps of the convolution (`ssm.conv_kernel`, for a short convolution `shortconv.l_cache`); 0 without one."""
    d_inner: int
    d_state: int
    dt_rank: int
    """Of Mamba-2 and the gated delta net the (value) heads, each of d_inner / dt_rank."""
    n_group: int
    conv_channels: int
    """What the convolution runs over: d_inner + 2 * n_group * d_state; of a short convolution n_embd."""
    head_size: int
    """Of RWKV (`wkv.head_size`), Kimi delta attention and lightning attention; else 0."""
    r_width: int
    """Elements of the convolution's (RWKV: token shift's) state, for one sequence and layer: `n_embd_r`."""
    s_width: int
    """Elements of the recurrent state proper, for one sequence and layer: `n_embd_s`."""

    @property
    def nbytes(self) -> int:
        """Bytes for one sequence in one layer (F32)."""
        return 4 * (self.r_width + self.s_width)


def state_of(metadata: Metadata, n_head: int, head_k: int) -> Recurrent:
    """The state of a model that has one.  `n_head`: of its first layer; `head_k`: elements of a key.

    Raises ShapeError.
    """
    architecture = metadata.architecture
    if architecture in RWKV:
        return _rwkv(metadata)
    if architecture in SHORT_CONVOLUTION:
        return _short_convolution(metadata)
    if architecture in DELTA_ATTENTION:
        return _delta_attention(metadata, n_head)
    if architecture == LIGHTNING:
        return Recurrent("lightning", 0, 0, 0, 0, 0, 0, head_k, 0, head_k * head_k * n_head)
    return _state_space(metadata)


def _rwkv(metadata: Metadata) -> Recurrent:
    n_embd, head = metadata.integer("%.embedding_length"), metadata.integer("%.wkv.head_size")
    shifts = metadata.integer("%.token_shift_count", 2)
    return Recurrent("RWKV", 0, 0, 0, 0, 0, 0, head, shifts * n_embd, n_embd * head)


def _short_convolution(metadata: Metadata) -> Recurrent:
    n_embd, taps = metadata.integer("%.embedding_length"), metadata.integer("%.shortconv.l_cache")
    return Recurrent("short convolution", taps, 0, 0, 0, 0, n_embd, 0, n_embd * max(0, taps - 1), 0)


def _delta_attention(metadata: Metadata, n_head: int) -> Recurrent:
    head, taps = metadata.integer("%.kda.head_dim"), metadata.integer("%.ssm.conv_kernel", 0)
    width = n_head * head
    r_width = 3 * (taps - 1 if taps else 3) * width
    return Recurrent("Kimi delta attention", taps, width, head, n_head, 0, 3 * width, head, r_width, head * width)


def _state_space(metadata: Metadata) -> Recurrent:
    d_conv, d_inner = metadata.integer("%.ssm.conv_kernel", 0), metadata.integer("%.ssm.inner_size", 0)
    d_state = metadata.integer("%.ssm.state_size", 0)
    n_group = 0 if metadata.architecture in _UNGROUPED else metadata.integer("%.ssm.group_count", 0)
    channels = d_inner + 2 * n_group * d_state
    return Recurrent(
        family="gated delta net" if metadata.architecture in DELTA_NET else "state space",
        d_conv=d_conv,
        d_inner=d_inner,
        d_state=d_state,
        dt_rank=metadata.integer("%.ssm.time_step_rank", 0),
        n_group=n_group,
        conv_channels=channels,
        head_size=0,
        r_width=max(0, d_conv - 1) * channels,
        s_width=d_state * d_inner,
    )
