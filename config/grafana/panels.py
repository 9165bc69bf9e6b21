"""What a dashboard is made of: plain data, so that the same panels become Grafana's JSON, tests and pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["lines", "stacked", "number", "bars", "heatmap", "table"]
"""`number`: the latest value, large; `bars`: one bar for each series' latest value; `heatmap`: of a histogram's
buckets; `table`: the labels of each series, for information."""

Unit = Literal["s", "bytes", "binBps", "percentunit", "reqps", "ops", "none", "short", "watt", "celsius", "hertz"]
"""Grafana's names of units: seconds, bytes, bytes/s, a share of 1, requests/s, things/s, numbers, ..."""


@dataclass(frozen=True)
class Query:
    """A PromQL expression, with Grafana's variables in it (see `GRAFANA_VARIABLES`)."""

    expr: str
    legend: str = ""
    """How a series is called: text with ``{{label}}``."""
    exemplars: bool = False
    """Whether single requests are shown as points, where their series have them."""


@dataclass(frozen=True)
class Panel:
    """One picture that answers one question."""

    title: str
    description: str
    """How to read it, and what to do about it."""
    queries: tuple[Query, ...]
    unit: Unit = "short"
    kind: Kind = "lines"
    width: int = 8
    """Of 24."""
    warn: float | None = None
    """From this value on a number or bar is orange."""
    bad: float | None = None
    """From this value on it is red."""
    lowest_is_bad: bool = False
    """Red below `bad`, orange below `warn` instead."""
    limit: float | None = None
    """The top of the axis."""
    log: bool = False
    """A logarithmic axis, for what spreads over orders of magnitude."""
    whole: bool = False
    """Whether values are counts: an increase that Prometheus extrapolates is rounded."""
    words: tuple[tuple[float, str], ...] = ()
    """What values are called."""
    nothing: str = ""
    """What is said where there is no series, which is a good sign there; by default "No data"."""
    gpu: bool = False
    """Whether it shows nothing on a machine without an NVIDIA GPU."""

    def colors(self) -> list[tuple[float | None, str]]:
        """From which value on which colour is shown; the first has no lower end."""
        if self.warn is None and self.bad is None:
            return [(None, "blue")]
        if self.lowest_is_bad:
            levels = [(self.bad, "orange" if self.warn is not None else "green"), (self.warn, "green")]
            return [(None, "red"), *((value, color) for value, color in levels if value is not None)]
        levels = [(self.warn, "orange"), (self.bad, "red")]
        return [(None, "green"), *((value, color) for value, color in levels if value is not None)]


@dataclass(frozen=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Dashboard:
    """One page; `name` is the name of its file and the end of its address."""

    name: str
    title: str
    description: str
    rows: tuple[Row, ...]

    def panels(self) -> Iterator[Panel]:
        """All of them, in the order of reading."""
        for row in self.rows:
            yield from row.panels


GRAFANA_VARIABLES = ("$__rate_interval", "$__range", "$instance")
"""All that may occur in an expression."""


def concrete(expr: str, interval: str, span: str) -> str:
    """An expression as Grafana would send it with everything selected: `interval` for rates, `span` as time range."""
    values = {"$__rate_interval": interval, "$__range": span, "$instance": ".*"}
    for name in GRAFANA_VARIABLES:
        expr = expr.replace(name, values[name])
    return expr
