"""The few shapes of expressions that the panels are made of.

All look only at the daemons that were selected, and add up over them.
"""

from __future__ import annotations

_SELECTED = 'instance=~"$instance"'
_INTERVAL = "$__rate_interval"


def select(metric: str, match: str = "") -> str:
    """The series of the selected daemons, `match`: further conditions on labels."""
    return f"{metric}{{{_SELECTED}{',' if match else ''}{match}}}"


def total(metric: str, by: str = "", match: str = "") -> str:
    """A gauge, added up; `by`: labels to keep apart."""
    return f"sum{_by(by)} ({select(metric, match)})"


def rate(metric: str, by: str = "", match: str = "", over: str = _INTERVAL) -> str:
    """A counter's growth per second."""
    return f"sum{_by(by)} (rate({select(metric, match)}[{over}]))"


def grown(metric: str, by: str = "", match: str = "", over: str = "$__range") -> str:
    """A counter's growth, by default over all of the time that the dashboard shows."""
    return f"sum{_by(by)} (increase({select(metric, match)}[{over}]))"


def grown_new(metric: str, by: str = "", match: str = "") -> str:
    """As `grown`, for counters whose series begin with an event, or before a scrape: `increase` does not count that."""
    series = select(metric, match)
    return f"sum{_by(by)} (({series} unless {series} offset $__range) or increase({series}[$__range]))"


def quantile(share: float, histogram: str, by: str = "", match: str = "", over: str = _INTERVAL) -> str:
    """Below which value that share of the observations lies."""
    buckets = rate(f"{histogram}_bucket", f"le, {by}" if by else "le", match, over)
    return f"histogram_quantile({share:g}, {buckets})"


def mean(histogram: str, by: str = "", match: str = "") -> str:
    """The mean of a histogram's observations."""
    return ratio(rate(f"{histogram}_sum", by, match), rate(f"{histogram}_count", by, match))


def ratio(part: str, whole: str) -> str:
    """Nothing where the whole is 0."""
    return f"{part} / ({whole} > 0)"


def named(expr: str, label: str, empty: str) -> str:
    """The same series, of which those without the label are called `empty`."""
    return f'label_replace({expr}, "{label}", "{empty}", "{label}", "")'


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""
