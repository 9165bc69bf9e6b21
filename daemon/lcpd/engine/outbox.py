"""Tokens on their way to the daemon, a few at a time.

Every message wakes the daemon and the chat process, whose work is taken from the cores that compute.  At 130 tokens a
second on two cores that was measured to cost a tenth of the speed.  So tokens are gathered for up to `interval`, which
nobody sees in a stream of text; the first token of a reply is sent at once.  What a message costs grows with the
replies in it, each of which is parsed and written by itself, so several replies are gathered for longer than one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lcpd.engine.protocol import Output, Step, TokenProbs

SEVERAL = 4
"""Intervals for which tokens are gathered while more than one reply runs."""


@dataclass
class _Gathered:
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    probs: list[TokenProbs] = field(default_factory=list)


class Outbox:
    """Gathers the outputs of running requests.  Times are monotonic seconds that come in from outside."""

    def __init__(self, send: Callable[[Step], None], interval: float) -> None:
        self._send = send
        self._interval = interval
        self._gathered: dict[int, _Gathered] = {}
        self._sent_at = float("-inf")

    def add(self, request: int, token: int, text: str, probs: TokenProbs | None = None) -> None:
        """A token of a request, the text that may be sent with it, and its probabilities where they were asked for."""
        output = self._gathered.get(request)
        if output is None:
            output = self._gathered[request] = _Gathered()
        output.tokens.append(token)
        output.text += text
        if probs is not None:
            output.probs.append(probs)

    def flush(self, now: float) -> None:
        """Send what there is."""
        if self._gathered:
            self._send(Step([Output(request, o.tokens, o.text, o.probs) for request, o in self._gathered.items()]))
            self._gathered = {}
            self._sent_at = now

    def flush_if_due(self, now: float) -> None:
        """Send what there is, if the last time was an interval ago, or `SEVERAL` where there is more than one reply."""
        if now - self._sent_at >= self._interval * (SEVERAL if len(self._gathered) > 1 else 1):
            self.flush(now)
