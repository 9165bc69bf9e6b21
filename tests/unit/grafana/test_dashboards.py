"""Dashboards, rules and examples fit together, and fit to the metrics that the daemon has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from config.grafana.build import DASHBOARDS, files
from config.grafana.layout import WIDTH, layout
from config.grafana.panels import GRAFANA_VARIABLES, Dashboard, Panel, Query, Row, concrete

from lcpd.metrics import Metrics

ROOT = Path(__file__).parents[3]
RULES = yaml.safe_load((ROOT / "config/prometheus/lcpd.rules.yml").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule]
RECORDED = [rule for group in RULES["groups"] for rule in group["rules"] if "record" in rule]
DEFINITIONS = {one.name: one for topic in Metrics().topics for one in topic.definitions}
EXPRESSIONS = {
    **{
        f"{page.name}: {panel.title} {query.legend}": query.expr
        for page in DASHBOARDS
        for panel in page.panels()
        for query in panel.queries
    },
    **{rule["alert"]: rule["expr"] for rule in ALERTS},
    **{rule["record"]: rule["expr"] for rule in RECORDED},
}
"""By what they are for."""
TARGET_LABELS = {"job", "instance", "le"}
"""Labels that every series of a scraped daemon or of a histogram's buckets has."""


def definition_of(name: str):
    """What is defined under the name of a series; None for what is not the daemon's."""
    return DEFINITIONS.get(name) or DEFINITIONS.get(re.sub(r"_(bucket|sum|count)$", "", name))


def series_of(expr: str) -> list[tuple[str, str]]:
    """Names of lcpd's own series in an expression, with what is in the braces behind them."""
    return re.findall(r"(?<![\w:])((?:lcpd|process)_\w+)(?:\{([^}]*)\})?", re.sub(r'"[^"]*"', '""', expr))


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_the_files_are_what_the_source_says(path: Path) -> None:
    assert path.read_text() == files()[path], "run: python -m config.grafana.build"


def test_no_file_is_left_over() -> None:
    assert sorted((ROOT / "config/grafana/dashboards").iterdir()) == sorted(files())


def test_expressions_ask_for_metrics_and_labels_that_exist() -> None:
    for what, expr in EXPRESSIONS.items():
        labels: set[str] = set(TARGET_LABELS)
        for name, match in series_of(expr):
            definition = definition_of(name)
            assert definition, (what, name)
            labels |= set(definition.labels)
            asked = re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", match)
            assert set(asked) <= set(definition.labels) | TARGET_LABELS, (what, expr)
        if series_of(expr):
            grouped = re.findall(r"by \(([^)]*)\)", expr)
            assert {label.strip() for group in grouped for label in group.split(",")} <= labels, (what, expr)


def test_values_of_labels_that_are_asked_for_exist() -> None:
    for what, expr in EXPRESSIONS.items():
        for name, match in re.findall(r"(?<![\w:])(lcpd_\w+)\{([^}]*)\}", expr):
            for label, operator, value in re.findall(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"', match):
                known = definition_of(name).labels.get(label, "")
                if not isinstance(known, str):  # otherwise told in words
                    wanted = value.split("|") if "~" in operator else [value]
                    assert set(wanted) <= set(known), (what, name, label, value)


@pytest.mark.parametrize("page", DASHBOARDS, ids=lambda page: page.name)
def test_a_panel_says_what_it_asks_and_how_to_read_it(page: Dashboard) -> None:
    titles = [panel.title for panel in page.panels()]
    assert len(titles) == len(set(titles))
    for panel in page.panels():
        assert panel.title[0].isupper() and not panel.title.endswith(".")
        assert panel.description.endswith("."), panel.title
        assert panel.queries, panel.title


def test_only_what_asks_for_a_gpu_may_be_empty_without_one() -> None:
    for page in DASHBOARDS:
        for panel in page.panels():
            assert panel.gpu == all("lcpd_gpu_" in query.expr for query in panel.queries), panel.title


@pytest.mark.parametrize("page", DASHBOARDS, ids=lambda page: page.name)
def test_a_legend_names_labels_that_its_series_have(page: Dashboard) -> None:
    for panel in page.panels():
        for query in panel.queries:
            kept = {label.strip() for group in re.findall(r"by \(([^)]*)\)", query.expr) for label in group.split(",")}
            assert set(re.findall(r"{{(\w+)}}", query.legend)) <= kept, (panel.title, query.legend)


@pytest.mark.parametrize("page", DASHBOARDS, ids=lambda page: page.name)
def test_panels_fill_the_grid_without_overlaps(page: Dashboard) -> None:
    places, height = layout(page)
    cells = [
        (x, y) for place in places for x in range(place.x, place.x + place.w) for y in range(place.y, place.y + place.h)
    ]
    assert len(cells) == len(set(cells))
    assert all(x < WIDTH and y < height for x, y in cells)


def test_a_row_breaks_where_the_grid_ends_and_its_lines_are_as_high_as_their_highest_panel() -> None:
    def panel(title: str, width: int, kind: str = "lines") -> Panel:
        return Panel(title, "-.", (Query("1"),), width=width, kind=kind)

    page = Dashboard("x", "x", "x", (Row("r", (panel("a", 12, "number"), panel("b", 12), panel("c", 8))),))
    places, height = layout(page)
    assert [(place.title, place.x, place.y) for place in places] == [
        ("r", 0, 0),
        ("a", 0, 1),
        ("b", 12, 1),
        ("c", 0, 9),
    ]
    assert height == 17


@pytest.mark.parametrize(
    ("panel", "colors"),
    [
        ({}, [(None, "blue")]),
        ({"warn": 1, "bad": 2}, [(None, "green"), (1, "orange"), (2, "red")]),
        ({"warn": 2, "bad": 1, "lowest_is_bad": True}, [(None, "red"), (1, "orange"), (2, "green")]),
        ({"bad": 1, "lowest_is_bad": True}, [(None, "red"), (1, "green")]),
    ],
)
def test_colours_go_with_the_limits(panel: dict, colors: list) -> None:
    assert Panel("a", "-.", (), **panel).colors() == colors


def test_all_variables_are_replaced_when_grafana_is_not_there() -> None:
    expr = concrete(" ".join(GRAFANA_VARIABLES), "5s", "60s")
    assert expr == "5s 60s .*"
    for page in DASHBOARDS:
        for panel in page.panels():
            assert not any("$" in concrete(query.expr, "5s", "60s") for query in panel.queries), panel.title


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    headings = re.findall(r"^### (Lcpd\w+)$", (ROOT / "docs/dashboards.md").read_text(), re.MULTILINE)
    assert headings == [alert["alert"] for alert in ALERTS]
    links = [alert["annotations"]["runbook_url"] for alert in ALERTS]
    assert links == [f"docs/dashboards.md#{heading.lower()}" for heading in headings]


def test_every_alert_says_how_bad_it_is_and_what_is_wrong() -> None:
    for alert in ALERTS:
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert alert["annotations"]["summary"].endswith(".")


def test_every_alert_is_tested_with_promtool() -> None:
    tests = yaml.safe_load((ROOT / "tests/prometheus/alerts.test.yml").read_text())["tests"]
    fired = {one["alertname"] for test in tests for one in test["alert_rule_test"] if one.get("exp_alerts")}
    assert fired == {alert["alert"] for alert in ALERTS}


def test_grafana_and_prometheus_are_told_the_same_interval() -> None:
    scraping = yaml.safe_load((ROOT / "config/prometheus/prometheus.yml").read_text())
    source = yaml.safe_load((ROOT / "config/grafana/provisioning/datasources/prometheus.yaml").read_text())
    assert source["datasources"][0]["jsonData"]["timeInterval"] == scraping["global"]["scrape_interval"]


def test_compose_mounts_folders_that_are_there_where_the_files_look_for_them() -> None:
    folder = ROOT / "config/compose"
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    mounts = [volume.split(":") for service in services.values() for volume in service["volumes"]]
    places = {inside: folder / outside for outside, inside, *_ in mounts if outside.startswith(".")}
    assert all(place.is_dir() for place in places.values())
    provider = yaml.safe_load((ROOT / "config/grafana/provisioning/dashboards/lcpd.yaml").read_text())["providers"][0]
    assert (places[provider["options"]["path"]] / "lcpd-overview.json").is_file()
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert places[str(Path(home).parent)].joinpath(Path(home).name).is_file()
