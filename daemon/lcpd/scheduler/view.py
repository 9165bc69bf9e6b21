"""What the scheduler shows of itself: plain data for ``GET /slots`` and health reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lcpd.scheduler.generation import Priority

SlotState = Literal["idle", "restoring", "prefill", "decode", "parking"]
WaitingState = Literal["waiting", "following", "parked"]


@dataclass(frozen=True)
class SlotView:
    """One slot.  Figures that belong to a request are None or 0 where the slot is idle."""

    id: int
    state: SlotState
    n_tokens: int
    """Tokens whose state the slot holds."""
    shared: int
    """Of these, how many lie in cells that another slot holds too."""
    request: int | None = None
    prompt_tokens: int = 0
    done: int = 0
    """Prompt tokens that the slot holds."""
    generated: int = 0
    priority: Priority | None = None
    client: str = ""
    age: float = 0.0
    """Seconds since the request arrived; since the slot was last used where it is idle."""
    tokens_per_second: float = 0.0
    """Of the reply, since its first token."""


@dataclass(frozen=True)
class WaitingView:
    """One request that has no slot."""

    request: int
    state: WaitingState
    priority: Priority
    client: str
    waited: float
    """Seconds in the queue, all stays together."""
    prompt_tokens: int
    generated: int = 0
    """Tokens of its reply before it was parked."""


@dataclass(frozen=True)
class Snapshot:
    """All slots, and who waits, in the order in which they are to be served."""

    slots: tuple[SlotView, ...]
    waiting: tuple[WaitingView, ...]
    cells: int
    """Cells of the KV cache; 0 before the first load."""
    cells_used: int
    """Cells that slots hold; shared ones once."""
