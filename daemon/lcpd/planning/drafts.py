"""Slots and drafts share memory: which numbers of both fit together.

To roll back drafts that the model itself does not confirm, libllama keeps a recurrent state for each drafted token
beside the current one (`n_rs_seq`, llama-memory-recurrent.cpp).  On Qwen3.6-27B with 4 slots and 3 drafts that makes
5 sequences x 149.625 MiB x 4 = 2992 MiB, which a 24 GB card does not have beside the weights and 131072 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lcpd.inspect.shape import ModelShape
from lcpd.planning.context import Wanted
from lcpd.planning.solve import Planner, largest_ctx, largest_slots

LENGTHS = (0, 1, 2, 3, 4)
"""Tokens drafted at a time that are looked at."""


@dataclass(frozen=True)
class Choice:
    """What goes with one length of drafts."""

    drafts: int
    slots: int
    """The most that fit at the wanted context; 0: none."""
    ctx: int
    """Tokens of the longest context with the wanted slots; 0: none."""
    state_bytes: int
    """Recurrent states with the wanted slots."""


def choices(shape: ModelShape, wanted: Wanted, planner: Planner) -> list[Choice]:
    """One for each length of drafts; none where the model has no heads to draft with."""
    if not shape.mtp_layers:
        return []
    found = []
    for length in LENGTHS:
        drafting = replace(wanted, drafts=length)
        found.append(
            Choice(
                drafts=length,
                slots=largest_slots(drafting, planner),
                ctx=largest_ctx(shape, drafting, planner),
                state_bytes=planner(drafting).state.nbytes,
            )
        )
    return found
