"""Figures that are not counted where something happens."""

from __future__ import annotations

from typing import Any

from lcpd.cache.cache import CacheStats
from lcpd.metrics import Metrics
from lcpd.scheduler.report import MISSES


def stats(**changes: Any) -> CacheStats:
    fields: dict[str, Any] = {
        "size": 1000,
        "used": 640,
        "segment_bytes": 300,
        "checkpoint_bytes": 200,
        "reserved_bytes": 100,
        "lingering_bytes": 40,
        "segments": 3,
        "checkpoints": 1,
        "tokens": 30,
        "nodes": 4,
        "dropped": {},
        "fragmentation": 0.25,
        "remembered": 50,
    }
    return CacheStats(**{**fields, **changes})


def figure(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_what_the_cache_holds_is_shown_by_kind() -> None:
    metrics = Metrics()
    metrics.show_cache(stats())
    kinds = ("segment", "checkpoint", "reserved", "lingering")
    assert [figure(metrics, "lcpd_cache_bytes", kind=kind) for kind in kinds] == [300, 200, 100, 40]
    assert figure(metrics, "lcpd_cache_ram_used_bytes") == 640
    assert figure(metrics, "lcpd_cache_fragmentation_ratio") == 0.25


def test_evictions_are_counted_up_from_totals() -> None:
    metrics = Metrics()
    for dropped in ({}, {"segment": 2}, {"segment": 5, "corrupt": 1}):
        metrics.show_cache(stats(dropped=dropped))
    assert figure(metrics, "lcpd_cache_evictions_total", kind="segment") == 5
    assert figure(metrics, "lcpd_cache_evictions_total", kind="corrupt") == 1
    assert figure(metrics, "lcpd_cache_evictions_total", kind="checkpoint") == 0


def test_figures_are_brought_up_to_date_before_they_are_read() -> None:
    metrics = Metrics()
    metrics.at_scrape(lambda: metrics.show_cache(stats(used=7)))
    assert figure(metrics, "lcpd_cache_ram_used_bytes") == 7


def test_every_reason_for_a_miss_is_there_from_the_beginning() -> None:
    metrics = Metrics()
    assert all(figure(metrics, "lcpd_cache_misses_total", reason=reason) == 0 for reason in MISSES)
