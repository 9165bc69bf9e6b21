"""Which format of the metrics an Accept header gets."""

from __future__ import annotations

import pytest

from lcpd.api.accept import wanted_format

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", ""),
        ("application/json", ""),
        (PROMETHEUS, "application/openmetrics-text;version=1.0.0;q=0.5"),
        ("text/plain, application/openmetrics-text", "application/openmetrics-text"),
        ("Application/OpenMetrics-Text; Version=1.0.0", "application/openmetrics-text; version=1.0.0"),
        ("application/json, application/openmetrics-text;q=0.1", "application/openmetrics-text;q=0.1"),
    ],
)
def test_openmetrics_go_to_those_who_name_them(accept, wanted):
    assert wanted_format(accept) == wanted


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("application/openmetrics-text;q=0, text/plain", "text/plain"),
        ("application/openmetrics-text; Q = 0.000", ""),
        ("application/openmetrics-text;q=0.5, text/plain", "text/plain"),
        ("application/openmetrics-text;version=1.0.0;q=0.1, */*", "*/*"),
        ("application/openmetrics-text;q=nan, text/plain;q=0.1", "text/plain;q=0.1"),
        ("application/openmetrics-text;q=high, text/plain", "application/openmetrics-text;q=high"),
    ],
)
def test_weights_decide(accept, wanted):
    assert wanted_format(accept) == wanted
