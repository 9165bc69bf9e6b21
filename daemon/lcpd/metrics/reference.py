"""The metrics reference, generated from the definitions: ``python -m lcpd.metrics.reference > docs/metrics.md``."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from lcpd.metrics import Metrics
from lcpd.metrics.definition import Definition, Topic, Values

_HEAD = """# Metrics

`GET /metrics` answers in Prometheus' text format, or in OpenMetrics for scrapers that ask for it: then the buckets of
the latency histograms carry the id of a request that fell into them (`x-lcpd-request-id`), for which
`GET /cache/requests/{id}` tells where its prompt came from. With `metrics.port` they can be had from a port of their
own, too. Where vLLM has a figure of the same meaning, its name is the same but for the prefix.

All intervals are differences of one monotonic clock. Labels are bounded: where the values of a label are listed here,
their series are there from the start.

This page is generated from `daemon/lcpd/metrics/` by `python -m lcpd.metrics.reference`; a test keeps the two equal.
"""

_TAIL = """
## Traces
With `metrics.traces = "http://HOST:4318/v1/traces"` and lcpd installed as `lcpd[otel]` each request is sent as an
OpenTelemetry trace (OTLP over HTTP) when it is over: `chat MODEL` (or `text_completion MODEL`) from its arrival to its
end with the attributes of the GenAI semantic conventions (`gen_ai.usage.input_tokens`,
`gen_ai.usage.cache_read.input_tokens`, `gen_ai.response.id`, ...), and in it `render`, `queue`, `restore`, `prefill`
and `decode`, the last four once more after a park or a crash. They are made of the times that the histograms are made
of, and hold no text of a prompt or a reply. A collector that is down costs the traces and a line of the log every ten
minutes. Off by default.

## What they cost
A scrape takes the event loop 9 ms of CPU time in the text format and 14 ms in OpenMetrics with 1,000 conversations in
RAM and every series that eight programs with four keys make (`python -m benchmarks.scrape`; one virtual core of an AMD
EPYC). What the prompt cache holds is kept count of as it comes and goes, so this does not grow with it. NVML is asked
in a thread; where it does not answer within a second, what it said last is shown. Whether all of it costs speed is
measured by comparing two versions: `benchmarks.engine_parity` of each, run by turns.
"""


def reference() -> str:
    """The page, in Markdown."""
    return _HEAD + "".join(_section(topic) for topic in Metrics().topics) + _TAIL


def _section(topic: Topic) -> str:
    words = _about(topic)
    head = "| metric | kind | unit | labels | the question it answers |\n|---|---|---|---|---|\n"
    return f"\n## {topic.title}\n{words}\n{head}" + "".join(_row(one) for one in topic.definitions)


def _about(topic: Topic) -> str:
    """What the topic's module says beyond its first line's title."""
    text = sys.modules[type(topic).__module__].__doc__ or ""
    return f"\n{text.strip()}\n"


def _row(one: Definition) -> str:
    return f"| `{one.name}` | {one.kind} | {one.unit or '-'} | {_labels(one.labels)} | {one.question} |\n"


def _labels(labels: Mapping[str, Values]) -> str:
    return "; ".join(f"`{label}`: {_values(values)}" for label, values in labels.items()) or "-"


def _values(values: Values) -> str:
    return values if isinstance(values, str) else ", ".join(values)


if __name__ == "__main__":
    print(reference(), end="")
