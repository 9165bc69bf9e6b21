"""How far the same memory reaches with an allocator that unifies pages over attention and recurrent layers (vLLM).

Such an allocator hands out blocks of one size for everything.  So a page of attention KV is made as large as the
recurrent state of a layer, layers are put into groups of equal size, and a request takes whole blocks of every group:

    page      tokens of one attention layer, or the recurrent state of one layer, padded to the same bytes
    group     as many layers as the smaller kind has; the last group of a kind is filled up with padding layers
    block     a page of each layer of a group: what is handed out

Sources, in vLLM's tree: `Platform._align_hybrid_block_size` (vllm/platforms/interface.py; before that
`HybridAttentionMambaModelConfig` in vllm/model_executor/models/config.py) for the page; `_get_kv_cache_groups_uniform_
page_size` and `get_kv_cache_config_from_groups` (vllm/v1/core/kv_cache_utils.py) for groups and blocks;
`MambaSpec.max_memory_usage_bytes` (vllm/v1/kv_cache_interface.py) for what a request takes.

Checked against the log of one machine: 2.47 GiB available, blocks of 1600 tokens, 0.25 % padding, 3 padding layers,
42,780 tokens, 1.31x at 32,768 (tests/unit/planning/test_paging.py).
"""

from __future__ import annotations

from dataclasses import dataclass

ALIGNMENT = 16
"""Tokens: sizes of attention blocks are its multiples."""
_MUCH_LARGER = 1.5
"""Below this ratio of the kinds' layer counts groups are as large as the larger kind (1.25 in older versions)."""


@dataclass(frozen=True)
class Layers:
    """What the allocator has to place.  Sizes in bytes."""

    attention: int
    """Attention layers, those of draft heads too: they share the pool."""
    token_bytes: int
    """K and V of one token in one attention layer."""
    recurrent: int
    """Recurrent layers."""
    state_bytes: int
    """State of one sequence in one recurrent layer, with room for the drafts in its convolution."""


@dataclass(frozen=True)
class Paging:
    """How the allocator cuts memory for a model."""

    block_tokens: int
    """Tokens of a page of attention KV."""
    page_bytes: int
    state_padding: float
    """By which share of itself a recurrent state is enlarged to fill a page."""
    group_size: int
    """Layers of a group."""
    attention_groups: int
    recurrent_groups: int
    padding_layers: int
    padding_share: float
    """The most padding layers of a kind as a share of its own layers."""
    state_blocks: int
    """Blocks that a request takes of each recurrent group, however long it is."""

    @property
    def groups(self) -> int:
        """Groups of both kinds."""
        return self.attention_groups + self.recurrent_groups

    @property
    def block_bytes(self) -> int:
        """What is handed out: a page of each layer of a group."""
        return self.group_size * self.page_bytes

    def blocks(self, available: int) -> int:
        """How many blocks that many bytes hold."""
        return available // self.block_bytes

    def blocks_of(self, tokens: int) -> int:
        """What a request of that length takes."""
        each = -(-tokens // self.block_tokens)
        return each * self.attention_groups + self.state_blocks * self.recurrent_groups

    def concurrency(self, available: int, tokens: int) -> float:
        """How many requests of that length fit: vLLM's "Maximum concurrency for N tokens per request"."""
        return self.blocks(available) / self.blocks_of(tokens)

    def capacity(self, available: int, tokens: int) -> int:
        """Tokens of requests of that length that fit: vLLM's "GPU KV cache size"."""
        return int(self.concurrency(available, tokens) * tokens)

    def longest(self, available: int, requests: int = 1) -> int:
        """Tokens that each of so many requests can have at once."""
        left = self.blocks(available) // requests - self.state_blocks * self.recurrent_groups
        return max(0, left // max(1, self.attention_groups)) * self.block_tokens


def unify(layers: Layers, drafts: int, prefix_caching: bool = True) -> Paging:
    """How memory is cut for these layers; `layers.attention` must not be 0.

    `drafts`: tokens that are drafted at a time; each keeps a state of its own.  With prefix caching (the mode
    "align") a request keeps the state at the last block boundary beside the current one.
    """
    step = ALIGNMENT * layers.token_bytes
    block_tokens = ALIGNMENT * max(1, -(-layers.state_bytes // step))
    page = block_tokens * layers.token_bytes
    kinds = [count for count in (layers.attention, layers.recurrent) if count]
    size = max(kinds) if max(kinds) < min(kinds) * _MUCH_LARGER else min(kinds)
    attention_groups, recurrent_groups = -(-layers.attention // size), -(-layers.recurrent // size)
    padding = [-count % size for count in kinds]
    return Paging(
        block_tokens=block_tokens,
        page_bytes=page,
        state_padding=page / layers.state_bytes - 1 if layers.recurrent else 0.0,
        group_size=size,
        attention_groups=attention_groups,
        recurrent_groups=recurrent_groups,
        padding_layers=sum(padding),
        padding_share=max(pad / count for pad, count in zip(padding, kinds, strict=True)),
        state_blocks=(2 if prefix_caching else 1) + drafts if layers.recurrent else 0,
    )


def state_bytes(heads: int, key: int, value: int, convolution: int, channels: int, drafts: int) -> int:
    """The state of a gated delta net layer: a matrix per head in f32, and the inputs of the convolution in 16 bits.

    `convolution`: its kernel size, of which the current token needs no room; every draft adds an input.
    Source: `MambaStateShapeCalculator.gated_delta_net_state_shape` (vllm/model_executor/layers/mamba/mamba_utils.py).
    """
    return heads * key * value * 4 + (convolution - 1 + drafts) * channels * 2
