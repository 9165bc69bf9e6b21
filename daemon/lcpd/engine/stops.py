"""What of a growing text may be sent: stop strings and unfinished UTF-8 characters are held back."""

from __future__ import annotations

import codecs
from dataclasses import dataclass


@dataclass(frozen=True)
class Released:
    """Text that may be sent, and the stop string that ended the reply, if one did."""

    text: str
    stop: str | None = None


class TextFilter:
    """Turns token pieces into text that is final.

    A stop string may span pieces, so text that ends with a beginning of one is held back until it is decided.  Bytes
    that can never become a character turn into U+FFFD.
    """

    def __init__(self, stops: list[str]) -> None:
        self._stops = [s for s in stops if s]
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = ""

    def push(self, piece: bytes) -> Released:
        """Add a piece.  After a result with `stop` the filter is done: push nothing more."""
        self._held += self._decode(piece)
        return self._release(final=False)

    def finish(self) -> Released:
        """The reply has ended: what was held back.  The beginning of a character that never came whole is left out."""
        return self._release(final=True)

    def _release(self, final: bool) -> Released:
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            # The one that is complete first, whatever the pieces; of those that end together the longest.
            at, stop = min(found, key=lambda f: (f[0] + len(f[1]), f[0]))
            text, self._held = self._held[:at], ""
            return Released(text, stop)
        keep = 0 if final else max((_overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return Released(text)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
