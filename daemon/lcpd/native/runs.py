"""How many runs of contiguous cells the tokens of a sequence lie in: libllama copies state run by run.

An estimate, because libllama does not tell where cells lie.  It follows the order in which they were given out: what a
sequence decodes goes on in the run of what it decoded before, unless another sequence got cells in between.  In a cache
with holes there can be more runs, and fewer where tokens were restored piece by piece.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence


class CellRuns:
    """Follows all sequences of one context.  A decoded batch costs O(1) for each sequence in it."""

    def __init__(self, n_seq: int) -> None:
        self._starts: list[list[int]] = [[] for _ in range(n_seq)]
        """Of each sequence: the positions at which runs begin, ascending."""
        self._ends = [0] * n_seq
        """Of each sequence: the position after its last one."""
        self._latest = -1
        """The sequence that got the last cells."""

    def wrote(self, seq: int, begin: int, end: int) -> None:
        """Positions [begin, end) of a sequence got cells, one after the other."""
        if seq != self._latest or begin != self._ends[seq] or not self._starts[seq]:
            self._starts[seq].append(begin)
            self._latest = seq
        self._ends[seq] = end

    def wrote_each(self, seqs: Sequence[int], positions: Sequence[int]) -> None:
        """These sequences got one cell each, in this order."""
        for seq, position in zip(seqs, positions, strict=True):
            self.wrote(seq, position, position + 1)

    def cut(self, seq: int, length: int) -> None:
        """Positions from `length` on gave up their cells."""
        starts = self._starts[seq]
        del starts[bisect_left(starts, length) :]
        self._ends[seq] = min(self._ends[seq], length)

    def share(self, source: int, target: int, begin: int, end: int) -> None:
        """`target`, which holds nothing from `begin` on, holds the cells of `source` at [begin, end) too."""
        end = min(end, self._ends[source])
        if begin >= end:
            return
        starts = self._starts[source]
        self._starts[target] += [begin, *starts[bisect_right(starts, begin) : bisect_left(starts, end)]]
        self._ends[target] = end

    def count(self, seq: int, begin: int, end: int) -> int:
        """Runs in which positions [begin, end) lie."""
        end = min(end, self._ends[seq])
        starts = self._starts[seq]
        return bisect_left(starts, end) - bisect_right(starts, begin) + 1 if begin < end else 0
