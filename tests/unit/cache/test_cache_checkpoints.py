"""Where checkpoints are taken."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from lcpd.cache.checkpoints import minimum_gap, plan
from lcpd.scheduler.slots import Span


def messages(*roles_and_lengths: tuple[str, int], begin: int = 0) -> list[Span]:
    spans = []
    for role, length in roles_and_lengths:
        spans.append(Span(role, begin, length))
        begin += length
    return spans


TALK = messages(("system", 1000), ("user", 500), ("assistant", 700), ("tool", 600), ("assistant", 5))
LONG = 10_000
"""More than any distance here, where no checkpoints in between are wanted."""


def boundaries(spans: list[Span], begin: int, length: int) -> list[int]:
    return plan(spans, begin, length, interval=LONG)


# ---- message boundaries ------------------------------------------------------------------------------------


def test_the_message_boundaries_are_the_end_of_the_head_the_last_user_message_and_the_end_of_the_last_message() -> None:
    spans = messages(("system", 1000), ("user", 500), ("assistant", 700), ("user", 600), ("assistant", 5))
    assert boundaries(spans, 0, 2805) == [1000, 2200, 2800]


def test_a_template_that_shows_no_system_span_has_its_head_before_the_first_one() -> None:
    assert boundaries(messages(("user", 500), ("assistant", 5), begin=1000), 0, 1505) == [1000, 1500]


def test_without_a_generation_prompt_the_last_message_ends_where_the_spans_do() -> None:
    assert boundaries(messages(("user", 500), ("assistant", 700), ("tool", 600)), 0, 1810) == [1800]


def test_a_prompt_without_messages_has_no_boundaries() -> None:
    assert boundaries([], 0, 100) == []


def test_only_what_is_computed_gets_checkpoints() -> None:
    assert boundaries(TALK, 1000, 2805) == [2800]
    assert boundaries(TALK, 2800, 2805) == []


def test_none_lies_at_the_end_because_the_last_token_is_always_computed() -> None:
    assert plan(messages(("user", 100)), 0, 100, interval=LONG) == []


def test_a_position_that_has_one_already_gets_none() -> None:
    assert plan(TALK, 0, 2805, interval=LONG, known=[1000]) == [2800]


def test_positions_are_rounded_down_to_the_alignment() -> None:
    assert plan(TALK, 0, 2805, interval=LONG, alignment=512) == [512, 2560]


def test_a_position_that_is_rounded_down_to_where_computing_begins_is_left_out() -> None:
    assert plan(TALK, 2560, 2805, interval=LONG, alignment=512) == []


# ---- branch points -----------------------------------------------------------------------------------------


def test_where_earlier_prompts_parted_a_checkpoint_is_taken() -> None:
    assert plan(TALK, 0, 2805, interval=LONG, branches=[1200]) == [1000, 1200, 2800]


# ---- long prefills -----------------------------------------------------------------------------------------


def test_a_long_stretch_gets_one_in_every_interval() -> None:
    assert plan([], 0, 3500, interval=1000) == [1000, 2000, 3000]


def test_the_interval_is_counted_from_where_computing_begins_and_from_other_checkpoints() -> None:
    assert plan([], 300, 3000, interval=1000, known=[1500]) == [1300, 2500]


def test_message_boundaries_are_preferred_in_the_second_half_of_an_interval() -> None:
    spans = messages(("user", 400), ("assistant", 200), ("user", 300), ("assistant", 500), ("user", 700))
    assert plan(spans, 0, 2200, interval=1000) == [900, 1400, 2100]


@given(
    lengths=st.lists(st.integers(1, 900), max_size=12),
    tail=st.integers(1, 3000),
    begin=st.integers(0, 2000),
    interval=st.integers(64, 1500),
    alignment=st.sampled_from([1, 16, 512]),
    known=st.lists(st.integers(1, 8000), max_size=4),
    branches=st.lists(st.integers(1, 8000), max_size=4),
    gap=st.integers(1, 5000),
    limit=st.integers(0, 40),
)
@settings(max_examples=examples(60), deadline=None)
def test_whatever_copies_cost_and_however_few_are_wanted_nothing_is_further_than_an_interval_from_what_is_kept(
    lengths: list[int],
    tail: int,
    begin: int,
    interval: int,
    alignment: int,
    known: list[int],
    branches: list[int],
    gap: int,
    limit: int,
) -> None:
    spans = messages(*(("user" if i % 2 else "assistant", length) for i, length in enumerate(lengths)))
    length = begin + sum(lengths) + tail
    positions = plan(
        spans,
        begin,
        length,
        interval=interval,
        alignment=alignment,
        limit=limit,
        known=known,
        branches=branches,
        gap=gap,
    )
    stops = sorted({begin, length, *positions, *(at for at in known if begin < at < length)})
    assert max(np.diff(stops), default=0) <= max(interval, alignment)
    assert positions == sorted(set(positions))
    assert all(begin < at < length for at in positions)


def test_positions_in_between_are_aligned_too() -> None:
    assert plan([], 100, 3000, interval=1000, alignment=512) == [1024, 1536, 2048]


# ---- what is left out --------------------------------------------------------------------------------------


def test_of_two_that_are_close_the_one_with_the_better_reason_is_taken() -> None:
    spans = messages(("system", 1000), ("user", 300), ("assistant", 5))
    assert plan(spans, 0, 1305, interval=LONG, gap=400) == [1300]  # the end of the last message, not that of the head
    assert plan(spans, 0, 1305, interval=LONG, gap=300) == [1000, 1300]


def test_none_is_taken_close_to_a_known_one() -> None:
    assert plan(TALK, 2000, 2805, interval=LONG, known=[2700], gap=101) == []
    assert plan(TALK, 2000, 2805, interval=LONG, known=[2700], gap=100) == [2800]


@pytest.mark.parametrize(
    ("limit", "taken"),
    [
        (0, []),
        (1, [2800]),  # the next turn resumes at the end of the last message
        (2, [1000, 2800]),  # new sessions resume at the end of the head
        (3, [1000, 2000, 2800]),  # the deeper branch point
        (4, [1000, 1500, 2000, 2800]),  # the other one
        (5, [1000, 1500, 2000, 2200, 2800]),  # the start of the last user message
    ],
)
def test_with_a_low_limit_the_weakest_reasons_are_left_out(limit: int, taken: list[int]) -> None:
    spans = messages(("system", 1000), ("user", 500), ("assistant", 700), ("user", 600), ("assistant", 5))
    assert plan(spans, 0, 2805, interval=LONG, branches=[1500, 2000], limit=limit) == taken


def test_the_gap_is_the_distance_that_pays_for_the_copy() -> None:
    # 150 MB at 12 GB/s are 12.5 ms, in which 12.5 tokens are computed; one in ten checkpoints is used.
    assert minimum_gap(150_000_000, copy_speed=12e9, prefill_speed=1000, odds=0.1) == 125


def test_where_copies_are_nearly_free_positions_still_differ() -> None:
    assert minimum_gap(1, copy_speed=12e9, prefill_speed=1000) == 1
