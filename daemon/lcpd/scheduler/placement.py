"""Where a prompt goes: the idle slot, and what it goes on from, that together cost least.  Pure decisions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from lcpd.scheduler import cells
from lcpd.scheduler.policy import EDIT_WORTH_SAVING
from lcpd.scheduler.slots import Known, Resume, Slot, Tokens, resumes
from lcpd.scheduler.speeds import Speeds

_FRESH = -1
"""Id of a run that there is not yet."""


@dataclass(frozen=True)
class Costs:
    """Seconds.  The defaults are those of a 27B hybrid model on a 24 GB card (see `costs_of`)."""

    compute: float = 1e-3
    """To prefill a token."""
    restore: float = 3e-6
    """To bring a token back from RAM."""
    checkpoint: float = 0.013
    """To apply a checkpoint, from RAM."""
    lose: float = 6e-6
    """To overwrite a token that neither RAM nor another slot has: to save it and to bring it back; where it cannot be
    saved, to compute it again."""
    park: float = 0.026
    """To overwrite the end of a slot that is to be saved: its checkpoint goes to RAM and comes back."""
    cell: float = 1e-6
    """What a cell that is newly taken costs: attention looks at all cells that are in use for every token of every
    reply.  An upper bound, good to prefer what shares cells to what copies them, not to empty an idle slot for it."""


def costs_of(speeds: Speeds, token_bytes: int, checkpoint_bytes: int, saves: bool) -> Costs:
    """What was measured, for a model whose state has these sizes.

    `saves`: whether what a slot holds can be saved to RAM and resumed from there.  A model whose tokens have no bytes
    (pure recurrent) has no attention that would look at cells.
    """
    compute = 1 / speeds.prefill.value
    restore = token_bytes / speeds.restore.value
    back, forth = checkpoint_bytes / speeds.restore.value, checkpoint_bytes / speeds.save.value
    return Costs(
        compute=compute,
        restore=restore,
        checkpoint=back,
        lose=restore + token_bytes / speeds.save.value if saves else compute,
        park=back + forth if saves else 0.0,
        cell=compute * _CELL if token_bytes else 0.0,
    )


_CELL = 1e-3
"""Of the time that computing a token takes."""


@dataclass(frozen=True)
class Placement:
    """A slot for a prompt, and how it is brought to where computing begins."""

    seq: int
    resume: Resume
    evict: tuple[int, ...] = ()
    """Idle slots that have to be emptied first, for their cells."""


@dataclass(frozen=True)
class Demand:
    """What is to be placed."""

    tokens: Tokens
    reserve: int
    """Cells that it has to find, its growth included."""
    samples: bool = True
    """Whether the logits of its last token are wanted, which has to be computed then."""


def candidates(slots: Sequence[Slot], demand: Demand, known: Known, rolls_back: bool, costs: Costs) -> list[Placement]:
    """The placements on idle slots that may be best."""

    def ways(source: Slot | None, own: bool = False) -> Iterator[Resume]:
        return resumes(demand.tokens, source, own, known, rolls_back, demand.samples)

    shared = [
        (_bringing(resume, demand, costs), slot.busy, resume)
        for slot in slots
        for resume in ways(slot)
        if resume.shared
    ]
    # Two, because the best one may be the slot that is to be overwritten; running ones stay in any case.
    best = [resume for _, _, resume in sorted(shared, key=lambda entry: (entry[0], not entry[1]))[:2]]
    best += ways(None)
    return [
        Placement(slot.seq, resume)
        for slot in slots
        if not slot.busy
        for resume in [
            *ways(slot, own=True),
            *(resume for resume in best if resume.source != slot.seq),
        ]
    ]


def place(
    slots: Sequence[Slot],
    demand: Demand,
    known: Known,
    rolls_back: bool,
    capacity: int,
    costs: Costs,
    modest: bool = False,
) -> Placement | None:
    """The cheapest placement that fits into `capacity` cells once other idle slots are emptied; None: there is none.

    Among equals what comes from the slot itself is taken, then the slot used longest ago.  `modest`: nothing that
    belongs to others is given up for it, so that it goes on where it is or into an empty slot.  Where no slot is busy,
    there is one for every demand that fits into `capacity`, unless it is `modest`: what RAM alone offers fits, too.
    """
    known = known.within(capacity)
    by_seq = {slot.seq: slot for slot in slots}

    def cost(placement: Placement) -> tuple[int, bool, float, int]:
        slot, resume = by_seq[placement.seq], placement.resume
        kept = resume.shared if resume.source == slot.seq else 0
        total = _bringing(resume, demand, costs) + _losing(slots, slot, kept, costs)
        total += sum(_losing(slots, by_seq[seq], 0, costs) for seq in placement.evict)
        total += (max(demand.reserve, resume.peak) - resume.shared) * costs.cell
        # In nanoseconds, because rounding errors decide nothing.
        return round(total * 1e9), resume.source != slot.seq, slot.last_used, -resume.shared

    def is_modest(placement: Placement) -> bool:
        at_home = placement.resume.source == placement.seq
        return not placement.evict and (at_home or not len(by_seq[placement.seq].tokens))

    possible = (fitted(slots, at, demand, capacity) for at in candidates(slots, demand, known, rolls_back, costs))
    return min((at for at in possible if at is not None and (is_modest(at) or not modest)), key=cost, default=None)


def _bringing(resume: Resume, demand: Demand, costs: Costs) -> float:
    computing = (len(demand.tokens) - resume.begin) * costs.compute
    return computing + resume.restored * costs.restore + resume.restore * costs.checkpoint


def _losing(slots: Sequence[Slot], slot: Slot, kept: int, costs: Costs) -> float:
    """What it costs to overwrite all that a slot holds beyond `kept`."""
    held = len(slot.tokens)
    if held == kept:
        return 0.0
    # Exclusive cells are the last ones of a slot: what is shared is a prefix.
    elsewhere = held - cells.exclusive(slot.runs, (other.runs for other in slots if other is not slot))
    lost = held - min(held, max(kept, elsewhere, slot.saved))
    parked = lost >= (EDIT_WORTH_SAVING if kept else 1)
    return lost * costs.lose + (held - kept - lost) * costs.restore + parked * costs.park


def fitted(slots: Sequence[Slot], placement: Placement, demand: Demand, capacity: int) -> Placement | None:
    """The placement with what has to be emptied for its cells; None where even that is not enough."""
    keep = {placement.seq, placement.resume.source}
    after, evict = started(slots, placement, demand), list[int]()
    while used(after) > capacity:
        slot = victim(after, keep)
        if slot is None:
            return None
        evict.append(slot.seq)
        after = emptied(after, [slot.seq])
    return replace(placement, evict=tuple(evict))


def started(slots: Sequence[Slot], placement: Placement, demand: Demand, run: int = _FRESH) -> list[Slot]:
    """The slots once the prompt's Start is carried out; its new cells are run `run`."""
    by_seq = {slot.seq: slot for slot in slots}
    resume, target = placement.resume, by_seq[placement.seq]
    source = by_seq.get(resume.source)
    kept = cells.front(source.runs, resume.shared) if source else ()
    rest = [slot for slot in slots if slot is not target]
    runs = cells.extended(kept, run, max(demand.reserve, resume.peak), (slot.runs for slot in rest))
    new = replace(target, tokens=demand.tokens[: resume.begin], runs=runs, saved=0, asked=False)
    return [new if slot is target else slot for slot in slots]


def emptied(slots: Sequence[Slot], seqs: Collection[int]) -> list[Slot]:
    """The slots once some are cleared."""
    return [Slot(slot.seq, last_used=slot.last_used) if slot.seq in seqs else slot for slot in slots]


def used(slots: Sequence[Slot]) -> int:
    """Cells that are held or reserved, shared ones once."""
    return cells.union(slot.runs for slot in slots)


def victim(slots: Sequence[Slot], keep: Collection[int] = ()) -> Slot | None:
    """The idle slot to empty for want of cells: the one used longest ago of those whose cells come free."""
    idle = [slot for slot in slots if not slot.busy and len(slot.tokens) and slot.seq not in keep]
    freeing = [
        slot for slot in idle if cells.exclusive(slot.runs, (other.runs for other in slots if other is not slot))
    ]
    return min(freeing or idle, key=lambda slot: slot.last_used, default=None)
