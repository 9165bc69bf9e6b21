"""Samples of what could leak, and the rule that says whether it grows without bound.

The rule, for each series: over the second half of the run the robust slope (the median of the slopes between all
pairs of samples, so that a restart's dip or a spike does not decide) times the length of that half must not exceed the
larger of a tenth of the series' median there and an allowance.  What has a cap must never be above it, at any sample.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

SHARE = 0.1
"""Of the median that a series may grow over the second half."""
_MOST_POINTS = 200
"""Of which all pairs are looked at; longer series are thinned evenly."""

Points = Sequence[tuple[float, float]]
"""Seconds since the beginning, value; ascending in time."""


@dataclass(frozen=True)
class Rule:
    """What is asked of one series.  Values in the unit of the series."""

    name: str
    unit: str
    allowance: float
    """Growth that counts for nothing: noise, caches that fill late."""
    cap: float | None = None
    """Never above this; None: no such promise."""


@dataclass(frozen=True)
class Verdict:
    """What became of a series."""

    rule: Rule
    samples: int
    early: float
    """Median of the first quarter."""
    late: float
    """Median of the last quarter."""
    highest: float
    growth: float
    """Over the second half, by the robust slope."""
    bounded: bool


def judge(rule: Rule, points: Points) -> Verdict:
    """Apply the rule.  ValueError for fewer than 8 samples, which show nothing."""
    if len(points) < 8:
        raise ValueError(f"{rule.name}: {len(points)} samples are too few, at least 8 are needed")
    begin, end = points[0][0], points[-1][0]
    half = [point for point in points if point[0] >= (begin + end) / 2]
    growth = robust_slope(half) * (half[-1][0] - half[0][0])
    values = [value for _, value in points]
    quarter = max(1, len(values) // 4)
    allowed = max(SHARE * statistics.median(value for _, value in half), rule.allowance)
    capped = rule.cap is None or max(values) <= rule.cap
    return Verdict(
        rule=rule,
        samples=len(points),
        early=statistics.median(values[:quarter]),
        late=statistics.median(values[-quarter:]),
        highest=max(values),
        growth=growth,
        bounded=growth <= allowed and capped,
    )


def robust_slope(points: Points) -> float:
    """The median of the slopes between all pairs (Theil-Sen), per second; 0 for fewer than two instants."""
    thinned = points[:: len(points) // _MOST_POINTS + 1]
    slopes = [(b - a) / (t - s) for (s, a), (t, b) in combinations(thinned, 2) if t > s]
    return statistics.median(slopes) if slopes else 0.0


def own_bytes(pid: int) -> int | None:
    """RAM that a process holds without memory that it shares (VmRSS less RssShmem, which is the arena); None: gone."""
    fields: dict[str, int] = {}
    with suppress(FileNotFoundError, ProcessLookupError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(("VmRSS:", "RssShmem:")):
                name, value = line.split()[:2]
                fields[name] = int(value) * 1024
    return fields["VmRSS:"] - fields["RssShmem:"] if len(fields) == 2 else None


def descriptors(pid: int) -> int | None:
    """Open files of a process; None where it is gone."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except (FileNotFoundError, ProcessLookupError):
        return None


def disk_bytes(folder: Path) -> int:
    """Space that the files below a folder take up.

    A walk that takes its time counts a file that is removed and the one that is then written in its place, so the least
    of a few is told.
    """
    return min(_walked(folder) for _ in range(3))


def _walked(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.lstat().st_blocks * 512
    return total
