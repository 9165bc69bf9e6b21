"""Tokens on their way to the daemon, a few at a time.

Every message wakes the daemon and the chat process, whose work is taken from the cores that compute.  At 130 tokens a
second on two cores that was measured to cost a tenth of the speed.  So tokens are gathered for up to `interval`, which
nobody sees in a stream of text; the first token of a reply is sent at once.
"""

from __future__ import annotations

from collections.abc import Callable

from lcpd.engine.protocol import Output, Step


class Outbox:
    """Gathers the outputs of running requests.  Times are monotonic seconds that come in from outside."""

    def __init__(self, send: Callable[[Step], None], interval: float) -> None:
        self._send = send
        self._interval = interval
        self._tokens: dict[int, list[int]] = {}
        self._text: dict[int, str] = {}
        self._sent_at = float("-inf")

    def add(self, request: int, token: int, text: str) -> None:
        """A token of a request, and the text that may be sent with it."""
        if request in self._tokens:
            self._tokens[request].append(token)
            self._text[request] += text
        else:
            self._tokens[request] = [token]
            self._text[request] = text

    def flush(self, now: float) -> None:
        """Send what there is."""
        if self._tokens:
            self._send(Step([Output(request, tokens, self._text[request]) for request, tokens in self._tokens.items()]))
            self._tokens = {}
            self._text = {}
            self._sent_at = now

    def flush_if_due(self, now: float) -> None:
        """Send what there is, if the last time was an interval ago."""
        if now - self._sent_at >= self._interval:
            self.flush(now)
