"""The slots as the dispatcher believes them to be: a command changes them when it is sent, for the engine obeys in
order; what the engine says corrects them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from lcpd.scheduler import cells, placement
from lcpd.scheduler.placement import Demand, Placement
from lcpd.scheduler.slots import Slot, Tokens


class SlotTable:
    """Owner of all slots.  Every method leaves them in a consistent state."""

    def __init__(self, count: int) -> None:
        self._slots = {seq: Slot(seq) for seq in range(count)}
        self._runs = itertools.count()
        self.capacity = 0
        """Cells of the KV cache; 0 before the first load."""

    def __getitem__(self, seq: int) -> Slot:
        return self._slots[seq]

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots.values())

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def used(self) -> int:
        """Cells that are held or reserved, shared ones once."""
        return placement.used(list(self))

    def alone(self, seq: int) -> int:
        """Cells of a slot that no other one holds."""
        return cells.exclusive(self[seq].runs, (slot.runs for slot in self if slot.seq != seq))

    def reset(self) -> None:
        """A new engine: all are empty."""
        self._slots = {seq: Slot(seq) for seq in self._slots}

    def start(self, request: int, where: Placement, demand: Demand) -> None:
        """A Start is sent."""
        slots = placement.started(list(self), where, demand, next(self._runs))
        self._slots = {slot.seq: slot for slot in slots}
        self._slots[where.seq] = replace(self[where.seq], request=request)

    def began(self, seq: int, begin: int) -> None:
        """The engine begins at `begin`, which is 0 where it could not do as it was told."""
        slot = self[seq]
        if begin < len(slot.tokens):
            run = cells.Run(next(self._runs), cells.size(slot.runs))
            self._slots[seq] = replace(slot, tokens=slot.tokens[:begin], runs=(run,))

    def holds(self, seq: int, tokens: Tokens) -> None:
        """A running request's prefill got further; its cells are reserved already."""
        self._slots[seq] = replace(self[seq], tokens=tokens)

    def reserve(self, seq: int, count: int) -> int:
        """A running request needs `count` cells; returns how many are new."""
        slot = self[seq]
        more = count - cells.size(slot.runs)
        if more > 0:
            self._slots[seq] = replace(slot, runs=cells.resized(slot.runs, count))
        return max(0, more)

    def release(self, seq: int, tokens: Tokens, saved: int, now: float) -> None:
        """The request is off the slot, which holds just `tokens`, the first `saved` of them in RAM too."""
        runs = cells.resized(self[seq].runs, len(tokens))
        self._slots[seq] = Slot(seq, tokens, runs, last_used=now, saved=saved)

    def ask(self, seq: int) -> None:
        """An idle slot is being saved."""
        self._slots[seq] = replace(self[seq], asked=True)

    def saved(self, seq: int, count: int) -> None:
        """The first `count` tokens of an idle slot are in RAM now."""
        if not self[seq].busy:
            self._slots[seq] = replace(self[seq], saved=count)

    def empty(self, seq: int) -> None:
        """The slot holds nothing any more."""
        self._slots[seq] = Slot(seq, last_used=self[seq].last_used)
