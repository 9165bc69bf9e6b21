"""A step prefills as much as the machine is fast, and as running replies can wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcpd.engine.batching import UNIT, Budget, Prefill, plan
from lcpd.engine.pace import TARGET_SECONDS, Pace


def pace(**changes) -> Pace:
    return Pace(**{"n_batch": 2048, "n_ubatch": 512, "max_stall": 0.2, **changes})


def test_the_first_batch_is_small_because_nothing_is_known():
    assert pace().budget(replies_run=False) == Budget(512, 2048, 512)
    assert pace().budget(replies_run=True) == Budget(8, 2048, 8)


@pytest.mark.parametrize(("speed", "tokens"), [(10_000, 2048), (300, 1500), (100, 512), (1, 512)])
def test_alone_a_batch_takes_at_most_about_the_target_time(speed, tokens):
    p = pace()
    p.observe_prefill(512, 512 / speed)
    assert p.budget(replies_run=False).items == tokens
    assert tokens == 512 or tokens / speed <= TARGET_SECONDS


@pytest.mark.parametrize(("speed", "decode", "tokens"), [(1000, 0.1, 80), (1000, 0.0, 160), (1000, 0.3, 8), (10, 0, 8)])
def test_beside_replies_the_step_fits_max_stall_together_with_their_batch(speed, decode, tokens):
    p = pace(speed=float(speed), decode_seconds=decode)
    assert p.budget(replies_run=True).items == tokens


def test_a_few_tokens_say_nothing_about_the_speed():
    p = pace()
    p.observe_prefill(4, 60)
    assert p.speed is None


def test_the_latest_batches_count_most():
    p = pace()
    for seconds in (1.0, 0.5, 0.5, 0.5):
        p.observe_prefill(512, seconds)
    assert 900 < (p.speed or 0) < 1024


def test_where_cuts_matter_batches_are_whole_micro_batches_even_beside_replies():
    p = pace(alignment=512, speed=1000.0)
    assert p.budget(replies_run=True) == Budget(512, 2048, 512, aligned=True)


@given(
    st.floats(50, 50_000),
    st.floats(0, 0.19),
    st.floats(0.05, 1.0),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 9000)), min_size=1, max_size=6),
)
def test_a_step_beside_replies_takes_no_longer_than_max_stall_or_one_unit(speed, decode, max_stall, prompts):
    p = pace(max_stall=max_stall, speed=speed, decode_seconds=decode)
    chunks = plan(
        [Prefill(i, 0, i, begin, begin + size) for i, (begin, size) in enumerate(prompts)], p.budget(replies_run=True)
    )
    seconds = sum(c.end - c.begin for c in chunks) / speed
    assert seconds <= max(max_stall - decode, UNIT / speed) + 1e-9
