"""Figures that are not counted where something happens, and how they are defined."""

from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from lcpd.cache.figures import Amount, DiskCounts, DiskStats, RamFigures
from lcpd.engine.supervisor import State
from lcpd.metrics import Metrics
from lcpd.metrics.definition import Topic
from lcpd.metrics.requests import OUTCOMES
from lcpd.metrics.tokens import SOURCES
from lcpd.scheduler.report import MISSES

RAM = RamFigures(
    size=1000,
    used=640,
    held={"segment": Amount(3, 300), "checkpoint": Amount(1, 200)},
    reserved=100,
    lingering=40,
    fragmentation=0.25,
    dropped={("segment", "room"): 5, ("checkpoint", "corrupt"): 1, ("segment", "corrupt"): 1},
    paths=4,
    path_tokens=90,
    tokens=30,
)
DISK = DiskStats(
    state="degraded",
    reason="full",
    size=5000,
    used=4096,
    files=2,
    held={"segment": Amount(1, 3000), "checkpoint": Amount(1, 1000)},
    queue=3,
    lag=1.5,
    written_today=70,
    budget=100,
    counts=DiskCounts(80, 20, 0.5, {"damaged": 2, "room": 4}, {"budget": 1}),
)


def figure(metrics: Metrics, name: str, /, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_what_the_cache_holds_is_shown_by_tier_and_kind() -> None:
    metrics = Metrics()
    metrics.cache.show_ram(RAM)
    metrics.show_disk(DISK)
    kinds = ("segment", "checkpoint", "reserved", "lingering")
    assert [figure(metrics, "lcpd_cache_bytes", tier="ram", kind=kind) for kind in kinds] == [300, 200, 100, 40]
    assert [figure(metrics, "lcpd_cache_bytes", tier="disk", kind=kind) for kind in kinds[:2]] == [3000, 1000]
    assert [figure(metrics, "lcpd_cache_pieces", tier="ram", kind=kind) for kind in kinds[:2]] == [3, 1]
    assert [figure(metrics, "lcpd_cache_used_bytes", tier=tier) for tier in ("ram", "disk")] == [640, 4096]
    assert [figure(metrics, "lcpd_cache_size_bytes", tier=tier) for tier in ("ram", "disk")] == [1000, 5000]
    assert figure(metrics, "lcpd_cache_fragmentation_ratio") == 0.25
    assert figure(metrics, "lcpd_cache_conversations") == 4
    assert figure(metrics, "lcpd_cache_dedup_ratio") == 3


def test_an_empty_cache_has_nothing_in_common() -> None:
    metrics = Metrics()
    nothing = RamFigures(0, 0, {}, 0, 0, 0.0, {}, 0, 0, 0)
    metrics.cache.show_ram(nothing)
    assert figure(metrics, "lcpd_cache_dedup_ratio") == 1


def test_totals_are_counted_up() -> None:
    metrics = Metrics()
    for _ in range(2):
        metrics.cache.show_ram(RAM)
        metrics.show_disk(DISK)
    assert figure(metrics, "lcpd_cache_evictions_total", kind="segment", reason="room") == 5
    assert figure(metrics, "lcpd_cache_evictions_total", kind="checkpoint", reason="room") == 0
    assert figure(metrics, "lcpd_cache_corrupt_total", tier="ram", reason="corrupt") == 2
    assert figure(metrics, "lcpd_cache_corrupt_total", tier="disk", reason="damaged") == 2
    assert figure(metrics, "lcpd_cache_disk_removed_total", reason="room") == 4
    assert figure(metrics, "lcpd_cache_disk_skipped_total", reason="budget") == 1
    assert figure(metrics, "lcpd_cache_disk_read_seconds_total") == 0.5


def test_a_disk_that_cannot_be_used_is_shown_as_degraded() -> None:
    metrics = Metrics()
    metrics.show_disk(DISK)
    assert (figure(metrics, "lcpd_cache_disk_degraded"), figure(metrics, "lcpd_cache_disk_lag_seconds")) == (1, 1.5)


def test_just_the_state_that_the_engine_is_in_is_1() -> None:
    metrics = Metrics()
    for now in (State.LOADING, State.READY):
        metrics.engine.show_state(now)
        shown = [state for state in State if figure(metrics, "lcpd_engine_state", state=str(state))]
        assert shown == [now]


def test_figures_are_brought_up_to_date_before_they_are_read() -> None:
    metrics = Metrics()
    metrics.at_scrape(lambda: metrics.cache.show_ram(RAM))
    assert figure(metrics, "lcpd_cache_used_bytes", tier="ram") == 640


@pytest.mark.parametrize(
    ("name", "label", "values"),
    [
        ("lcpd_cache_miss_tokens_total", "reason", MISSES),
        ("lcpd_prompt_tokens_total", "source", SOURCES),
        ("lcpd_request_outcomes_total", "outcome", OUTCOMES),
    ],
)
def test_series_whose_labels_are_known_are_there_from_the_beginning(
    name: str, label: str, values: tuple[str, ...]
) -> None:
    metrics = Metrics()
    assert [figure(metrics, name, **{label: value}) for value in values] == [0] * len(values)


@pytest.mark.parametrize("topic", Metrics().topics, ids=lambda topic: topic.title)
def test_names_follow_prometheus_practice(topic: Topic) -> None:
    for one in topic.definitions:
        assert re.fullmatch(r"(lcpd_|process_)[a-z0-9_]+", one.name)
        assert (one.kind == "counter") == one.name.endswith("_total")
        assert one.question.rstrip(".").endswith("?") or "?" in one.question
        if one.kind == "histogram" or one.unit in ("seconds", "bytes"):
            assert one.name.removesuffix("_total").endswith(one.unit)


def test_what_is_exported_is_what_is_defined() -> None:
    """Names and kinds, so that the reference and the exposition cannot tell different things."""
    metrics = Metrics()
    defined = {(one.name, one.kind) for topic in metrics.topics for one in topic.definitions}
    suffix = {"counter": "_total", "info": "_info"}
    exported = {(family.name + suffix.get(family.type, ""), family.type) for family in metrics.registry.collect()}
    only_of_others = {one for one in defined if one[0].startswith(("lcpd_worker_process", "lcpd_chat_process"))}
    assert exported == defined - only_of_others


def test_no_series_tells_when_it_began() -> None:
    registry = CollectorRegistry()
    topic = Topic(registry)
    topic.counter("lcpd_things_total", "things", "How many?").inc()
    assert b"created" not in generate_latest(registry)


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("lcpd_cache_corrupt_total", {"tier": "ram", "reason": "corrupt"}),
        ("lcpd_cache_corrupt_total", {"tier": "disk", "reason": "damaged"}),
        ("lcpd_cache_evictions_total", {"kind": "segment", "reason": "room"}),
        ("lcpd_cache_disk_removed_total", {"reason": "truncated"}),
        ("lcpd_worker_restarts_total", {"cause": "hang"}),
        ("lcpd_chat_restarts_total", {}),
    ],
)
def test_the_first_trouble_of_a_kind_is_growth(name: str, labels: dict[str, str]) -> None:
    """`increase` sees nothing of a series that begins with its first event."""
    assert figure(Metrics(), name, **labels) == 0
