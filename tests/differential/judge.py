"""Compares the replies of a trace with the oracle's cold solo replays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from e2e.e2e_parts import Reply
from oracle.process import Oracle

NOISE = 0.25
"""Logits.  The bound where delta is smaller: it knows of shapes of batches only, not of where cells lie."""


@dataclass
class Verdict:
    """How far the worst reply lies from what the oracle would have said, in bounds."""

    worst: float = 0.0
    looked_twice: int = 0
    """Replies beyond the bound that some other shape of batches explains."""


def judge(oracle: Oracle, replies: Sequence[Reply]) -> Verdict:
    """All replies; AssertionError for one that no shape of batches explains.

    delta was measured on a few prompts; among thousands of replies there are ones whose logits move further.  For those
    it is asked whether another shape of batches makes the token as good as the best: a wrong state's token never is.
    """
    verdict, bound = Verdict(), max(oracle.delta, NOISE)
    for reply in replies:
        distance = oracle.gap(reply.prompt, reply.tokens) / bound
        if distance >= 1:
            verdict.looked_twice += 1
            distance = oracle.least_gap(reply.prompt, reply.tokens) / bound
        assert distance < 1, f"a reply is {distance:.2f} bounds off: {reply.tokens} for {reply.prompt}"
        verdict.worst = max(verdict.worst, distance)
    return verdict
