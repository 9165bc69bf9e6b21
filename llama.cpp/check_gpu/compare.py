"""When two computations of the same reply agree: pure functions over tokens and logits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]

GAP_BOUND = 0.5
"""Logits.  CPU and GPU round and add up differently; where two tokens are closer than this, either is right.

On this model the CPU's own two ways of attention differ by 0.01; wrong states move logits by 3 to 15.
"""
CONTROL_MIN = 2.0
"""Logits.  A reply that belongs to another prompt must be at least this far off, else the bound proves nothing."""


def first_difference(a: Tokens, b: Tokens) -> int | None:
    """The first index at which two replies differ, the end of the shorter one included; None when they are equal."""
    shared = min(len(a), len(b))
    unequal = np.nonzero(a[:shared] != b[:shared])[0]
    if len(unequal):
        return int(unequal[0])
    return None if len(a) == len(b) else shared


def gaps(rows: Logits, reply: Tokens) -> npt.NDArray[np.float32]:
    """How far each token of a reply lies below the largest logit of its row; infinite where a row is not finite."""
    chosen = rows[np.arange(len(reply)), reply]
    distance = rows.max(axis=1) - chosen
    return np.where(np.isfinite(rows).all(axis=1), distance, np.inf).astype(np.float32)


def tie(rows: Logits, reference: Tokens, other: Tokens) -> float:
    """The gap, in the reference's logits, of the token with which `other` leaves the reference; 0 when it does not."""
    at = first_difference(reference, other)
    if at is None:
        return 0.0
    if at >= len(other) or at >= len(reference):
        return float("inf")  # one reply ended where the other went on, and both chose the same tokens until then
    return float(gaps(rows[at : at + 1], other[at : at + 1])[0])
