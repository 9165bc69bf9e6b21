"""What the slots hold, and from where a prompt can go on: pure functions over plain data.

Nothing here changes its arguments; times and lengths are plain numbers that come in from outside.

    source of [0, shared)      resume points on pure attention    on models that cannot be truncated anywhere
    ---------------------      -------------------------------    -------------------------------------------
    the slot itself            everywhere                         its live end; checkpoints
    another slot               everywhere                         checkpoints
    none: RAM alone            everywhere                         checkpoints

What RAM holds can follow what a slot holds.  A resume point lies before the last token, which is always computed:
logits are not part of a sequence's state.  Only where nothing is sampled it may lie behind the last token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from lcpd.cache.trie import common_prefix
from lcpd.scheduler.cells import Runs

Tokens = npt.NDArray[np.int32]
EMPTY: Tokens = np.empty(0, np.int32)


@dataclass(frozen=True)
class Span:
    """One message of a prompt: tokens [begin, begin + length)."""

    role: str
    begin: int
    length: int


@dataclass(frozen=True)
class Slot:
    """A live sequence and what it holds."""

    seq: int
    tokens: Tokens = field(default_factory=lambda: EMPTY)
    """The tokens whose state the sequence holds; while a reply is decoded, without the reply."""
    runs: Runs = ()
    """Its cells; those of a running request include what is reserved for it."""
    request: int | None = None
    """The one that runs on it."""
    last_used: float = 0.0
    saved: int = 0
    """Tokens that are in RAM too."""
    asked: bool = False
    """Whether all of it has been asked to be saved since it became idle."""

    @property
    def busy(self) -> bool:
        """Whether a request runs on it."""
        return self.request is not None


@dataclass(frozen=True)
class Known:
    """What RAM holds of one prompt."""

    covered: int = 0
    """Its first tokens whose segments are there."""
    checkpoints: tuple[int, ...] = ()
    """Positions on its path, ascending."""
    segments: tuple[tuple[int, int], ...] = ()
    """Begin and end of each, ascending; the last one may reach beyond what is covered."""

    def within(self, capacity: int) -> Known:
        """What of it can be read into `capacity` cells: the last segment is read whole, though it may have been saved
        of a longer prompt, in a larger context."""
        if not self.segments or self.segments[-1][1] <= capacity:
            return self
        return replace(self, covered=self.segments[-1][0], segments=self.segments[:-1])


@dataclass(frozen=True)
class Resume:
    """How a sequence is brought to where computing begins."""

    begin: int
    source: int = -1
    """The sequence whose [0, shared) is used; -1: none."""
    shared: int = 0
    restore: bool = False
    """Whether the checkpoint at `begin` is applied."""
    peak: int = 0
    """Cells that are held at most on the way there: a segment is read whole, beside what is held already."""

    @property
    def restored(self) -> int:
        """Tokens that come from RAM."""
        return self.begin - self.shared


COLD = Resume(0)


def resumes(
    prompt: Tokens, source: Slot | None, own: bool, known: Known, rolls_back: bool, samples: bool = True
) -> Iterator[Resume]:
    """The ways for a prompt to go on from `source`; each is the best of its kind.

    `own`: the source is the slot that the prompt is to run on.  `rolls_back`: a sequence can be truncated anywhere
    (pure attention).  `samples`: the logits of the last token are wanted.
    """
    last = len(prompt) - samples
    live = min(common_prefix(source.tokens, prompt), last) if source else 0
    reach = min(max(live, known.covered), last)
    if rolls_back:
        yield _from(source, live, reach, False, known)
        return
    at_live_end = own and source is not None and live == len(source.tokens)
    if at_live_end and live:
        yield _from(source, live, live, False, known)
    begin = max((at for at in known.checkpoints if at <= reach), default=0)
    if begin and not (at_live_end and begin <= live):
        yield _from(source, live, begin, True, known)
    elif source is None:
        yield COLD


def _from(source: Slot | None, live: int, begin: int, restore: bool, known: Known) -> Resume:
    shared = min(live, begin)
    needed = [(start, end) for start, end in known.segments if end > shared and start < begin]
    peak = max(shared + needed[0][1] - needed[0][0], needed[-1][1]) if needed and begin > shared else 0
    return Resume(begin, source.seq if source and shared else -1, shared, restore, peak)
