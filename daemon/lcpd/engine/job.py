"""One request on a sequence as the worker sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lcpd.engine.protocol import Embeddings, Extent, Tokens
from lcpd.engine.stops import TextFilter
from lcpd.native.bridge import Sampler


@dataclass
class Job:
    """A running or parked request.  The decode loop is its only owner.

    Its items are those of the prompt followed by the tokens that were generated.  A job whose sequence lacks items
    other than the last one of a reply prefills, whether they are the prompt's or a reply's that was parked or lost.
    """

    request: int
    seq: int
    prompt: Tokens
    """-1 where an item is an embedding."""
    positions: Tokens
    embeddings: list[Embeddings]
    checkpoints: dict[int, Extent]
    """Item count -> where to write the checkpoint, still to be taken."""
    sampler: Sampler
    text: TextFilter
    preserved: frozenset[int]
    """Special tokens whose text the parser wants to see."""
    ends_reply: bool
    """Whether an end-of-generation token ends the reply (not so with ignore_eos)."""
    n_probs: int
    """How many alternatives of each token to report."""
    post_probs: bool
    """Whether probabilities are those that the sampler chain left."""
    max_tokens: int
    min_tokens: int
    priority: int
    done: int = 0
    """Items that the sequence holds."""
    generated: list[int] = field(default_factory=list)
    """Sampled tokens; the last one is decoded next."""
    turn: int = 0
    """When it was last prefilled; grows over all jobs."""
    starved: bool = False
    """Whether it waits for free cells."""
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    """Up to when it was last parked."""
    decoding_since: float | None = None
    """Monotonic seconds; None before the first token and while it is parked."""
    _last_prompt_position: int = field(init=False)

    def __post_init__(self) -> None:
        self._last_prompt_position = int(self.positions[-1])

    @property
    def prefill_end(self) -> int:
        """The items that are decoded in prefill batches: all but the last sampled token."""
        return len(self.prompt) + max(len(self.generated) - 1, 0)

    @property
    def prefilling(self) -> bool:
        """Whether it has items to decode before it can sample."""
        return self.done < self.prefill_end or not self.generated

    @property
    def held(self) -> list[int]:
        """The generated tokens that the sequence holds."""
        return self.generated[: max(self.done - len(self.prompt), 0)]

    @property
    def position(self) -> int:
        """The position of the last sampled token."""
        return self._last_prompt_position + len(self.generated)

    def end_position(self, count: int) -> int:
        """The position that follows those of the first `count` items."""
        if count == 0:
            return 0
        beyond = count - len(self.prompt)
        return self._last_prompt_position + beyond + 1 if beyond > 0 else int(self.positions[count - 1]) + 1

    def next_cut(self) -> int:
        """The items after which the next prefill batch must end: at a checkpoint, an edge of embeddings, the end."""
        cuts = [*self.checkpoints, *(edge for e in self.embeddings for edge in (e.begin, e.begin + e.count))]
        return min((cut for cut in cuts if self.done < cut < self.prefill_end), default=self.prefill_end)

    def batch(self, end: int) -> tuple[Tokens, Tokens]:
        """Tokens and positions of items [done, end)."""
        size = len(self.prompt)
        if end <= size:
            return self.prompt[self.done : end], self.positions[self.done : end]
        first = max(self.done, size)
        reply = np.array(self.generated[first - size : end - size], np.int32)
        later = np.arange(first - size + 1, end - size + 1, dtype=np.int32) + self._last_prompt_position
        return (
            np.concatenate([self.prompt[self.done :], reply]),
            np.concatenate([self.positions[self.done :], later]),
        )

    def vectors(self, end: int, n_embd: int) -> npt.NDArray[np.float32] | None:
        """The input vectors of items [done, end), or None where they are tokens."""
        for e in self.embeddings:
            if e.begin <= self.done and end <= e.begin + e.count:
                data = np.frombuffer(e.data, "<f4").reshape(e.count, n_embd)
                return data[self.done - e.begin : end - e.begin]
        return None

    def stop_clock(self, now: float) -> None:
        """It decodes no longer: count the time since it began to."""
        if self.decoding_since is not None:
            self.decode_seconds += now - self.decoding_since
            self.decoding_since = None
