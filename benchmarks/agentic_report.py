"""Figures of a replay, pure: sums by phase, the goals and whether they are met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.agentic_trace import PUSHED_OUT, STRIPPED

WHOLE_TRACE = 1.10
"""Computed over novel tokens, all phases together."""
PHASE_UBATCHES = 1.5
"""Micro-batches that a phase may compute beyond its novel tokens."""
MEMORY_SHARE = 1 / 3
"""Of llama-server's memory for the same sessions."""


@dataclass(frozen=True)
class Record:
    """One request to one server.  Counts in tokens, times in seconds."""

    phase: str
    session: str
    prompt: int
    computed: int
    novel: int
    """What no earlier prompt or reply had as prefix."""
    fresh: int
    """The last message and what follows it: what is left where the history was foreseen."""
    ttft: float
    generated: int
    called: bool
    """Whether the reply calls a tool."""


@dataclass(frozen=True)
class Memory:
    """A server's host memory at the end of a phase, in bytes."""

    growth: int
    """Of all its processes since it was ready."""
    saved: int | None
    """What it says it keeps beside the slots; None where it does not say."""


@dataclass(frozen=True)
class Phase:
    """The sums of a phase; `ttft` is the median, in seconds."""

    name: str
    requests: int
    prompt: int
    computed: int
    novel: int
    fresh: int
    ttft: float
    memory: Memory

    @property
    def ratio(self) -> float:
        """Computed over novel tokens."""
        return self.computed / self.novel


@dataclass(frozen=True)
class Goal:
    """A bound and what was measured."""

    name: str
    measured: str
    met: bool


def phases(records: Sequence[Record], memory: dict[str, Memory]) -> list[Phase]:
    """In the order of their first requests."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.phase, []).append(record)
    return [_phase(name, members, memory[name]) for name, members in found.items()]


def total(parts: Sequence[Phase]) -> Phase:
    """All phases as one; its `ttft` is the median of theirs, its memory that of the last."""
    return Phase(
        name="all",
        requests=sum(part.requests for part in parts),
        prompt=sum(part.prompt for part in parts),
        computed=sum(part.computed for part in parts),
        novel=sum(part.novel for part in parts),
        fresh=sum(part.fresh for part in parts),
        ttft=median(part.ttft for part in parts),
        memory=parts[-1].memory,
    )


def replay_goals(parts: Sequence[Phase], ubatch: int) -> list[Goal]:
    """The goals of the agentic trace for one server.  `parts` include the phase whose thinking is stripped."""
    whole = total(parts).ratio
    margin = round(PHASE_UBATCHES * ubatch)
    worst = max(parts, key=lambda part: part.computed - part.novel)
    stripped = next(part for part in parts if part.name == STRIPPED)
    beyond = stripped.computed - stripped.fresh
    allowed = stripped.requests * ubatch
    return [
        Goal(f"at most {WHOLE_TRACE:.2f} x novel in all", f"{whole:.2f} x", whole <= WHOLE_TRACE),
        Goal(
            f"no phase above novel + {margin}",
            f"{worst.name}: novel + {worst.computed - worst.novel}",
            worst.computed - worst.novel <= margin,
        ),
        Goal(
            f"stripped thinking, history foreseen: at most the new message + {ubatch} a turn",
            f"new message + {beyond / stripped.requests:.0f} a turn",
            beyond <= allowed,
        ),
    ]


def memory_goal(ours: Sequence[Phase], theirs: Sequence[Phase]) -> Goal:
    """The goal of the memory trace: what the servers say they keep, or their growth where one does not say."""
    mine, other = (next(p.memory for p in parts if p.name == PUSHED_OUT) for parts in (ours, theirs))
    if mine.saved is None or other.saved is None:
        kind, share = "growth of the processes", mine.growth / other.growth
    else:
        kind, share = "kept beside the slots", mine.saved / other.saved
    return Goal(
        f"host memory of the sessions at most {MEMORY_SHARE:.2f} of llama-server's",
        f"{share:.2f} ({kind})",
        share <= MEMORY_SHARE,
    )


def _phase(name: str, members: Sequence[Record], memory: Memory) -> Phase:
    return Phase(
        name=name,
        requests=len(members),
        prompt=sum(member.prompt for member in members),
        computed=sum(member.computed for member in members),
        novel=sum(member.novel for member in members),
        fresh=sum(member.fresh for member in members),
        ttft=median(member.ttft for member in members),
        memory=memory,
    )
