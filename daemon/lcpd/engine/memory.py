"""When the worker lacked memory, and what to try next: pure decisions, and where the kernel tells.

the context has                              next it is loaded with
---------------                              ----------------------
more than `CELLS_FLOOR` cells                half the cells, but not less than that
no more, and a ubatch above `BATCH_FLOOR`    half the batch and the ubatch, but not less than that
neither                                      the same again: it is a crash like others
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from lcpd.engine.protocol import ContextSettings

CELLS_FLOOR = 4096
BATCH_FLOOR = 64
_WORDS = re.compile(
    r"out of memory|outofmemory|cannot allocate memory|std::bad_alloc|bad allocation"
    r"|failed to allocate|unable to allocate|failed to reserve|alloc\w* failed|cudaMalloc failed",
    re.IGNORECASE,
)


def speaks_of_memory(text: str) -> bool:
    """Whether the reason of a death, or the end of a worker's log, says that memory lacked."""
    return _WORDS.search(text) is not None


def context_lacked(reason: str) -> bool:
    """Whether a Load failed because there was no memory for the context; that for the model itself cannot shrink."""
    return "no context of" in reason and speaks_of_memory(reason)


def smaller(context: ContextSettings, cells: int | None) -> ContextSettings | None:
    """What to load next where memory lacked; None where nothing can be made smaller.

    `cells`: of the context that was loaded, None where it never was.
    """
    now = cells or context.n_ctx or context.n_ctx_cap
    if now > CELLS_FLOOR:
        return msgspec.structs.replace(context, n_ctx=max(CELLS_FLOOR, now // 2))
    if context.n_ubatch > BATCH_FLOOR:
        return msgspec.structs.replace(
            context,
            n_ubatch=max(BATCH_FLOOR, context.n_ubatch // 2),
            n_batch=max(BATCH_FLOOR, context.slots, context.n_batch // 2),
        )
    return None


def kills(counters: Path = Path("/proc/vmstat")) -> int:
    """Processes that the kernel has killed for want of memory since it started; 0 where it does not tell."""
    try:
        lines = counters.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
