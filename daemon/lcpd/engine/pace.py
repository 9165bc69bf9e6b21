"""How large a prefill batch may be, so that the decode loop keeps showing progress on slow machines.

On a GPU the full `n_batch` takes a second or two.  On a CPU with a large model it could take minutes, in which the loop
neither takes commands nor beats, and would be taken for hung.  Batches are multiples of `n_ubatch`, at which libllama
splits a larger batch anyway, so their size does not change what is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

TARGET_SECONDS = 5.0
"""A batch should take no longer than this."""


@dataclass
class PrefillPace:
    """Follows the prefill speed of one context."""

    n_batch: int
    n_ubatch: int
    speed: float | None = None
    """Tokens per second of the last batches; None before the first."""

    def batch(self, others_decode: bool = False) -> int:
        """The largest prefill batch to decode next, in tokens; one micro-batch while replies are under way."""
        if self.speed is None or others_decode:
            return self.n_ubatch
        parts = int(self.speed * TARGET_SECONDS) // self.n_ubatch
        return min(max(parts, 1) * self.n_ubatch, self.n_batch)

    def observe(self, tokens: int, seconds: float) -> None:
        """A batch has been decoded.  Short ones say little about speed and are left out."""
        if seconds > 0 and tokens >= min(self.n_ubatch, 64):
            measured = tokens / seconds
            self.speed = measured if self.speed is None else 0.5 * self.speed + 0.5 * measured
