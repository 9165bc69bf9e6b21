"""Nothing that was computed for one API key is used for another one (`cache.isolate = "key"`).  Pure.

Each key has a number, which is put into the first item of a path, above the bits of its token: paths of different keys
have nothing in common then, wherever paths are compared (slots, followers, RAM, disk, what is remembered), and
everything else stays as it is.  The item never goes to the engine.  Which number a key has depends on all keys, so
their digest is part of the fingerprint: state on disk, or kept by the service manager, does not outlive a change of
keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import numpy as np

from lcpd.engine.protocol import Tokens

_TOKEN_BITS = 20
"""Four times as many tokens as the largest vocabulary has."""
MOST_KEYS = (1 << (31 - _TOKEN_BITS)) - 1


class Isolation:
    """Which paths belong to which key."""

    def __init__(self, keys: Collection[str]) -> None:
        """`keys`: what tells each from the others, in any order.  ValueError for more than `MOST_KEYS`."""
        if len(keys) > MOST_KEYS:
            raise ValueError(f"{len(keys)} keys are too many to be kept apart: at most {MOST_KEYS} can be")
        digests = {key: hashlib.sha256(b"lcpd key\0" + key.encode()).hexdigest() for key in keys}
        ranked = sorted(keys, key=lambda key: digests[key])
        self._numbers = {key: number for number, key in enumerate(ranked, start=1)}
        self.field = hashlib.sha256("".join(digests[key] for key in ranked).encode()).hexdigest()[:32]
        """What the fingerprint has to tell of it."""

    def number(self, key: str | None) -> int:
        """Of a key; 0 for requests without a known one, which share among themselves."""
        return self._numbers.get(key, 0) if key is not None else 0


def marked(tokens: Tokens, number: int) -> Tokens:
    """The path of these tokens for the key of this number: `tokens` themselves for 0, else a copy."""
    if not number or not len(tokens):
        return tokens
    path = np.array(tokens, np.int32)
    path[0] |= number << _TOKEN_BITS
    return path


def number_of(path: Tokens) -> int:
    """That of the key whose path it is."""
    return int(path[0]) >> _TOKEN_BITS if len(path) else 0


def plain(path: Tokens) -> Tokens:
    """The tokens of any path."""
    if not len(path) or path[0] < 1 << _TOKEN_BITS:
        return path
    tokens = np.array(path, np.int32)
    tokens[0] &= (1 << _TOKEN_BITS) - 1
    return tokens
