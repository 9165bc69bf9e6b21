"""How a figure is defined: once, with its name, unit, labels and the question it answers.

Names follow Prometheus' practice: they begin with ``lcpd_``, end with the unit where that is a base unit, and counters
with ``_total``.  Where vLLM has a figure of the same meaning its name is the same but for the prefix.

The values of a label are bounded.  Where all are known beforehand their series exist from the start, at 0: a rate over
a series that was not there before its first event misses that event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, disable_created_metrics

# A second series for each counter and histogram that tells when it began: twice the size, and Prometheus ignores it.
disable_created_metrics()  # type: ignore[no-untyped-call]

Values = Sequence[str] | str
"""All values of a label, or in words what bounds them."""
_BASE_UNITS = ("seconds", "bytes", "ratio", "celsius", "watts", "hertz")

LATENCY = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
"""Seconds: from a warm short prompt on a GPU to a cold one of 120K tokens on a CPU, which takes minutes."""
TOKEN_LATENCY = (0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5, 10)
"""Seconds between two tokens: 400 to 1 a second; beyond that others' prefill, a park or a crash came in between."""
AGES = (1, 10, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600)
"""Seconds: tools answer in seconds, people in minutes, or the next day."""
TOKENS = (16, 64, 256, 1024, 4096, 8192, 16384, 32768, 65536, 131072, 262144)
SIZES = tuple(float(4**power * 2**10) for power in range(11))
"""Bytes: 1 KiB to 1 GiB."""


@dataclass(frozen=True)
class Definition:
    """What the reference says of a figure."""

    name: str
    """As it is scraped; that of a histogram without its suffixes."""
    kind: str
    unit: str
    labels: Mapping[str, Values]
    question: str


class Total:
    """A counter of what is counted elsewhere: it is shown the totals since the start."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._shown: dict[tuple[str, ...], float] = {}

    def show(self, total: float, *labels: str) -> None:
        """The total of these label values is so much now; it never shrinks."""
        grown = total - self._shown.get(labels, 0.0)
        (self._counter.labels(*labels) if labels else self._counter).inc(grown)
        self._shown[labels] = total


class Topic:
    """Figures that belong together.  A subclass defines them when it is made."""

    title: str

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.definitions: list[Definition] = []

    def counter(self, name: str, unit: str, question: str, labels: Mapping[str, Values] | None = None) -> Counter:
        """What only grows; `name` ends with ``_total``."""
        labels = self._define(name, "counter", unit, question, labels)
        base = name.removesuffix("_total")
        made = Counter(base, question, [*labels], unit=_suffix(base, unit), registry=self._registry)
        _begin(made, labels)
        return made

    def total(self, name: str, unit: str, question: str, labels: Mapping[str, Values] | None = None) -> Total:
        """A counter of what is counted elsewhere."""
        return Total(self.counter(name, unit, question, labels))

    def gauge(self, name: str, unit: str, question: str, labels: Mapping[str, Values] | None = None) -> Gauge:
        """What goes up and down."""
        labels = self._define(name, "gauge", unit, question, labels)
        made = Gauge(name, question, [*labels], unit=_suffix(name, unit), registry=self._registry)
        _begin(made, labels)
        return made

    def histogram(
        self,
        name: str,
        unit: str,
        question: str,
        buckets: Sequence[float],
        labels: Mapping[str, Values] | None = None,
    ) -> Histogram:
        """How values are distributed; `buckets` are upper bounds."""
        labels = self._define(name, "histogram", unit, question, labels)
        made = Histogram(
            name, question, [*labels], unit=_suffix(name, unit), registry=self._registry, buckets=tuple(buckets)
        )
        _begin(made, labels)
        return made

    def info(self, name: str, question: str, labels: Sequence[str]) -> Info:
        """Facts as labels of a series that is 1; `name` ends with ``_info``."""
        self._define(name, "info", "", question, dict.fromkeys(labels, "one value at a time"))
        return Info(name.removesuffix("_info"), question, registry=self._registry)

    def _define(
        self, name: str, kind: str, unit: str, question: str, labels: Mapping[str, Values] | None
    ) -> Mapping[str, Values]:
        labels = labels or {}
        self.definitions.append(Definition(name, kind, unit, labels, question))
        return labels


def _suffix(name: str, unit: str) -> str:
    return unit if unit in _BASE_UNITS and name.endswith(f"_{unit}") else ""


def _begin(metric: Counter | Gauge | Histogram, labels: Mapping[str, Values]) -> None:
    known = [values for values in labels.values() if not isinstance(values, str)]
    if labels and len(known) == len(labels):
        for combination in product(*known):
            metric.labels(*combination)
