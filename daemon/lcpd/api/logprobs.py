"""How probable tokens were, in the API's shapes."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable
from typing import Any

from lcpd.scheduler.generation import TokenProbs

Json = dict[str, Any]


def content(probs: Iterable[TokenProbs], top: int, post: bool) -> list[Json]:
    """Tokens as in a chat's ``logprobs.content``, each with at most `top` alternatives (and llama-server's ``id``).

    With `post` they are probabilities after sampling, which llama-server tells under other names and without logarithm.
    """
    best = "top_probs" if post else "top_logprobs"
    return [
        {
            **_entry(probability.token, probability.logprob, probability.piece, post),
            best: [_entry(*other, post) for other in probability.top[:top]],
        }
        for probability in probs
    ]


def _entry(token: int, logprob: float, piece: bytes, post: bool) -> Json:
    value = {"prob": math.exp(logprob)} if post else {"logprob": logprob}
    return {"id": token, "token": piece.decode("utf-8", "replace"), "bytes": list(piece), **value}


class Columns:
    """The tokens of one text completion as OpenAI's columns; knows how far the text has come."""

    def __init__(self, top: int) -> None:
        """At most `top` alternatives for each token."""
        self._top = top
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def add(self, probs: Iterable[TokenProbs]) -> Json:
        """The columns of the next tokens."""
        tokens, logprobs, tops, offsets = [], [], [], []
        for probability in probs:
            own = _name(probability.piece)
            tokens.append(own)
            logprobs.append(probability.logprob)
            top = {_name(piece): logprob for _, logprob, piece in probability.top[: self._top]}
            tops.append({**top, own: probability.logprob})
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(probability.piece))
        return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}


def _name(piece: bytes) -> str:
    """A token's text; its bytes where it holds only part of a character, so that each token has a name of its own."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
