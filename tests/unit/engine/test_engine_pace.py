"""Prefill batches are as large as the machine is fast."""

from __future__ import annotations

import pytest

from lcpd.engine.pace import TARGET_SECONDS, PrefillPace


def test_the_first_batch_is_small_because_nothing_is_known():
    assert PrefillPace(2048, 512).batch() == 512


@pytest.mark.parametrize(("speed", "batch"), [(10_000, 2048), (300, 1024), (100, 512), (1, 512)])
def test_a_batch_takes_about_the_target_time_in_whole_micro_batches(speed, batch):
    pace = PrefillPace(2048, 512)
    pace.observe(512, 512 / speed)
    assert pace.batch() == batch
    assert pace.batch() == 512 or pace.batch() / speed <= TARGET_SECONDS


def test_a_few_tokens_say_nothing_about_the_speed():
    pace = PrefillPace(2048, 512)
    pace.observe(4, 60)
    assert pace.speed is None
