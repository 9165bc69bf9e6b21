"""Texts become vectors, in a context of their own beside the one that serves requests.

Its sequences and cells are nobody's business but its own, so what requests hold stays as it is.  It is made when the
first text comes and freed after `IDLE_SECONDS` without one.  A text is decoded in pieces, one a step, as large as fit
`max_stall` beside running replies; libllama gives a vector for each token, and they are pooled here, so the pieces may
lie anywhere and a text may be longer than a batch.  (libllama's own pooling wants the whole text in one ubatch.)  Only
models in which a token sees those behind it get a text in one piece: they do not generate, so nobody waits for them.

Requests take turns text by text.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np
import numpy.typing as npt

from lcpd.engine import protocol as p
from lcpd.engine.pace import Pace
from lcpd.native.context import CacheFull, Context, DecodeError, OutOfMemory
from lcpd.native.model import ModelError, Pooling, Tokens

BATCH = 256
"""Tokens in one call at most.  Of each of them libllama computes logits too, which nobody wants and which take
four bytes for every token of the vocabulary."""
IDLE_SECONDS = 60.0
_SEQ = 0
Vector = npt.NDArray[np.float32]


@dataclass
class _Request:
    id: int
    priority: int
    texts: deque[tuple[int, Tokens]]
    """Number and tokens of those that wait."""


@dataclass
class _Text:
    """The text in progress."""

    request: _Request
    number: int
    tokens: Tokens
    done: int = 0
    total: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))
    """The sum of all vectors so far, or the one that counts."""


class Embedder:
    """Owns the second context; belongs to the decode loop's thread."""

    def __init__(
        self,
        make_context: Callable[[], Context],
        send: Callable[[p.Embedded], None],
        pooling: Pooling,
        longest: int,
        max_stall: float,
        whole: bool = False,
    ) -> None:
        """`make_context` raises ModelError; `longest`: tokens of a text; `max_stall`: seconds, as in DecodeLoop;
        `whole`: texts must not be cut, and a batch has `longest` tokens."""
        self._make_context = make_context
        self._send = send
        self._pooling = pooling
        self._longest = longest
        self._max_stall = max_stall
        self._whole = whole
        self._context: Context | None = None
        self._pace: Pace | None = None
        self._waiting: deque[_Request] = deque()
        self._text: _Text | None = None
        self._used = 0.0
        self.batches = 0
        """`llama_decode` calls so far."""
        self.tokens = 0
        """Tokens in them."""

    @property
    def busy(self) -> bool:
        """Whether there are texts to embed."""
        return self._text is not None or bool(self._waiting)

    @property
    def priority(self) -> int:
        """That of what is embedded next.  Only while it is busy."""
        return self._text.request.priority if self._text else self._next().priority

    def add(self, command: p.Embed) -> None:
        """Put the texts of a request behind those of others."""
        texts = deque((number, p.unpack(data)) for number, data in enumerate(command.texts))
        if texts:
            self._waiting.append(_Request(command.request, command.priority, texts))

    def drop(self, request: int) -> None:
        """Forget what is left of a request."""
        self._waiting = deque(waiting for waiting in self._waiting if waiting.id != request)
        if self._text and self._text.request.id == request:
            self._text = None

    def step(self, replies_run: bool, spent: float) -> None:
        """Compute one piece of a text; `spent`: seconds of the step that are used up."""
        self._used = time.monotonic()
        if self._text is None:
            self._text = self._take()
        text = self._text
        try:
            if not 0 < len(text.tokens) <= self._longest:
                raise ValueError(f"a text of {len(text.tokens)} tokens; 1 to {self._longest} are possible")
            context, pace = self._ready()
            self._decode(text, context, pace, replies_run, spent)
        except (ModelError, OutOfMemory) as error:
            self.close()
            self._give_up(text, f"there is no memory to embed texts of {self._longest} tokens: {error}")
        except (CacheFull, DecodeError, ValueError) as error:
            self._give_up(text, str(error))

    def rest(self, now: float) -> None:
        """Free the context if it has not been used for long."""
        if self._context and not self.busy and now - self._used > IDLE_SECONDS:
            self.close()

    def close(self) -> None:
        """Free the context; the next text makes another one."""
        if self._context:
            self._context.close()
            self._context = self._pace = None

    def _next(self) -> _Request:
        return min(self._waiting, key=lambda request: request.priority)  # the first of equal ones

    def _take(self) -> _Text:
        """The next text; its request goes behind the others."""
        request = self._next()
        self._waiting.remove(request)
        number, tokens = request.texts.popleft()
        if request.texts:
            self._waiting.append(request)
        return _Text(request, number, tokens)

    def _ready(self) -> tuple[Context, Pace]:
        if self._context is None or self._pace is None:
            begun = time.monotonic()
            self._context = context = self._make_context()
            self._pace = Pace(context.n_batch, context.n_ubatch, self._max_stall)
            seconds = time.monotonic() - begun
            print(f"a context for texts of {self._longest} tokens was made in {seconds:.2f} s", file=sys.stderr)
        return self._context, self._pace

    def _decode(self, text: _Text, context: Context, pace: Pace, replies_run: bool, spent: float) -> None:
        budget = pace.budget(replies_run, spent)
        size = self._longest if self._whole else min(budget.items, budget.n_batch)
        end = min(text.done + size, len(text.tokens))
        begun = time.monotonic()
        if not text.done:
            context.clear(_SEQ)
        piece = text.tokens[text.done : end]
        context.decode(piece, np.arange(text.done, end, dtype=np.int32), _SEQ, logits=1)
        context.synchronize()
        self._add(text, context, len(piece))
        text.done = end
        self.batches += 1
        self.tokens += len(piece)
        pace.observe_prefill(len(piece), time.monotonic() - begun)
        if end == len(text.tokens):
            self._finish(text)

    def _add(self, text: _Text, context: Context, count: int) -> None:
        match self._pooling:
            case "mean":
                text.total = text.total + context.vectors(count).sum(axis=0, dtype=np.float64)
            case "last":
                text.total = context.vectors(count)[-1].astype(np.float64)
            case "cls":
                text.total = text.total if text.done else context.vectors(count)[0].astype(np.float64)
            case "rank":
                text.total = np.array([context.score(_SEQ)])
            case _:
                assert_never(self._pooling)

    def _finish(self, text: _Text) -> None:
        vector = text.total / len(text.tokens) if self._pooling == "mean" else text.total
        if not np.isfinite(vector).all():
            raise DecodeError("the model gave numbers that are none (NaN or infinite)")
        self._text = None
        self._send(p.Embedded(text.request.id, text.number, vector.astype("<f4").tobytes()))

    def _give_up(self, text: _Text, problem: str) -> None:
        self.drop(text.request.id)
        self._send(p.Embedded(text.request.id, text.number, b"", problem))
