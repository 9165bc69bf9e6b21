"""How fast this machine computes and copies, measured while it works; guesses until then."""

from __future__ import annotations

from dataclasses import dataclass

from lcpd.engine.protocol import ModelInfo

_KEPT = 0.9
"""How much of what was measured before counts beside a new measurement as large as it."""
_CPU, _GPU = 5e10, 3e13
"""Parameters times tokens that are prefilled in a second, in order of magnitude: ten cores; a 24 GB card."""
_FASTEST = 20_000.0
"""Tokens a second that no model is believed to exceed before it is measured: each call takes some time."""
_COPY = 4e9
"""Bytes a second."""


@dataclass
class Rate:
    """Units per second as a moving average in which what took long counts for more."""

    guess: float
    _units: float = 0.0
    _seconds: float = 0.0

    @property
    def value(self) -> float:
        """Units per second, more than 0."""
        return self._units / self._seconds if self._units > 0 and self._seconds > 0 else self.guess

    def observe(self, units: float, seconds: float) -> None:
        """`units` took `seconds`; nothing is learned where either is 0."""
        if units <= 0 or seconds <= 0:
            return
        self._units = _KEPT * self._units + units
        self._seconds = _KEPT * self._seconds + seconds


class Speeds:
    """Prefill in tokens a second; restore and save in bytes a second."""

    def __init__(self, prefill: float = 1000.0) -> None:
        self.prefill = Rate(prefill)
        self.restore = Rate(_COPY)
        self.save = Rate(_COPY)


def guessed(info: ModelInfo) -> Speeds:
    """What a model's size and devices lead to expect."""
    on_gpu = any(not name.upper().startswith("CPU") for name in info.devices)
    return Speeds(guessed_prefill(info.n_params, on_gpu))


def guessed_prefill(n_params: int, on_gpu: bool) -> float:
    """Tokens a second."""
    return min(_FASTEST, max(1.0, (_GPU if on_gpu else _CPU) / max(1, n_params)))
