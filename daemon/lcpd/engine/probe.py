"""What is found out by computing when a model is loaded: that it works, how large its state is, whether cuts matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from lcpd.native.context import Context
from lcpd.native.model import Model, ModelError

Logits = npt.NDArray[np.float32]

NOISE = 0.1
"""Logits.  What a cut moves them by at most where nothing but the order of sums changes."""
_SHORT = 96
"""Tokens of the first look, which costs little."""


@dataclass(frozen=True)
class Measured:
    """See the fields of the same names in :class:`lcpd.engine.protocol.ModelInfo`."""

    segment_bytes: tuple[int, int]
    checkpoint_bytes: int
    alignment: int


def measure(model: Model, context: Context) -> Measured:
    """Use sequence 0 and scratch, which are empty before and after.  Raises ModelError for a model that is broken."""
    segment, checkpoint = _sizes(model, context)
    return Measured(segment, checkpoint, _alignment(model, context))


def _sizes(model: Model, context: Context) -> tuple[tuple[int, int], int]:
    """Bounds on the bytes of segments and checkpoints, from those of one and two tokens."""
    segments, checkpoints = [], []
    for count in (1, 2):
        context.decode([0], [count - 1], 0, logits=1)
        if not np.isfinite(context.logits(-1, model.n_vocab)).all():
            raise ModelError("the model's first logits are not finite: the file or the build is broken")
        context.share(0, context.scratch, 0, count)
        context.drop_rolling(context.scratch, count)
        segments.append(context.state_size(context.scratch, partial=False))
        context.clear(context.scratch)
        checkpoints.append(context.state_size(0, partial=True))
    context.clear(0)
    each = segments[1] - segments[0]
    # On recurrent models a checkpoint is all of the state: there is nothing that a segment could hold.
    segment = (0, 0) if context.kind == "recurrent" else (segments[0] - each, each)
    if context.rolls_back:
        return segment, 0
    window = llama.llama_model_n_swa(model.handle) if context.kind == "swa" else context.n_ctx
    return segment, checkpoints[0] + (checkpoints[1] - checkpoints[0]) * min(window, context.n_ctx)


def _alignment(model: Model, context: Context) -> int:
    """`n_ubatch` where prompts must be cut at its multiples, else 1.

    A backend may compute a row another way when its micro-batch has fewer rows or another number of them: llama.cpp's
    CPU flash attention does for less than 64, which moved logits by 0.5 to 2.8 on small quantised models.  But then
    every decoded token, and the end of every prompt, is computed that other way too.  So cuts matter only where they
    move logits by more than a few tokens in batches of their own do, and aligning them helps only where it undoes that.
    """
    unit = context.n_ubatch
    length = min(_SHORT, unit)
    if length < 32:
        return 1
    whole = _last_logits(model, context, [length])
    bound = 2 * _distance(whole, _last_logits(model, context, [length - 6, length - 4, length - 1, length])) + NOISE
    if _distance(whole, _last_logits(model, context, [length * 5 // 8 + 1, length])) <= bound:
        return 1
    length = unit + unit // 2
    if length > context.n_ctx:
        return 1
    aligned = _distance(_last_logits(model, context, [length]), _last_logits(model, context, [unit, length]))
    return unit if aligned <= bound else 1


def _last_logits(model: Model, context: Context, ends: Sequence[int]) -> Logits:
    """The logits after a prompt of `ends[-1]` tokens that is cut at all `ends`, and every `n_batch` tokens."""
    tokens = (np.arange(ends[-1], dtype=np.int64) * 7919 % min(model.n_vocab, 20_000)).astype(np.int32)
    begin = 0
    for end in ends:
        while begin < end:
            upto = min(begin + context.n_batch, end)
            wanted = np.zeros(upto - begin, np.int8)
            wanted[-1] = 1
            context.decode(tokens[begin:upto], np.arange(begin, upto, dtype=np.int32), 0, wanted)
            begin = upto
    logits = context.logits(-1, model.n_vocab)
    context.clear(0)
    return logits


def _distance(a: Logits, b: Logits) -> float:
    return float(np.abs(a - b).max())
