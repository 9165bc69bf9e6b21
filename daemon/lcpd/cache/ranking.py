"""In which order files are given up when the disk tier is full: by worth, what builds on a file before the file.

To look at all files takes milliseconds for thousands, so it is done in slices, once in a while, and what it found is
used up one after the other.  What is named is judged anew first; what was written since the last look is not named.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator
from itertools import count

from lcpd.cache.catalogue import Catalogue, Entry
from lcpd.cache.retention import Candidate, Economics, worth

_SLICE = 256
"""Files that are looked at at once: about a millisecond."""


class Ranking:
    """Of the files of one catalogue, which may change at any time."""

    def __init__(self, catalogue: Catalogue, rolls_back: bool) -> None:
        """`rolls_back`: a path can go on from anywhere, so that segments are of use without a checkpoint."""
        self.catalogue = catalogue
        self._rolls_back = rolls_back
        self._numbers = count()
        self._heap: list[tuple[float, float, int, Entry]] = []
        self._named: Entry | None = None

    def look(self, now: float, economics: Economics) -> Iterator[None]:
        """Look at all files, some in each step.  `now`: unix seconds."""
        self._heap.clear()
        for number, entry in enumerate(self.catalogue.entries):
            if number % _SLICE == 0:
                yield
            if not entry.children and self.catalogue.holds(entry):
                self._push(entry, self._worth(entry, now, economics))

    def next(self, stays: Collection[Entry], now: float, economics: Economics) -> Entry | None:
        """The file that is worth least of those that nothing builds on and that do not stay; the caller removes it.

        None where there is none that is known of.
        """
        if self._named is not None and (parent := self._named.parent) is not None:
            self._push(parent, self._worth(parent, now, economics))
        self._named = None
        staying: list[Entry] = []
        while self._heap and self._named is None:
            known, _, _, entry = heapq.heappop(self._heap)
            if entry.children or not self.catalogue.holds(entry):
                continue
            if entry in stays:
                staying.append(entry)
            elif (now_worth := self._worth(entry, now, economics)) > known:  # used meanwhile, or a neighbour went
                self._push(entry, now_worth)
            else:
                self._named = entry
        for entry in staying:
            self._push(entry, self._worth(entry, now, economics))
        return self._named

    def _push(self, entry: Entry, value: float) -> None:
        heapq.heappush(self._heap, (value, entry.last_used, next(self._numbers), entry))

    def _worth(self, entry: Entry, now: float, economics: Economics) -> float:
        if entry.kind == "segment":
            # Nothing builds on it (any more): where checkpoints are needed to go on, it is of no use.
            tokens = len(entry.tokens) if self._rolls_back else 0
            candidate = Candidate("segment", entry.size, tokens, entry.last_used, entry.hits, 0)
        else:
            before, outrun, size = _around(entry)
            tokens = entry.end - before
            candidate = Candidate(
                "checkpoint", entry.size + size, tokens, entry.last_used, entry.hits, outrun, outrun > 0
            )
        return worth(candidate, now, economics)


def with_all_below(entries: Iterable[Entry]) -> set[Entry]:
    """Files and all that they build on."""
    found: set[Entry] = set()
    for entry in entries:
        above: Entry | None = entry
        while above is not None and above not in found:
            found.add(above)
            above = above.parent
    return found


def _around(entry: Entry) -> tuple[int, int, int]:
    """Of a checkpoint: the position of the one before it, how many files go on behind it, and the bytes of the
    segments that only it needs."""
    below, above = entry, entry.parent
    further, size, before = 0, 0, 0
    if above is not None:
        further = sum(one.end > entry.end and one.begin >= entry.begin for one in above.children)
    alone = True
    while above is not None and not before:
        others = [one for one in above.children if one is not below]
        before = max((o.end for o in others if o.kind == "checkpoint" and o.end <= below.begin), default=0)
        alone = alone and not others
        size += above.size if alone else 0
        below, above = above, above.parent
    return before, further, size
