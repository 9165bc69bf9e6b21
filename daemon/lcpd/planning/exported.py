"""State as bytes: what segments and checkpoints weigh in the prompt cache, to the byte.

Sources: `state_write` of `llama_kv_cache` (llama-kv-cache.cpp), `llama_kv_cache_iswa` and `llama_memory_recurrent`;
`llama_context::state_seq_write_data` (llama-context.cpp) for the eight bytes in front.
"""

from __future__ import annotations

from collections.abc import Sequence

from lcpd.config.settings import KvType
from lcpd.inspect.shape import Layer, ModelShape
from lcpd.planning.rows import row_bytes

_FRONT = 8
"""Magic number and sequence."""
_STREAMS_AND_CELLS = 8
_CELL = 12
"""Position, number of sequences, sequence."""
_CELL_EXTENSION = 12
"""With M-RoPE: x, y and token."""
_FLAGS = 8
"""Whether it is transposed, and the number of layers."""
_LAYER_HEAD = 12
"""Of K, V, R and S of each layer: type (4) and size of a row (8); of transposed V type, element size and width."""


def segment_bytes(shape: ModelShape, tokens: int, kv: KvType) -> int:
    """The attention KV of so many tokens, without what rolls (recurrent states, windows); 0 where there is none."""
    if not shape.attention_layers:
        return 0
    nothing = 0
    if shape.recurrent_layers:
        nothing = _recurrent_section(shape, cells=0)
    elif shape.window_layers:
        nothing = _STREAMS_AND_CELLS
    return _FRONT + _kv_section(shape, shape.attention_layers, tokens, kv) + nothing


def token_bytes(shape: ModelShape, kv: KvType) -> int:
    """What each further token adds to a segment."""
    return segment_bytes(shape, 2, kv) - segment_bytes(shape, 1, kv)


def checkpoint_bytes(shape: ModelShape, tokens: int, kv: KvType) -> int:
    """The state that cannot be truncated, after so many tokens; 0 on pure attention."""
    if shape.recurrent_layers:
        return _FRONT + _recurrent_section(shape, cells=1)
    if shape.window_layers:
        seen = min(tokens, max(layer.window for layer in shape.window_layers))
        return _FRONT + _kv_section(shape, shape.window_layers, seen, kv)
    return 0


def _kv_section(shape: ModelShape, layers: Sequence[Layer], tokens: int, kv: KvType) -> int:
    cell = _CELL + (_CELL_EXTENSION if shape.rope.multi else 0)
    heads = sum(_LAYER_HEAD * (2 if layer.v_width else 1) for layer in layers)
    rows = sum(row_bytes(kv, layer.k_width) + row_bytes(kv, layer.v_width) for layer in layers)
    return _STREAMS_AND_CELLS + _FLAGS + heads + tokens * (cell + rows)


def _recurrent_section(shape: ModelShape, cells: int) -> int:
    """Their number; position and number of sequences of each; R of each layer, and S."""
    heads = 2 * _LAYER_HEAD * len(shape.recurrent_layers)
    return 4 + _FLAGS + heads + cells * (8 + shape.r_bytes + shape.s_bytes)
