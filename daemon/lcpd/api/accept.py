"""Which text format of the metrics an Accept header asks for (RFC 9110, 12.5.1).  Pure.

prometheus_client takes the first format that it knows, and no notice of weights.
"""

from __future__ import annotations

OPENMETRICS = "application/openmetrics-text"
TEXT = ("text/plain", "text/*", "*/*")


def wanted_format(accept: str) -> str:
    """The one media range of the header that is to be answered, with its parameters; "" where it names no format.

    That of the highest weight above 0; OpenMetrics before text, and what stands first, among equals.
    """
    ranges = [(_weight(each), _kind(each) == OPENMETRICS, each) for each in accept.split(",")]
    known = [each for each in ranges if each[0] > 0 and _kind(each[2]) in (OPENMETRICS, *TEXT)]
    return max(known, key=lambda each: each[:2], default=(0.0, False, ""))[2].strip().lower()


def _kind(media_range: str) -> str:
    return media_range.split(";")[0].strip().lower()


def _weight(media_range: str) -> float:
    """From 0 to 1; a weight that is none counts as 1, as none at all does."""
    for parameter in media_range.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 1.0
    return 1.0
