"""Checkpoints on models that cannot roll back: which are asked for, and who goes on from them."""

from __future__ import annotations

import numpy as np
import pytest
from dispatcher_bench import TURN_1, TURN_2, Engine, finished, piece, prompt

from fakes.worker import Kind
from lcpd.engine import protocol as p
from lcpd.scheduler.slots import Span


async def test_models_that_cannot_roll_back_are_asked_for_checkpoints_that_there_are_not_yet() -> None:
    engine = Engine(kind="hybrid").up()
    engine.dispatcher.submit(TURN_1)
    first = engine.start()
    assert list(first.checkpoints) == [4, 6]
    engine.run(first, reply="r")
    engine.dispatcher.submit(TURN_2)
    assert list(engine.start().checkpoints) == [7, 9]


@pytest.mark.parametrize(("kind", "limit"), [("attention", 3), ("hybrid", 0)])
async def test_none_are_asked_for_where_they_are_not_needed_or_not_wanted(kind: Kind, limit: int) -> None:
    engine = Engine(kind=kind, checkpoints=limit).up()
    engine.dispatcher.submit(TURN_1)
    assert engine.start().checkpoints == {}


async def test_a_long_prefill_takes_one_at_every_interval_too() -> None:
    engine = Engine(kind="hybrid", checkpoint_interval=10).up()
    engine.dispatcher.submit(prompt("x" * 35))
    assert list(engine.start().checkpoints) == [10, 20, 30]


async def test_they_lie_at_multiples_of_the_alignment_where_cuts_change_what_is_computed() -> None:
    engine = Engine(kind="swa", checkpoint_interval=10, alignment=8).up()
    engine.dispatcher.submit(prompt("x" * 35, Span("user", 0, 30)))
    assert all(at % 8 == 0 for at in engine.start().checkpoints)


async def test_no_more_are_taken_than_there_is_room_for() -> None:
    engine = Engine(kind="hybrid", ram=1500).up()
    engine.dispatcher.submit(TURN_1)
    assert len(engine.start().checkpoints) == 1


async def test_the_next_turn_is_resumed_from_the_last_checkpoint_that_it_shares() -> None:
    engine = Engine(kind="hybrid").up()
    engine.dispatcher.submit(TURN_1)
    first = engine.start()
    engine.run(first, reply="r")  # the history will have "R" instead
    engine.dispatcher.submit(TURN_2)
    second = engine.start()
    assert (second.source, second.shared, second.begin) == (0, 6, 6)
    assert second.restore == piece(first.checkpoints[6])


async def test_a_checkpoint_serves_whoever_comes_along_its_path_on_any_slot() -> None:
    engine = Engine(kind="hybrid", slots=2).up()
    engine.dispatcher.submit(TURN_1)
    first = engine.start()
    engine.run(first)
    engine.dispatcher.submit(prompt("SSSSother"))
    start = engine.start()
    assert (start.seq, start.source, start.shared, start.begin) == (1, 0, 4, 4)
    assert start.restore == piece(first.checkpoints[4])


async def test_room_for_checkpoints_that_were_not_taken_is_given_back_when_the_request_leaves() -> None:
    engine = Engine(kind="hybrid").up()
    generation = engine.dispatcher.submit(TURN_1)
    r = engine.start().request
    assert engine.cache.stats().reserved_bytes == 2000
    engine.say(p.Started(r, 0), p.Prefilled(r, 5, 0.1))  # past the first one, without a word of it
    assert engine.cache.stats().reserved_bytes == 1000
    generation.close()
    engine.say(finished(r, "", "cancelled"))
    assert engine.cache.stats().reserved_bytes == 0


async def test_room_that_commands_in_flight_held_is_given_back_when_the_engine_dies() -> None:
    engine = Engine(kind="hybrid").up()
    engine.dispatcher.submit(TURN_1)
    engine.run(engine.start())
    engine.dispatcher.submit(prompt("something else"))
    (save, _) = engine.take()
    assert isinstance(save, p.Save)
    assert engine.cache.stats().reserved_bytes > 0
    engine.dispatcher.on_down("killed", "crash")
    assert engine.cache.stats().reserved_bytes == 0
    engine.cache.check_integrity()


async def test_where_two_prompts_parted_the_second_leaves_a_checkpoint_and_the_third_resumes_there() -> None:
    engine = Engine(slots=3, kind="hybrid").up()
    head = "a head that is longer than the rest: "
    engine.dispatcher.submit(prompt(head + "one"))
    engine.run(engine.start())
    engine.dispatcher.submit(prompt(head + "two"))
    second = engine.start()
    assert (second.begin, sorted(second.checkpoints)) == (0, [len(head)])
    engine.run(second)
    engine.dispatcher.submit(prompt(head + "three"))
    third = engine.start()
    assert (third.begin, third.shared) == (len(head), len(head))
    assert third.restore == piece(second.checkpoints[len(head)])


async def test_checkpoints_closer_than_their_copy_is_worth_are_not_taken() -> None:
    engine = Engine(kind="hybrid").up()
    engine.dispatcher.submit(prompt("x" * 20))
    first = engine.start()
    # So fast is no machine: its copies are slow by comparison.
    engine.say(p.Started(first.request, 0), p.Prefilled(first.request, 20, 1e-5), finished(first.request))
    engine.dispatcher.submit(prompt("system hello? reply", Span("system", 0, 7), Span("assistant", 13, 6)))
    (second,) = engine.save()
    assert isinstance(second, p.Start)
    assert sorted(second.checkpoints) == [13]  # and not 7


async def test_a_checkpoint_whose_segments_went_with_the_engine_is_taken_again_so_that_they_are_saved() -> None:
    engine = Engine(kind="hybrid", checkpoint_interval=10).up()
    engine.dispatcher.submit(prompt("x" * 35))
    first = engine.start()
    extent = first.checkpoints[10]
    engine.say(p.Started(first.request, 0), p.Prefilled(first.request, 10, 0.1))
    engine.say(p.Checkpointed(first.request, 10, extent, piece(extent)))
    engine.dispatcher.on_down("killed", "crash")  # before what lies below it was saved
    engine.take()
    engine.up()
    again = engine.start()
    assert (again.begin, sorted(again.checkpoints)) == (0, [10, 20, 30])


async def test_neither_a_low_limit_nor_slow_copies_leave_out_one_that_a_crash_is_to_find() -> None:
    engine = Engine(kind="hybrid", checkpoint_interval=10, checkpoints=1).up()
    engine.dispatcher.submit(prompt("x" * 5))
    first = engine.start()
    engine.say(p.Started(first.request, 0), p.Prefilled(first.request, 5, 1e-5), finished(first.request))
    engine.dispatcher.submit(prompt("y" * 35, Span("system", 0, 12), Span("user", 12, 23)))
    (second,) = engine.save()
    assert isinstance(second, p.Start)
    assert max(np.diff([0, *sorted(second.checkpoints), 35])) <= 10
