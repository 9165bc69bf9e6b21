"""Every panel and every rule, against a real Prometheus that has scraped a real daemon."""

from __future__ import annotations

import math
import re

import pytest
import yaml
from config.grafana.build import DASHBOARDS
from config.grafana.panels import Panel, concrete

from prometheus.conftest import Seen
from prometheus.prometheus_server import RULES, Series

pytestmark = [pytest.mark.native, pytest.mark.prometheus]

PANELS = [(page.name, panel) for page in DASHBOARDS for panel in page.panels()]
QUERIES = [
    pytest.param(panel, query.expr, id=f"{page}: {panel.title} {query.legend}".strip())
    for page, panel in PANELS
    for query in panel.queries
]
RULE_LIST = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
TRUE_HERE = (
    "LcpdDown",
    "LcpdWorkerCrashLoop",
    "LcpdRequestsQuarantined",
    "LcpdQueueLong",
    "LcpdRequestsTimeOut",
    "LcpdCacheCorrupt",
    "LcpdDiskDegraded",
    "LcpdGpuMemoryNearlyFull",
    "LcpdGpuThrottled",
)
"""Alerts of which the scene makes the condition true; the others' are tested by alerts.test.yml."""


def has_numbers(found: list[Series]) -> bool:
    """Whether any point is a number; 0 / 0 is none."""
    values = [value for series in found for _, value in series.get("values", [series.get("value")])]
    return any(not math.isnan(float(value)) for value in values)


def over_all(seen: Seen, expr: str) -> list[Series]:
    return seen.server.over(expr, seen.begin, seen.end, 1)


def test_the_daemons_are_scraped_and_the_dead_address_is_not(seen: Seen) -> None:
    health = sorted(target["health"] for target in seen.server.targets())
    assert health == ["down", "up", "up", "up"], seen.server.targets()


def test_what_does_not_exist_returns_nothing(seen: Seen) -> None:
    assert not has_numbers(over_all(seen, "sum(rate(lcpd_no_such_thing_total[5s]))"))
    assert not has_numbers(over_all(seen, "0 * lcpd_build_info / 0"))


@pytest.mark.parametrize(("panel", "expr"), QUERIES)
def test_every_query_of_every_panel_returns_data(seen: Seen, panel: Panel, expr: str) -> None:
    whole = concrete(expr, "5s", f"{seen.end - seen.begin:.0f}s")
    found = seen.server.instant(whole, seen.end) if panel.kind in ("bars", "table") else over_all(seen, whole)
    assert has_numbers(found), whole


@pytest.mark.parametrize("rule", [pytest.param(one, id=one["record"]) for one in RULE_LIST if "record" in one])
def test_every_recording_rule_records_what_its_expression_gives(seen: Seen, rule: dict) -> None:
    assert has_numbers(over_all(seen, rule["expr"]))
    assert has_numbers(over_all(seen, rule["record"]))


@pytest.mark.parametrize("rule", [pytest.param(one, id=one["alert"]) for one in RULE_LIST if "alert" in one])
def test_what_every_alert_looks_at_is_there(seen: Seen, rule: dict) -> None:
    # An alert returns what is wrong, so nothing on a good day: with `bool` it says 0 or 1 of all it looks at.
    looked_at = with_bool(rule["expr"])
    assert has_numbers(over_all(seen, looked_at)), looked_at


@pytest.mark.parametrize("alert", TRUE_HERE)
def test_the_alert_sees_what_happened(seen: Seen, alert: str) -> None:
    (rule,) = (one for one in RULE_LIST if one.get("alert") == alert)
    assert over_all(seen, rule["expr"]), rule["expr"]


def test_no_rule_fails_to_be_evaluated(seen: Seen) -> None:
    rules = seen.server.rules()
    assert len(rules) == len(RULE_LIST)
    assert {rule["name"]: rule["lastError"] for rule in rules if rule["health"] != "ok"} == {}


def test_latency_buckets_carry_ids_of_requests(seen: Seen) -> None:
    found = seen.server.exemplars("lcpd_time_to_first_token_seconds_bucket", seen.begin, seen.end)
    assert [exemplar["labels"] for series in found for exemplar in series["exemplars"]]


def with_bool(expr: str) -> str:
    """An alert's expression that is 0 or 1 instead of there or not: its last comparison gets `bool`."""
    *_, last = re.finditer(r" (==|[<>]=?) ", expr)
    return f"{expr[: last.end()]}bool {expr[last.end() :]}"
