"""Where a prompt goes: the slot and the source that together cost least."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.vocab import tokens
from lcpd.scheduler.cells import Run
from lcpd.scheduler.placement import (
    Costs,
    Demand,
    Placement,
    candidates,
    emptied,
    fitted,
    place,
    started,
    used,
    victim,
)
from lcpd.scheduler.slots import COLD, Known, Resume, Slot

MANY = 10_000


def slot(seq: int, text: str, **rest: Any) -> Slot:
    """A slot whose cells are its own."""
    return Slot(seq, tokens(text), (Run(seq, len(text)),) if text else (), **rest)


def where(
    slots: list[Slot], prompt: str, known: Known | None = None, rolls_back: bool = True, capacity: int = MANY
) -> Placement | None:
    demand = Demand(tokens(prompt), len(prompt) + 1)
    return place(slots, demand, known or Known(), rolls_back, capacity, Costs())


def test_there_is_none_while_all_slots_are_busy() -> None:
    assert where([slot(0, "", request=1)], "abc") is None


def test_the_next_turn_goes_back_to_its_own_slot() -> None:
    mine, other = slot(0, "system: mine"), slot(1, "system: other", last_used=9)
    assert where([other, mine], "system: mine, more") == Placement(0, Resume(12, 0, 12))


def test_a_side_session_goes_to_an_empty_slot_and_shares_what_the_long_conversation_holds() -> None:
    main, empty = slot(0, "system: main conversation"), slot(1, "")
    assert where([main, empty], "system: title") == Placement(1, Resume(8, 0, 8))


def test_a_running_request_is_a_source_too() -> None:
    assert where([slot(0, "system: main", request=7), slot(1, "")], "system: title") == Placement(1, Resume(8, 0, 8))


def test_among_equal_slots_the_one_used_longest_ago_is_taken() -> None:
    slots = [slot(0, "aaa", last_used=5), slot(1, "bbb", last_used=2), slot(2, "ccc", last_used=9)]
    assert where(slots, "xyz") == Placement(1, COLD)


def test_what_ram_has_too_is_overwritten_before_what_only_a_slot_has() -> None:
    slots = [slot(0, "aaa", last_used=1), slot(1, "bbb", last_used=9, saved=3)]
    assert where(slots, "xyz") == Placement(1, COLD)


def test_what_another_slot_has_too_is_overwritten_before_what_only_one_has() -> None:
    copy = Slot(1, tokens("system: a"), (Run(0, 8), Run(5, 1)), last_used=9)
    slots = [slot(0, "system: main"), copy, slot(2, "unique", last_used=1)]
    assert where(slots, "xyz") == Placement(1, COLD)


def test_sharing_with_a_slot_comes_before_restoring_from_ram() -> None:
    slots = [slot(0, "system: main"), slot(1, "")]
    assert where(slots, "system: title", Known(covered=8)) == Placement(1, Resume(8, 0, 8))


def test_restoring_from_ram_comes_before_computing() -> None:
    assert where([slot(0, "")], "system: title", Known(covered=8)) == Placement(0, Resume(8))


def test_a_hybrid_is_placed_by_its_resume_point_and_not_by_what_it_has_in_common() -> None:
    long, short = slot(0, "system: a long conversation, and a turn"), slot(1, "system: a")
    placement = where([long, short], "system: a long conversation, edited", Known(0, (8,)), rolls_back=False)
    assert placement == Placement(1, Resume(9, 1, 9))  # its live end; the longer one would resume at 8


def test_a_source_is_not_emptied_and_so_another_way_is_taken_where_cells_are_scarce() -> None:
    slots = [slot(0, "system: main conversation"), slot(1, "")]
    prompt = "system: " + "x" * 20
    assert where(slots, prompt, capacity=60) == Placement(1, Resume(8, 0, 8))
    assert where(slots, prompt, capacity=45) == Placement(0, Resume(8, 0, 8))  # rather than to empty slot 0


def test_a_prompt_that_fits_only_beside_what_runs_waits() -> None:
    slots = [slot(0, "x" * 50, request=1), slot(1, "")]
    assert where(slots, "y" * 40, capacity=91) == Placement(1, COLD)
    assert where(slots, "y" * 40, capacity=90) is None


def test_what_has_to_be_emptied_for_a_placement_is_a_part_of_it() -> None:
    slots = [slot(0, "a" * 50, last_used=5), slot(1, "b" * 40, last_used=2), slot(2, "", last_used=9)]
    assert where(slots, "x" * 20, capacity=120) == Placement(2, COLD)
    assert where(slots, "x" * 20, capacity=100) == Placement(1, COLD)
    assert where(slots, "x" * 55, capacity=90) == Placement(1, COLD, evict=(0,))


def test_the_victim_is_the_idle_slot_used_longest_ago_whose_cells_come_free() -> None:
    shared = Slot(1, tokens("system:"), (Run(0, 7),), last_used=1)
    slots = [slot(0, "system: a", request=1), shared, slot(2, "bbb", last_used=5), slot(3, "ccc", last_used=3)]
    assert victim(slots) == slots[3]
    assert victim(slots, keep=(3,)) == slots[2]
    assert victim(slots, keep=(2, 3)) == shared
    assert victim(slots, keep=(1, 2, 3)) is None


# ---- a segment that reaches further than the context ---------------------------------------------------------

LONG = np.zeros(15_000, np.int32)
CONTEXT = 16_384
SEGMENTS = ((0, 10_000), (10_000, 14_636), (14_636, 16_684))
"""The last one belongs to an older conversation that was longer than the context is now."""


@pytest.mark.parametrize(
    ("known", "rolls_back", "expected"),
    [
        pytest.param(Known(14_999, (), SEGMENTS), True, Resume(14_636, peak=14_636), id="where that segment begins"),
        pytest.param(
            Known(14_999, (9_000, 12_000, 14_900), SEGMENTS),
            False,
            Resume(12_000, restore=True, peak=14_636),
            id="at the last checkpoint before it",
        ),
        pytest.param(Known(14_999, (14_900,), SEGMENTS), False, COLD, id="nowhere: there is no checkpoint before it"),
        pytest.param(Known(14_999, (), ((0, 16_684),)), True, COLD, id="nowhere: it is the only segment"),
    ],
)
def test_a_prompt_whose_last_segment_does_not_fit_into_the_context_goes_on_before_it(
    known: Known, rolls_back: bool, expected: Resume
) -> None:
    placed = place([Slot(0)], Demand(LONG, CONTEXT), known, rolls_back, CONTEXT, Costs())
    assert placed == Placement(0, expected)


def test_what_a_slot_holds_of_a_segment_that_does_not_fit_is_used() -> None:
    mine = Slot(0, LONG[:14_800], (Run(0, 14_800),))
    placed = place([mine], Demand(LONG, CONTEXT), Known(14_999, (), SEGMENTS), True, CONTEXT, Costs())
    assert placed == Placement(0, Resume(14_800, 0, 14_800))


def test_a_segment_that_just_fits_into_the_context_is_read() -> None:
    placed = place([Slot(0)], Demand(LONG, CONTEXT), Known(14_999, (), SEGMENTS), True, 16_684, Costs())
    assert placed == Placement(0, Resume(14_999, peak=16_684))


def test_a_segment_that_fits_into_the_context_but_not_beside_what_runs_is_waited_for() -> None:
    other = slot(1, "x" * 1_000, request=1)
    known = Known(14_999, (), SEGMENTS)
    assert place([Slot(0), other], Demand(LONG, 15_000), known, True, 17_683, Costs()) is None
    assert place([Slot(0), other], Demand(LONG, 15_000), known, True, 17_684, Costs()) is not None


_TEXT = st.text("ab", max_size=10)


@st.composite
def tables(draw: st.DrawFn) -> list[Slot]:
    return [
        slot(seq, draw(_TEXT), request=draw(st.sampled_from([None, None, 9])), last_used=draw(st.integers(0, 3)))
        for seq in range(draw(st.integers(1, 4)))
    ]


@given(
    tables(),
    st.text("ab", min_size=1, max_size=10),
    st.integers(0, 10),
    st.sets(st.integers(1, 10), max_size=3),
    st.booleans(),
    st.integers(5, 40),
)
def test_the_chosen_placement_is_possible_fits_and_costs_no_more_than_a_cold_start(
    slots: list[Slot], prompt: str, covered: int, checkpoints: set[int], rolls_back: bool, capacity: int
) -> None:
    known = Known(covered, tuple(sorted(checkpoints)))
    demand = Demand(tokens(prompt), len(prompt) + 2)
    chosen = place(slots, demand, known, rolls_back, capacity, Costs())
    found = candidates(slots, demand, known, rolls_back, Costs())
    possible = [fit for at in found if (fit := fitted(slots, at, demand, capacity))]
    if chosen is None:
        assert not possible
        return
    assert chosen in possible
    target = next(s for s in slots if s.seq == chosen.seq)
    assert not target.busy
    assert not {chosen.seq, chosen.resume.source} & {*chosen.evict}
    after = started(emptied(slots, chosen.evict), chosen, demand)
    assert used(after) <= capacity
    placed = next(s for s in after if s.seq == chosen.seq)
    assert placed.tokens.tolist() == tokens(prompt)[: chosen.resume.begin].tolist()


@st.composite
def known_of(draw: st.DrawFn, size: int) -> Known:
    """What RAM may hold of a prompt of `size` tokens; the last segment may reach further."""
    covered = draw(st.integers(0, size))
    cuts = sorted(draw(st.sets(st.integers(1, covered - 1), max_size=3))) if covered > 1 else []
    bounds = [0, *cuts, covered + draw(st.integers(0, 5))] if covered else []
    checkpoints = draw(st.sets(st.integers(1, size), max_size=3))
    return Known(covered, tuple(sorted(checkpoints)), tuple(pairwise(bounds)))


@given(tables(), st.text("ab", min_size=1, max_size=10), st.booleans(), st.data())
def test_a_prompt_always_finds_a_place_when_nothing_runs_and_the_cache_could_hold_it(
    slots: list[Slot], prompt: str, rolls_back: bool, data: st.DataObject
) -> None:
    idle = [replace(s, request=None) for s in slots]
    known = data.draw(known_of(len(prompt)))
    assert where(idle, prompt, known, rolls_back, capacity=len(prompt) + 1) is not None
