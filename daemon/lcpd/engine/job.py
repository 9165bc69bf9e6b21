"""One running request as the worker sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lcpd.engine.protocol import Embeddings, Tokens
from lcpd.engine.stops import TextFilter
from lcpd.native.bridge import Sampler


@dataclass
class Job:
    """A request on a sequence.  The decode loop is its only owner."""

    request: int
    seq: int
    prompt: Tokens
    """-1 where an item is an embedding."""
    positions: Tokens
    embeddings: list[Embeddings]
    checkpoints: dict[int, int]
    """Position -> checkpoint id, still to be taken."""
    sampler: Sampler
    text: TextFilter
    preserved: frozenset[int]
    """Special tokens whose text the parser wants to see."""
    ends_reply: bool
    """Whether an end-of-generation token ends the reply (not so with ignore_eos)."""
    max_tokens: int
    done: int
    """Prompt items that the sequence holds."""
    generated: list[int] = field(default_factory=list)
    """Sampled tokens; the last one has not been decoded yet."""
    prefill_seconds: float = 0.0
    first_token_at: float = 0.0
    last_prompt_position: int = field(init=False)

    def __post_init__(self) -> None:
        self.last_prompt_position = int(self.positions[-1])

    @property
    def prefilling(self) -> bool:
        """Whether prompt items are left to decode."""
        return self.done < len(self.prompt)

    @property
    def position(self) -> int:
        """The position of the last sampled token."""
        return self.last_prompt_position + len(self.generated)

    def chunk_end(self, n_batch: int) -> int:
        """Where the next prefill batch ends: at a checkpoint, at an edge of embeddings, or after `n_batch` items."""
        end = min(self.done + n_batch, len(self.prompt))
        edges = [edge for e in self.embeddings for edge in (e.begin, e.begin + e.count)]
        return min((cut for cut in [*self.checkpoints, *edges] if self.done < cut < end), default=end)

    def vectors(self, end: int, n_embd: int) -> npt.NDArray[np.float32] | None:
        """The input vectors of items [done, end), or None where they are tokens."""
        for e in self.embeddings:
            if e.begin <= self.done and end <= e.begin + e.count:
                data = np.frombuffer(e.data, "<f4").reshape(e.count, n_embd)
                return data[self.done - e.begin : end - e.begin]
        return None
