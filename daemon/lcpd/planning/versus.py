"""The same memory under the two kinds of allocators, side by side."""

from __future__ import annotations

from dataclasses import dataclass

from lcpd.inspect.shape import ModelShape
from lcpd.planning.paging import Layers, Paging, state_bytes, unify
from lcpd.planning.plan import MemoryPlan
from lcpd.planning.recurrent import sequence_bytes

USUAL_DRAFTS = 3
"""What the paged engine is usually told to draft at a time, where the model has heads for it."""


@dataclass(frozen=True)
class Paged:
    """The other allocator, at one number of drafts."""

    drafts: int
    paging: Paging


@dataclass(frozen=True)
class Side:
    """Tokens of all requests together that fit into the memory beside weights and buffers."""

    requests: int
    ours: int
    """With lcpd's allocation, the plan's KV type and its drafts."""
    paged: tuple[int, ...]
    """With unified pages and KV of one byte an element (fp8), for each of `Versus.paged`."""


@dataclass(frozen=True)
class Versus:
    """The comparison for one plan."""

    available: int
    """Bytes for KV and recurrent state."""
    paged: tuple[Paged, ...]
    """With the drafts of the plan, and with the usual ones."""
    sides: tuple[Side, ...]


def versus(plan: MemoryPlan) -> Versus | None:
    """None without a GPU of a known size, and for models whose layers are of other kinds.

    What is compared is the allocation alone: both get the bytes that this plan leaves for KV and state.
    """
    shape, free = plan.shape, plan.free
    if free is None or not plan.machine.gpu or not shape.hybrid or shape.recurrent is None or shape.window_layers:
        return None
    if shape.recurrent.family not in ("gated delta net", "state space"):
        return None
    available = max(0, free + plan.kv_bytes + plan.state.nbytes)
    numbers = sorted({plan.context.drafts, USUAL_DRAFTS if shape.mtp_layers else 0})
    paged = tuple(Paged(drafts, unify(layers_of(shape, drafts), drafts)) for drafts in numbers)
    each = sequence_bytes(shape) * (1 + plan.context.snapshots)
    per_token = sum(cache.nbytes for cache in plan.caches) // plan.context.cells
    sides = []
    for requests in sorted({1, plan.wanted.slots}):
        ours = max(0, available - (requests + 1) * each) // per_token
        theirs = (requests * other.paging.longest(available, requests) for other in paged)
        sides.append(Side(requests, ours, tuple(theirs)))
    return Versus(available, paged, tuple(sides))


def layers_of(shape: ModelShape, drafts: int) -> Layers:
    """The model as the paged allocator sees it, with an fp8 KV cache.  `shape.recurrent` must be there."""
    state = shape.recurrent
    assert state is not None
    attention = [*shape.attention_layers, *(shape.mtp_layers if drafts else ())]
    widest = max(layer.k_width + layer.v_width for layer in attention)
    head = state.d_inner // max(1, state.dt_rank)
    return Layers(
        attention=len(attention),
        token_bytes=widest,
        recurrent=len(shape.recurrent_layers),
        state_bytes=state_bytes(state.dt_rank, head, state.d_state, state.d_conv, state.conv_channels, drafts),
    )
