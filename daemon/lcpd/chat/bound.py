"""How many tokens a text has at least, told by its size: a text that cannot fit need not be tokenised to find out.

That may take from seconds to minutes for 10 MB, and the chat process serves one call after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import llama_cpp.llama_cpp as llama

from lcpd.native.model import Model

# llama.h, LLAMA_TOKEN_ATTR_*: such a token takes the white space beside it, however much there is.
_ATTR_STRIPS = 1 << 7 | 1 << 8
_KINDS = (llama.LLAMA_VOCAB_TYPE_SPM, llama.LLAMA_VOCAB_TYPE_BPE)
"""Tokenisers that leave out nothing of a text but bytes that there is no token for; others normalise it."""
_BYTE_TEXT = len("<0x00>")
"""The longest way in which a vocabulary writes a byte."""


@dataclass(frozen=True)
class Bound:
    """What a vocabulary's tokens can stand for at most."""

    longest: int
    """Bytes of one token; 0: there is no limit."""
    lost: bytes = b""
    """Bytes that are left out where no token has them within it."""

    def least(self, text: str) -> int:
        """Tokens of a text at least; 0 where there is no telling."""
        if not self.longest:
            return 0
        return -(-len(text.encode("utf-8", "surrogatepass").translate(None, self.lost)) // self.longest)


def bound_of(model: Model) -> Bound:
    """That of a model's vocabulary.

    A vocabulary writes a token in as many bytes as the text has, or more: some bytes are two in BPE, a space is three.
    """
    if llama.llama_vocab_type(model.vocab) not in _KINDS:
        return Bound(0)
    longest = 0
    lost = set(range(256))
    for token in range(model.n_vocab):
        if llama.llama_vocab_get_attr(model.vocab, token) & _ATTR_STRIPS:
            return Bound(0)
        size = len(llama.llama_vocab_get_text(model.vocab, token) or b"")
        longest = max(longest, size)
        if size <= _BYTE_TEXT and len(piece := model.piece(token, special=True)) == 1:
            lost.discard(piece[0])
    return Bound(longest, bytes(sorted(lost)))
