"""How much a step may prefill, from how fast the last batches were.

While replies run, the whole step has to fit `max_stall`, so that nobody sees a stream stop for another's long prompt.
While none runs, batches are large, but bounded too: on a CPU with a large model the full `n_batch` could take minutes,
in which the loop neither takes commands nor beats, and would be taken for hung.
"""

from __future__ import annotations

from dataclasses import dataclass

from lcpd.engine.batching import UNIT, Budget

TARGET_SECONDS = 5.0
"""A batch beside which nothing runs should take no longer than this."""
MARGIN = 0.8
"""Share of what is left of `max_stall` that is planned: speed falls as a prompt grows, and varies.
With 0.95 the 99th percentile of the gaps was a fifth above `max_stall` (benchmarks/stall.py)."""
_TELLING = 16
"""Tokens.  What a call costs beside them hides the speed of shorter batches."""
_RECENT = 0.5
"""Weight of the newest measurement."""


@dataclass
class Pace:
    """Follows the speeds of one context.  Times in seconds, lengths in tokens."""

    n_batch: int
    n_ubatch: int
    max_stall: float
    alignment: int = 1
    """Batches must end at multiples of this, unless it is 1."""
    speed: float | None = None
    """Prefilled tokens per second; None before the first batch."""
    decode_seconds: float = 0.0
    """What a decode call for all running replies takes, sampling included."""

    def budget(self, replies_run: bool, spent: float = 0.0) -> Budget:
        """What a step may prefill that has `spent` seconds on other things than decoding."""
        aligned = self.alignment > 1
        if replies_run:
            left = max(self.max_stall - self.decode_seconds - spent, 0.0) * MARGIN
            unit = min(self.alignment if aligned else UNIT, self.n_batch)
        else:
            left = TARGET_SECONDS
            unit = self.alignment if aligned else self.n_ubatch
        items = min(int((self.speed or 0.0) * left), self.n_batch)
        return Budget(max(items, unit), self.n_batch, unit, aligned)

    def observe_prefill(self, tokens: int, seconds: float) -> None:
        """A batch has been prefilled.  Short ones say little about speed and are left out."""
        if seconds > 0 and tokens >= min(self.n_ubatch, _TELLING):
            measured = tokens / seconds
            self.speed = measured if self.speed is None else (1 - _RECENT) * self.speed + _RECENT * measured

    def observe_decode(self, seconds: float) -> None:
        """All running replies have got a token."""
        self.decode_seconds = (1 - _RECENT) * self.decode_seconds + _RECENT * seconds
