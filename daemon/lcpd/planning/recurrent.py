"""The recurrent state: of fixed size for each sequence, however long it is.

Sources: `n_embd_r` and `n_embd_s` (llama-hparams.cpp) for the widths, which the model's shape tells;
`llama_memory_recurrent` (llama-memory-recurrent.cpp) for the rows: one for each sequence, F32 whatever the KV type,
and `n_rs_seq` more to roll drafts back.  For a gated delta net and Mamba:

    R = (conv_kernel - 1) * (inner_size + 2 * group_count * state_size)     S = state_size * inner_size
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction

from lcpd.inspect.shape import ModelShape
from lcpd.planning.context import Context


@dataclass(frozen=True)
class State:
    """The recurrent state of all sequences.  Sizes in bytes."""

    rows: int
    """Sequences, times one more than there are snapshots of each."""
    r_bytes: int
    s_bytes: int

    @property
    def nbytes(self) -> int:
        return self.r_bytes + self.s_bytes


def state(shape: ModelShape, context: Context) -> State:
    """All of it; nothing where there are no such layers."""
    rows = context.sequences * (1 + context.snapshots)
    return State(rows, rows * shape.r_bytes, rows * shape.s_bytes)


def share_in(shape: ModelShape, layers: Collection[int]) -> Fraction:
    """Which part of the state is that of these layers: all have the same."""
    indices = [layer.index for layer in shape.recurrent_layers]
    return Fraction(sum(index in layers for index in indices), len(indices) or 1)


def sequence_bytes(shape: ModelShape) -> int:
    """What one sequence costs, with nothing to roll back."""
    return shape.r_bytes + shape.s_bytes
