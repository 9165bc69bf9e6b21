"""Replays on a context of its own: the logits from which a reply was sampled, with any cuts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from lcpd.native.context import Context

Rows = npt.NDArray[np.float32]
"""Logits: one row for each token of a reply."""

SEQUENCES = 4
"""How many a replay's context needs."""
FACTOR = 2.0
"""delta over the largest shift that was seen: for shapes of batches that were not tried."""
_RIVALS = 4
"""Tokens of a row that could have been sampled; far below them logits move more, and nothing depends on it."""
_PIECES = (1, 7, 32)
"""Tokens in a batch of the varied prefills; 1 is as in decoding."""


class Replay:
    """Owns a context, whose sequences are empty between calls unless a method says otherwise."""

    def __init__(self, context: Context, n_vocab: int, never: Collection[int] = ()) -> None:
        """`never`: tokens that cannot be sampled, as those that end a reply where `ignore_eos` was asked for."""
        self.context = context
        self._n_vocab = n_vocab
        self._never = sorted(never)

    def gaps(self, prompt: Sequence[int], reply: Sequence[int]) -> npt.NDArray[np.float32]:
        """How far the logit of each token of the reply lies below the largest one, alone and cold."""
        return _gaps(self.rows(prompt, reply), reply)

    def least_gaps(self, prompt: Sequence[int], reply: Sequence[int]) -> npt.NDArray[np.float32]:
        """As `gaps`, of each token the smallest one over all shapes of batches that are tried: none explains more."""
        return np.min([_gaps(rows, reply) for rows in [self.rows(prompt, reply), *self._varied(prompt, reply)]], axis=0)

    def rows(self, prompt: Sequence[int], reply: Sequence[int], cuts: Iterable[int] = ()) -> Rows:
        """The logits before each token of `reply`, computed in one pass but for `cuts` (positions)."""
        try:
            return self.go_on(prompt, reply, 0, cuts)
        finally:
            self.context.clear(0)

    def go_on(
        self, prompt: Sequence[int], reply: Sequence[int], begin: int, cuts: Iterable[int] = (), seq: int = 0
    ) -> Rows:
        """As `rows`, on a sequence that stands at `begin`, inside the prompt; it is left at the end."""
        # The last token of the reply decides nothing any more.
        tokens = np.array([*prompt, *reply[:-1]], np.int32)
        first_row = len(prompt) - 1
        rows = np.empty((len(reply), self._n_vocab), np.float32)
        for start, end in _batches(begin, len(tokens), cuts, self.context.n_batch):
            positions = np.arange(start, end, dtype=np.int32)
            self.context.decode(tokens[start:end], positions, seq, (positions >= first_row).astype(np.int8))
            for at in range(max(start, first_row), end):
                rows[at - first_row] = self._row(at - start)
        return rows

    def beside(self, prompt: Sequence[int], reply: Sequence[int]) -> Rows:
        """As `rows`, each token of the reply in one batch with those of other sequences, as slots decode."""
        seqs = list(range(SEQUENCES))
        try:
            # Sequence 0 comes last; the others' prompts are shorter, so that a batch holds different positions.
            for seq in reversed(seqs):
                rows = [self.go_on(prompt[seq:], reply[:1], 0, seq=seq)[0]]
            for step, token in enumerate(reply[:-1]):
                self.context.decode([token] * len(seqs), [len(prompt) - seq + step for seq in seqs], seqs, 1)
                rows.append(self._row(0))
            return np.array(rows)
        finally:
            for seq in seqs:
                self.context.clear(seq)

    def greedy(self, prompt: Sequence[int], length: int, begin: int = 0, cuts: Iterable[int] = ()) -> list[int]:
        """The best reply, decoded one token at a time on sequence 0, which stands at `begin` and is empty afterwards.

        It ends at `length`, whatever its tokens mean.
        """
        try:
            reply = [int(self.go_on(prompt, [0], begin, cuts)[0].argmax())]
            while len(reply) < length:
                self.context.decode(reply[-1:], [len(prompt) + len(reply) - 1], 0, 1)
                reply.append(int(self._row(-1).argmax()))
            return reply
        finally:
            self.context.clear(0)

    def _row(self, number: int) -> Rows:
        """One row of the last batch."""
        row = self.context.logits(number, self._n_vocab)
        row[self._never] = -np.inf
        return row

    def delta(self, prompt: Sequence[int], length: int) -> float:
        """The largest gap that different cuts explain, measured on the greedy reply of `length` tokens."""
        reply = self.greedy(prompt, length)
        reference = self.rows(prompt, reply)
        return FACTOR * max(shift(reference, rows) for rows in self._varied(prompt, reply))

    def _varied(self, prompt: Sequence[int], reply: Sequence[int]) -> list[Rows]:
        """As `rows`, in other shapes of batches."""
        end = len(prompt) + len(reply)
        cut = [self.rows(prompt, reply, range(piece, end, piece)) for piece in _PIECES]
        return [*cut, self.beside(prompt, reply)]


def _gaps(rows: Rows, reply: Sequence[int]) -> npt.NDArray[np.float32]:
    return rows.max(axis=1) - rows[np.arange(len(reply)), np.asarray(reply)]


def shift(reference: Rows, rows: Rows) -> float:
    """The largest change of the distance between two of the best tokens of a row."""
    best = np.argsort(reference, axis=1)[:, -_RIVALS:]
    moved = np.take_along_axis(rows, best, axis=1) - np.take_along_axis(reference, best, axis=1)
    return float(np.ptp(moved, axis=1).max())


def _batches(begin: int, end: int, cuts: Iterable[int], limit: int) -> list[tuple[int, int]]:
    """[begin, end) cut at `cuts`, and further so that no batch is longer than `limit`."""
    edges = sorted({begin, end, *(cut for cut in cuts if begin < cut < end)})
    return [(start, min(start + limit, stop)) for first, stop in pairwise(edges) for start in range(first, stop, limit)]
