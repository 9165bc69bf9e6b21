"""The metrics reference, generated from the definitions: ``python -m lcpd.metrics.reference > docs/metrics.md``."""

from __future__ import annotations

from prometheus_client import Histogram
from prometheus_client.metrics import MetricWrapperBase

from lcpd.metrics import Metrics

_HEAD = """# Metrics

`GET /metrics` answers in Prometheus' text format, or in OpenMetrics for scrapers that ask for it. This page is
generated from `daemon/lcpd/metrics/__init__.py` by `python -m lcpd.metrics.reference`; a test keeps the two equal.

| metric | kind | labels | the question it answers |
|---|---|---|---|
"""
_SUFFIX = {"counter": "_total", "info": "_info"}


def reference() -> str:
    """The page, in Markdown."""
    rows = []
    for metric in vars(Metrics()).values():
        if isinstance(metric, MetricWrapperBase):
            family = next(iter(metric.describe()))
            name = family.name + _SUFFIX.get(family.type, "")
            labels = ", ".join(f"`{label}`" for label in metric._labelnames) or "-"
            kind = "histogram" if isinstance(metric, Histogram) else family.type
            rows.append(f"| `{name}` | {kind} | {labels} | {family.documentation} |\n")
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    print(reference(), end="")
