"""Pure statistics of paired measurements: the ratio of each pair, an interval for its median, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

PARITY = 0.97
"""Ratio of the rates from which on the two count as equally fast."""
_RESAMPLES = 10_000
MIN_PAIRS = 6
"""With fewer the bootstrap interval of a median is too narrow to be believed."""

Outcome = Literal["parity", "slower", "inconclusive"]


@dataclass(frozen=True)
class Interval:
    """A 95 % interval of the median of the ratios."""

    low: float
    median: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """What the interval says about parity, and why."""

    outcome: Outcome
    reason: str


def pair_ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Our rate over theirs, pair by pair.  Raises ValueError for rates that are no paired, positive numbers."""
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} and {len(theirs)} rates are not pairs")
    if not all(rate > 0 and np.isfinite(rate) for rate in [*ours, *theirs]):
        raise ValueError("rates must be finite and above 0")
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def median_interval(ratios: Sequence[float], seed: int = 0) -> Interval:
    """The bootstrap percentile interval of the median; the same for the same ratios and seed.

    The median, because one burst of other work on the machine spoils single pairs by a factor.
    Raises ValueError without ratios.
    """
    if not ratios:
        raise ValueError("there are no ratios")
    values = np.asarray(ratios, np.float64)
    drawn = np.random.default_rng(seed).integers(0, len(values), (_RESAMPLES, len(values)))
    low, high = np.percentile(np.median(values[drawn], axis=1), [2.5, 97.5])
    return Interval(float(low), float(np.median(values)), float(high))


def spread(rates: Sequence[float]) -> float:
    """The middle half of the rates as a share of their median: how much the machine varies by itself."""
    quarter, median, three_quarters = np.percentile(np.asarray(rates, np.float64), [25, 50, 75])
    return float((three_quarters - quarter) / median)


def judge(interval: Interval, pairs: int, our_spread: float, their_spread: float) -> Verdict:
    """Parity when the lower end is at least PARITY, slower when the upper end is below, else inconclusive."""
    if pairs < MIN_PAIRS:
        return Verdict("inconclusive", f"{pairs} pairs are too few, take {MIN_PAIRS} or more")
    if interval.low >= PARITY:
        return Verdict("parity", f"the lower end {interval.low:.3f} is at least {PARITY}")
    if interval.high < PARITY:
        return Verdict("slower", f"the upper end {interval.high:.3f} is below {PARITY}")
    noise = (
        f"the rates of one server vary by {our_spread:.0%} (lcpd) and {their_spread:.0%} (llama-server) between runs"
    )
    if interval.median < PARITY:
        return Verdict("inconclusive", f"the median is below {PARITY}, but not surely; {noise}")
    return Verdict("inconclusive", f"the lower end {interval.low:.3f} is below {PARITY}; {noise}")
