"""Every reply against the oracle, and how many are just what the undisturbed run says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.harm.load import Said

from differential.judge import NOISE
from oracle.process import Oracle


@dataclass
class Judged:
    """What was compared.  Distances in bounds: 1 is what different shapes of batches explain."""

    replies: int = 0
    tokens: int = 0
    equal: int | None = None
    """Replies equal to the cold solo one, token by token; None: not asked."""
    worst: float = 0.0
    looked_twice: int = 0

    def __str__(self) -> str:
        equal = "" if self.equal is None else f", {self.equal} of them equal to the undisturbed run"
        return (
            f"{self.replies} replies ({self.tokens} tokens) pass{equal}; "
            f"the worst lies {self.worst:.2f} bounds off; {self.looked_twice} needed another shape of batches"
        )


class WrongToken(AssertionError):
    """A reply that no shape of batches explains."""


def judge(oracle: Oracle, replies: Iterable[Said], solo: bool = True) -> Judged:
    """All of them, also parts of replies; raises WrongToken.  `solo`: count those equal to the cold solo run, too."""
    judged, bound = Judged(equal=0 if solo else None), max(oracle.delta, NOISE)
    for said in replies:
        if not said.tokens:
            continue
        prompt = prompt_of(oracle, said)
        if said.prompt and said.prompt != len(prompt):
            raise WrongToken(f"the server counts {said.prompt} tokens in a prompt of {len(prompt)}")
        distance = oracle.gap(prompt, said.tokens) / bound
        if distance >= 1:
            judged.looked_twice += 1
            distance = oracle.least_gap(prompt, said.tokens) / bound
        if distance >= 1:
            raise WrongToken(f"a reply is {distance:.2f} bounds off: {said.tokens} for {said.ask.prompt!r}")
        judged.replies += 1
        judged.tokens += len(said.tokens)
        judged.worst = max(judged.worst, distance)
        if judged.equal is not None:
            judged.equal += oracle.greedy(prompt, len(said.tokens)) == said.tokens
    return judged


def prompt_of(oracle: Oracle, said: Said) -> list[int]:
    """The tokens of a reply's prompt."""
    return oracle.tokenize(said.ask.prompt) if isinstance(said.ask.prompt, str) else list(said.ask.prompt)
