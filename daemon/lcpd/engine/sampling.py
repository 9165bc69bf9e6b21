"""Samples the next token of several jobs from the rows of the last batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lcpd.engine.job import Job
from lcpd.engine.protocol import TokenProbs
from lcpd.native.bridge import step_many
from lcpd.native.context import Context
from lcpd.native.model import Model


@dataclass(frozen=True)
class Sampled:
    """One job's next token; negative when its sampler failed."""

    token: int
    probs: TokenProbs | None


class Picker:
    """Knows the model's vocabulary and where its context keeps logits."""

    def __init__(self, model: Model, context: Context) -> None:
        self._model = model
        self._context = context
        self._ends = np.array(sorted(model.end_tokens), np.int32)
        self._pieces: dict[tuple[int, bool], bytes] = {}

    def pick(self, jobs: Sequence[Job], rows: Sequence[int]) -> list[Sampled]:
        """Sample and accept one token of each job from its row of the last batch."""
        changed = [
            (row, self._forbid_ends(row))
            for job, row in zip(jobs, rows, strict=True)
            if len(job.generated) < job.min_tokens
        ]
        tokens = step_many([job.sampler for job in jobs], self._context.handle, rows)
        for row, logits in changed:  # probabilities are those that the model gave
            self._context.logits_view(row, self._model.n_vocab)[self._ends] = logits
        return [
            Sampled(token, self._probs(job, row, token) if job.n_probs and token >= 0 else None)
            for job, row, token in zip(jobs, rows, tokens, strict=True)
        ]

    def piece(self, token: int, special: bool) -> bytes:
        """The bytes a token stands for; special tokens are empty unless `special`."""
        key = (token, special)
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = self._model.piece(token, special)
        return piece

    def _forbid_ends(self, row: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        """Make end-of-generation tokens impossible in a row; returns their logits."""
        logits = self._context.logits_view(row, self._model.n_vocab)
        before: np.ndarray[tuple[int], np.dtype[np.float32]] = logits[self._ends]
        logits[self._ends] = -np.inf
        return before

    def _probs(self, job: Job, row: int, token: int) -> TokenProbs:
        own, best = job.sampler.probs(self._context.handle, row, token, job.n_probs, job.post_probs)
        top = [(other, logprob, self.piece(other, special=True)) for other, logprob in best]
        return TokenProbs(token, own, self.piece(token, special=True), top)
