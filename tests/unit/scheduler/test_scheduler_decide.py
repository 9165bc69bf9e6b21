"""The table of decisions, a row at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fakes.vocab import tokens
from lcpd.scheduler.cells import Run
from lcpd.scheduler.decide import (
    Drop,
    Evict,
    Expire,
    Follow,
    Launch,
    Park,
    Running,
    Saving,
    Stop,
    View,
    decide,
    follows,
    next_moment,
)
from lcpd.scheduler.placement import Placement
from lcpd.scheduler.policy import Policy
from lcpd.scheduler.queue import Following, Waiting
from lcpd.scheduler.slots import COLD, Known, Resume, Slot

NOW = 100.0
POLICY = Policy(queue_timeout=50, ageing=30, follow_timeout=20, follow_min=4)


def idle(seq: int, text: str = "", **rest: Any) -> Slot:
    return Slot(seq, tokens(text), (Run(seq, len(text)),) if text else (), **rest)


def busy(seq: int, request: int, text: str = "x", done: int | None = None, reserve: int | None = None) -> Slot:
    return Slot(seq, tokens(text)[:done], (Run(seq, reserve or len(text) + 1),), request=request)


def running(request: int, seq: int, text: str = "x", done: int | None = None, **rest: Any) -> Running:
    fields: dict[str, Any] = {"background": False, "waited": 0.0, "started": True, **rest}
    return Running(request, seq, tokens(text), len(text) if done is None else done, **fields)


def waiting(request: int, text: str = "abc", **rest: Any) -> Waiting:
    fields: dict[str, Any] = {"reserve": len(text) + 1, "arrived": 90.0, "since": 90.0, **rest}
    return Waiting(request, tokens(text), **fields)


def view(**changes: Any) -> View:
    start = View(
        policy=POLICY,
        slots=(idle(0),),
        running=(),
        waiting=(),
        capacity=1000,
        rolls_back=True,
        marks=True,
        known=lambda request: Known(),
    )
    return replace(start, **changes)


def test_nothing_is_done_when_nobody_waits_and_nothing_is_scarce() -> None:
    assert decide(view(), NOW) is None


def test_the_next_in_line_is_started_on_an_idle_slot() -> None:
    assert decide(view(waiting=(waiting(2), waiting(1))), NOW) == Launch(1, Placement(0, COLD))


def test_nothing_is_started_without_an_engine() -> None:
    assert decide(view(waiting=(waiting(1),), up=False), NOW) is None


def test_one_that_waited_too_long_is_given_up_even_without_an_engine() -> None:
    late = waiting(1, arrived=50.0, since=50.0)
    assert decide(view(waiting=(late,), up=False), NOW) == Expire(1)


def test_nobody_overtakes_one_that_finds_no_cells() -> None:
    state = view(
        slots=(busy(0, 9, reserve=960), idle(1)),
        running=(running(9, 0),),
        waiting=(waiting(1, "y" * 50), waiting(2, "z")),
    )
    assert decide(state, NOW) is None


def test_idle_slots_are_emptied_for_one_that_lacks_cells() -> None:
    state = view(
        slots=(idle(0, "a" * 500, last_used=2), idle(1, "b" * 400, last_used=1), idle(2)),
        waiting=(waiting(1, "y" * 150),),
    )
    assert decide(state, NOW) == Evict(1)


def test_what_a_prompt_shares_is_not_emptied_for_it() -> None:
    state = view(
        slots=(idle(0, "a" * 500, last_used=1), idle(1, "b" * 400, last_used=2), idle(2)),
        waiting=(waiting(1, "a" * 500 + "y" * 150),),
        capacity=1000,
    )
    placement = Placement(0, Resume(500, 0, 500))
    assert decide(state, NOW) == Evict(1)
    assert decide(replace(state, slots=(state.slots[0], idle(1), idle(2))), NOW) == Launch(1, placement)


# ---- pressure of running replies --------------------------------------------------------------------------


def crowded(**changes: Any) -> View:
    state = view(
        slots=(busy(0, 1, reserve=600), busy(1, 2, reserve=500)),
        running=(running(1, 0), running(2, 1)),
        waiting=(waiting(3),),
    )
    return replace(state, **changes)


def test_replies_that_outgrow_the_cache_get_the_cells_of_idle_slots_first() -> None:
    state = crowded(slots=(busy(0, 1, reserve=600), busy(1, 2, reserve=400), idle(2, "c" * 100)))
    assert decide(state, NOW) == Evict(2)


def test_then_the_youngest_is_parked() -> None:
    assert decide(crowded(), NOW) == Park(2, "cells")


def test_a_background_one_is_parked_before_an_interactive_one() -> None:
    state = crowded(running=(running(1, 0, background=True), running(2, 1)))
    assert decide(state, NOW) == Park(1, "cells")


def test_one_is_parked_at_a_time() -> None:
    assert decide(crowded(running=(running(1, 0), running(2, 1, parking=True))), NOW) is None


def test_one_that_the_engine_has_not_begun_with_is_not_parked_yet() -> None:
    assert decide(crowded(running=(running(1, 0), running(2, 1, started=False))), NOW) is None


def test_the_last_one_is_not_parked() -> None:
    assert decide(crowded(slots=(busy(0, 1, reserve=1100),), running=(running(1, 0),)), NOW) is None


def test_an_engine_that_starves_against_our_count_is_believed() -> None:
    state = crowded(capacity=5000, starved=10)
    assert decide(state, NOW) == Park(2, "cells")
    assert decide(replace(state, slots=(*state.slots, idle(2, "c"))), NOW) == Evict(2)


# ---- classes ----------------------------------------------------------------------------------------------


def behind_background(**changes: Any) -> View:
    state = view(
        slots=(busy(0, 1), busy(1, 2)),
        running=(running(1, 0, background=True), running(2, 1, background=True)),
        waiting=(waiting(3),),
    )
    return replace(state, **changes)


def test_an_interactive_request_without_a_slot_takes_that_of_the_youngest_background_one() -> None:
    assert decide(behind_background(), NOW) == Park(2, "slot")


def test_a_background_request_waits() -> None:
    assert decide(behind_background(waiting=(waiting(3, background=True),)), NOW) is None


def test_a_background_request_that_waited_long_enough_takes_one_too() -> None:
    aged = waiting(3, background=True, arrived=60.0, since=60.0)
    assert decide(behind_background(waiting=(aged,)), NOW) == Park(2, "slot")


def test_background_ones_that_waited_long_enough_before_they_ran_are_left_alone() -> None:
    aged = tuple(replace(one, waited=30.0) for one in behind_background().running)
    assert decide(behind_background(running=aged), NOW) is None


def test_none_is_parked_where_that_would_not_be_enough() -> None:
    state = behind_background(
        slots=(busy(0, 1, reserve=10), busy(1, 2, reserve=950)),
        running=(running(1, 0, background=True), running(2, 1)),
        waiting=(waiting(3, "y" * 100),),
    )
    assert decide(state, NOW) is None


def test_cells_that_background_ones_hold_are_a_reason_too() -> None:
    state = behind_background(slots=(busy(0, 1, reserve=950), busy(1, 2), idle(2)), waiting=(waiting(3, "y" * 100),))
    assert decide(state, NOW) == Park(2, "cells")


# ---- single flight ----------------------------------------------------------------------------------------

HEAD = "the head that they share"


def flight(kind: str = "attention", **changes: Any) -> View:
    state = view(
        slots=(busy(0, 1, HEAD + " first", done=8), idle(1)),
        running=(running(1, 0, HEAD + " first", done=8),),
        waiting=(waiting(2, HEAD + " second"),),
        rolls_back=kind == "attention",
    )
    return replace(state, **changes)


CUT = len(HEAD) + 1  # the blank too


def test_a_request_waits_for_another_one_that_is_computing_what_both_share() -> None:
    assert decide(flight(), NOW) == Follow(2, leader=1, position=CUT, mark=False, until=NOW + 20)


def test_where_sequences_cannot_be_truncated_a_checkpoint_is_ordered_at_the_cut() -> None:
    assert decide(flight("hybrid"), NOW) == Follow(2, leader=1, position=CUT, mark=True, until=NOW + 20)


def test_one_that_is_planned_near_enough_to_the_cut_will_do() -> None:
    leader = running(1, 0, HEAD + " first", done=8, pending=(12, 23))
    assert decide(flight("hybrid", running=(leader,)), NOW) == Follow(2, 1, 23, mark=False, until=NOW + 20)


def test_the_ordered_one_lies_at_a_multiple_of_the_alignment() -> None:
    assert decide(flight("hybrid", alignment=16), NOW) == Follow(2, 1, 16, mark=True, until=NOW + 20)


def test_identical_prompts_follow_up_to_their_last_token() -> None:
    state = flight(waiting=(waiting(2, HEAD + " first"),))
    assert decide(state, NOW) == Follow(2, 1, len(HEAD + " first") - 1, mark=False, until=NOW + 20)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"waiting": (waiting(2, "the head of another"),)}, id="too little in common"),
        pytest.param({"known": lambda request: Known(covered=CUT)}, id="RAM has it already"),
        pytest.param({"running": (running(1, 0, HEAD + " first", done=8, parking=True),)}, id="the leader is parked"),
        pytest.param(
            {"running": (running(1, 0, HEAD + " first", done=8, background=True),)}, id="the leader is of less urgency"
        ),
        pytest.param(
            {"waiting": (waiting(2, HEAD + " second", follow_until=NOW),)}, id="it has waited for others long enough"
        ),
    ],
)
def test_it_does_not_wait_for_another_one_when(changes: dict[str, Any]) -> None:
    assert isinstance(decide(flight(**changes), NOW), Launch)


def test_without_checkpoints_there_is_nothing_to_wait_for_on_a_hybrid() -> None:
    assert isinstance(decide(flight("hybrid", marks=False), NOW), Launch)


def following(position: int = CUT, until: float = NOW + 20) -> Waiting:
    return waiting(2, HEAD + " second", following=Following(1, position), follow_until=until)


def test_a_follower_is_passed_by_others() -> None:
    state = flight(waiting=(following(), waiting(3)))
    assert decide(state, NOW) == Launch(3, Placement(1, COLD))


def test_a_follower_waits_until_the_cut_is_computed() -> None:
    assert follows(following(), flight(), NOW)
    leader = running(1, 0, HEAD + " first", done=CUT)
    assert not follows(following(), flight(running=(leader,)), NOW)


def test_and_until_the_checkpoint_is_there() -> None:
    leader = running(1, 0, HEAD + " first", done=CUT, pending=(CUT,))
    assert follows(following(), flight("hybrid", running=(leader,)), NOW)


@pytest.mark.parametrize("gone", [(), (running(1, 0, HEAD + " first", done=8, parking=True),)])
def test_but_not_for_a_leader_that_has_left(gone: tuple[Running, ...]) -> None:
    assert not follows(following(), flight(running=gone), NOW)


def test_and_not_beyond_its_deadline() -> None:
    assert not follows(following(until=NOW), flight(), NOW)


def test_a_released_follower_shares_what_the_leader_computed() -> None:
    state = flight(
        slots=(busy(0, 1, HEAD + " first", done=CUT), idle(1)),
        running=(running(1, 0, HEAD + " first", done=CUT),),
        waiting=(following(),),
    )
    assert decide(state, NOW) == Launch(2, Placement(1, Resume(CUT, 0, CUT)))


def test_what_is_just_being_saved_is_waited_for_and_others_pass() -> None:
    state = view(
        waiting=(waiting(1, "a saved conversation, more"), waiting(2)),
        saving=(Saving(tokens("a saved conversation")),),
    )
    assert decide(state, NOW) == Launch(2, Placement(0, COLD))


# ---- time -------------------------------------------------------------------------------------------------


def test_time_alone_changes_nothing_when_nobody_waits() -> None:
    assert next_moment(view(), NOW) is None


def test_the_next_moment_is_when_somebody_ages_follows_no_longer_or_has_waited_too_long() -> None:
    assert next_moment(view(waiting=(waiting(1),)), NOW) == 140
    assert next_moment(view(waiting=(waiting(1, background=True),)), NOW) == 120
    assert next_moment(view(waiting=(following(until=105),)), NOW) == 105
    assert next_moment(view(waiting=(waiting(1, begun=True),)), NOW) is None


# ---- anticipations -----------------------------------------------------------------------------------------


def anticipation(request: int, text: str = "abcdef") -> Waiting:
    return waiting(request, text, anticipates=True, reserve=len(text))


def test_an_anticipation_goes_on_where_its_conversation_is_while_nobody_wants_anything() -> None:
    slots = (idle(0), idle(1, "abc"))
    assert decide(view(slots=slots, waiting=(anticipation(1),)), NOW) == Launch(1, Placement(1, Resume(3, 1, 3)))


def test_an_anticipation_goes_into_an_empty_slot_rather_than_to_overwrite_what_others_have() -> None:
    slots = (idle(0, "x" * 50), idle(1))
    assert decide(view(slots=slots, waiting=(anticipation(1),)), NOW) == Launch(1, Placement(1, COLD))


def test_an_anticipation_for_which_others_would_lose_what_their_slots_hold_is_dropped() -> None:
    assert decide(view(slots=(idle(0, "xyz"),), waiting=(anticipation(1),)), NOW) == Drop(1)
    slots = (idle(0), idle(1, "x" * 50))
    assert decide(view(slots=slots, capacity=52, waiting=(anticipation(1),)), NOW) == Drop(1)


def test_an_anticipation_is_dropped_while_another_request_runs_or_waits() -> None:
    slots = (busy(0, 2), idle(1))
    assert decide(view(slots=slots, running=(running(2, 0),), waiting=(anticipation(1),)), NOW) == Drop(1)
    assert decide(view(waiting=(waiting(1), anticipation(2))), NOW) == Drop(2)


def test_an_anticipation_does_not_wait_for_the_engine() -> None:
    assert decide(view(up=False, waiting=(anticipation(1),)), NOW) == Drop(1)


def test_a_running_anticipation_is_stopped_when_a_request_comes_which_waits_until_it_has_stopped() -> None:
    slots = (busy(0, 1, "abcdef", done=2), idle(1))
    ahead = running(1, 0, "abcdef", done=2, anticipates=True)
    assert decide(view(slots=slots, running=(ahead,), waiting=(waiting(2, "abcdef"),)), NOW) == Stop(1)
    stopping = replace(ahead, stopping=True)
    assert decide(view(slots=slots, running=(stopping,), waiting=(waiting(2, "abcdef"),)), NOW) is None
    slots = (idle(0, "ab"), idle(1))
    assert decide(view(slots=slots, waiting=(waiting(2, "abcdef"),)), NOW) == Launch(2, Placement(0, Resume(2, 0, 2)))


def test_anticipations_do_not_disturb_each_other() -> None:
    slots = (busy(0, 1, "abcdef", done=2), idle(1))
    ahead = running(1, 0, "abcdef", done=2, anticipates=True)
    assert decide(view(slots=slots, running=(ahead,)), NOW) is None
    given = view(slots=slots, running=(ahead,), waiting=(anticipation(2, "xyz"),))
    assert decide(given, NOW) == Launch(2, Placement(1, COLD))
