"""The benchmark of scrapes measures what it says."""

from __future__ import annotations

import pytest
from benchmarks import scrape


async def test_it_scrapes_a_cache_that_holds_as_many_conversations_as_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "GOAL", 60.0)
    assert await scrape.measure(conversations=8, scrapes=2, profile=False) == 0
    told = capsys.readouterr().out
    # Four heads of two segments; eight tails of four; two checkpoints each.
    assert "8 conversations: 40 segments, 24 checkpoints" in told
    assert "OpenMetrics: " in told
    monkeypatch.setattr(scrape, "GOAL", 0.0)
    assert await scrape.measure(conversations=1, scrapes=2, profile=False) == 1
