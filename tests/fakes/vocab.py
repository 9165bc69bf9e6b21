"""The fakes' vocabulary: 256 byte tokens, an end-of-reply token and a mark that opens a message of each role.

A chat message is ``mark, bytes of its text, END``; the generation prompt is the assistant's mark.  A reply's tokens
are the bytes of its text and END, so a reply in the history has the very tokens that were generated.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from lcpd.engine.protocol import Tokens

END = 256
MARKS = {"system": 257, "user": 258, "assistant": 259, "tool": 260}
N_VOCAB = 261
# Two- and four-byte characters, so that a character's bytes come in several tokens.
_WORDS = ("amber", "birch", "café", "delta", "ember", "fjord", "grün", "heron", "iris", "jade", "kelp", "😀", "moss")


def encode(text: str) -> list[int]:
    """A text's tokens: its bytes."""
    return list(text.encode())


def tokens(text: str) -> Tokens:
    """A text's tokens as an array."""
    return np.array(encode(text), np.int32)


def piece(token: int) -> bytes:
    """The bytes a token stands for; none for END and marks."""
    return bytes([token]) if token < 256 else b""


def decode(tokens: Iterable[int]) -> str:
    """The text of tokens."""
    return b"".join(map(piece, tokens)).decode("utf-8", "replace")


def reply_text(tokens: Sequence[int]) -> str:
    """The fake model's reply to a prompt of these tokens: any other token anywhere gives another reply."""
    number = zlib.crc32(np.asarray(tokens, "<i4").tobytes())
    words = []
    for _ in range(6):
        number, word = divmod(number, len(_WORDS))
        words.append(_WORDS[word])
    return " ".join(words) + "."
