"""The decode loop's two kinds of batches: the next token of all running replies, and a piece of one prompt."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from lcpd.engine.job import Job
from lcpd.native.context import Context


class Batches:
    """Decodes batches of jobs and moves their `done` on.

    Both methods raise CacheFull, after which nothing has changed, or DecodeError, after which the state of the batch's
    sequences is undefined; OutOfMemory goes through to whoever runs the worker.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.count = 0
        """Batches so far."""
        self.tokens = 0
        """Tokens in them."""

    def replies(self, jobs: Sequence[Job]) -> None:
        """Decode the last sampled token of each job; row i of the batch has the logits of job i."""
        tokens = [job.generated[-1] for job in jobs]
        positions = [job.position for job in jobs]
        self._context.decode(tokens, positions, [job.seq for job in jobs], logits=1)
        for job in jobs:
            job.done += 1
        self._count(len(jobs))

    def prefill(self, job: Job, end: int, samples: bool) -> float:
        """Decode the job's items up to `end`, with logits of the last one where it `samples`; seconds that it took."""
        begun = time.monotonic()
        tokens, positions = job.batch(end)
        vectors = job.vectors(end, self._context.n_embd)
        if vectors is not None:
            self._context.decode_embeddings(vectors, positions, job.seq, samples)
        else:
            logits = np.zeros(len(tokens), np.int8)
            logits[-1] = samples
            self._context.decode(tokens, positions, job.seq, logits)
        self._context.synchronize()
        job.done = end
        self._count(len(tokens))
        return time.monotonic() - begun

    def _count(self, tokens: int) -> None:
        self.count += 1
        self.tokens += tokens
