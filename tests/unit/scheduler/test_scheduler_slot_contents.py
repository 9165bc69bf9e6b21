"""What the dispatcher knows of the slots, and what they leave in RAM."""

from __future__ import annotations

import pytest
from dispatcher_bench import TEXT, TURN_1, Engine, events, finished, held, piece, prompt

from fakes.worker import Kind
from lcpd.engine import protocol as p
from lcpd.scheduler.generation import (
    Begun,
    Done,
    GenerationRefused,
)
from lcpd.scheduler.saving import AHEAD

# ---- what the slots hold -----------------------------------------------------------------------------------


async def test_a_slot_holds_the_prompt_and_the_reply_but_not_the_token_that_was_never_decoded() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("hello"))
    engine.run(engine.start(), reply="xy")
    assert held(engine) == "helloxy"
    assert not engine.dispatcher.slots[0].busy


async def test_the_next_prompt_begins_where_the_slot_and_it_part() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("hello"))
    engine.run(engine.start(), reply="xy")
    generation = engine.dispatcher.submit(prompt("helloxz more"))
    start = engine.start()
    assert (start.begin, start.source, start.shared, start.restore) == (6, 0, 6, None)
    engine.run(start)
    assert (await events(generation))[0] == Begun(cached=6)


async def test_a_slot_grows_batch_by_batch_while_its_prompt_is_computed() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("hello"))
    r = engine.start().request
    engine.say(p.Started(r, 0))
    assert held(engine) == ""
    engine.say(p.Prefilled(r, 2, 0.1))
    assert held(engine) == "he"


async def test_an_engine_that_had_to_begin_earlier_is_believed() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("hello"))
    engine.run(engine.start())
    generation = engine.dispatcher.submit(prompt("hello again"))
    r = engine.start().request
    engine.say(p.Started(r, 0))
    assert held(engine) == ""
    engine.say(p.Prefilled(r, 11, 0.1), finished(r))
    done = (await events(generation))[-1]
    assert isinstance(done, Done)
    assert done.cached == 0


async def test_a_prompt_that_the_engine_refuses_fails_and_the_slot_goes_to_the_next_one_empty() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("hello"))
    engine.run(engine.start())
    failing, following = engine.dispatcher.submit(prompt("hello!")), engine.dispatcher.submit(prompt("hello?"))
    engine.say(p.Failed(engine.start().request, "invalid", "a grammar that does not compile"))
    with pytest.raises(GenerationRefused, match="a grammar that does not compile"):
        await events(failing)
    start = engine.start()
    assert (start.request, start.begin) == (following.id, 0)


async def test_a_failed_request_that_ran_elsewhere_leaves_other_slots_as_they_are() -> None:
    engine = Engine(slots=2).up()
    engine.dispatcher.submit(prompt("hello"))
    engine.run(engine.start())
    engine.dispatcher.submit(prompt("another"))
    engine.say(p.Failed(engine.start().request, "compute", "no"))
    assert (held(engine, 0), held(engine, 1)) == ("helloxy", "")


async def test_a_prompt_shares_what_another_slot_holds_even_while_that_one_runs() -> None:
    engine = Engine(slots=2).up()
    engine.dispatcher.submit(prompt("a common head: mine"))
    first = engine.start()
    engine.prefill(first)
    engine.dispatcher.submit(prompt("a common head: yours"))
    start = engine.start()
    assert (start.seq, start.source, start.shared, start.begin) == (1, first.seq, 15, 15)
    assert [slot.shared for slot in engine.dispatcher.snapshot().slots] == [15, 15]


# ---- RAM ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["attention", "hybrid"])
async def test_what_a_prompt_overwrites_is_saved_first_and_comes_back_with_its_conversation(kind: Kind) -> None:
    engine = Engine(kind=kind).up()
    engine.dispatcher.submit(prompt("hello"))
    engine.run(engine.start())
    engine.dispatcher.submit(prompt("another"))
    save, start = engine.take()
    assert isinstance(save, p.Save)
    assert [(cut.begin, cut.end) for cut in save.cuts] == [(0, 7)]
    assert (save.checkpoint is not None) == (kind == "hybrid")
    assert isinstance(start, p.Start)
    engine.sent.append(save)
    assert engine.save() == []
    engine.run(start)
    engine.dispatcher.submit(prompt("helloxy again"))
    (back,) = engine.save()
    assert isinstance(back, p.Start)
    assert (back.source, back.shared, back.begin) == (-1, 0, 7)
    assert [(segment.begin, segment.end) for segment in back.segments] == [(0, 7)]
    assert (back.restore is not None) == (kind == "hybrid")
    engine.run(back)
    assert engine.figure("lcpd_prompt_tokens_total", source="ram") == 7


async def test_without_room_in_ram_it_is_overwritten_all_the_same() -> None:
    engine = Engine(ram=0).up()
    engine.dispatcher.submit(prompt("hello"))
    engine.run(engine.start())
    engine.dispatcher.submit(prompt("another"))
    assert engine.start().begin == 0


async def test_the_few_tokens_that_the_next_turn_of_a_conversation_drops_are_not_worth_an_export() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("hello"))
    engine.run(engine.start())
    engine.dispatcher.submit(prompt("hello you"))
    assert engine.start().begin == 5


async def test_what_the_cache_knows_survives_the_engine() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("hello"))
    engine.run(engine.start())
    engine.dispatcher.submit(prompt("another"))
    engine.save()
    engine.dispatcher.on_down("killed", "crash")
    engine.up()
    engine.take()
    engine.dispatcher.submit(prompt("helloxy again"))
    assert engine.dispatcher.waiting == 1
    engine.say(finished(2))
    (start,) = engine.save()
    assert isinstance(start, p.Start)
    assert start.begin == 7


@pytest.mark.parametrize("damaged", [True, False])
async def test_a_damaged_piece_is_not_offered_again_but_one_for_which_there_were_no_cells_is(damaged: bool) -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("hello"))
    engine.run(engine.start())
    engine.dispatcher.submit(prompt("another"))
    (start,) = engine.save()
    engine.run(start)  # type: ignore[arg-type]
    engine.dispatcher.submit(prompt("helloxy again"))
    (back,) = engine.save()
    assert isinstance(back, p.Start)
    engine.say(p.Started(back.request, 0, problem="this is why", damaged=damaged))
    assert held(engine) == ""
    assert engine.cache.covered(p.unpack(back.tokens)) == (0 if damaged else 7)
    assert engine.figure("lcpd_prompt_tokens_total", source="ram") == 0


async def test_a_prompt_whose_state_is_just_being_saved_waits_for_that() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("hello world"))
    engine.run(engine.start())
    other = engine.dispatcher.submit(prompt("another"))
    save, start = engine.take()
    engine.dispatcher.submit(prompt("hello world again"))
    engine.say(p.Started(start.request, 0), p.Prefilled(start.request, 7, 0.1), finished(start.request))  # type: ignore[union-attr]
    assert other.over
    assert engine.take() == []
    engine.sent.append(save)
    (back,) = engine.save()
    assert isinstance(back, p.Start)
    assert back.begin >= 11


# ---- what only slots hold is saved in time -----------------------------------------------------------------


async def test_a_slot_that_has_been_idle_for_a_while_is_saved_and_not_again_when_its_place_is_needed() -> None:
    engine = Engine(kind="hybrid").up()
    engine.dispatcher.submit(TURN_1)
    engine.run(engine.start())
    engine.clock.advance(4.9)
    assert engine.take() == []
    engine.clock.advance(0.2)
    (save,) = engine.sent
    assert isinstance(save, p.Save)
    assert save.checkpoint is not None
    engine.save()
    engine.clock.advance(100)
    assert engine.take() == []
    engine.dispatcher.submit(prompt("something else"))
    assert isinstance(engine.take()[0], p.Start)


async def test_idle_slots_are_saved_one_after_the_other() -> None:
    engine = Engine(slots=2).up()
    for text in ("one thing", "another"):
        engine.dispatcher.submit(prompt(text))
        engine.run(engine.start())
    engine.clock.advance(6)
    assert len(engine.sent) == 1
    (first,) = engine.sent
    engine.sent = []
    assert isinstance(first, p.Save)
    segments = [p.Segment(cut.begin, cut.end, piece(cut.extent)) for cut in first.cuts]
    engine.say(p.Saved(first.seq, segments, None))
    (second,) = engine.take()
    assert isinstance(second, p.Save)
    assert second.seq != first.seq


@pytest.mark.parametrize("ram", [0, 128])
async def test_nothing_is_saved_early_where_the_cache_has_no_room_to_speak_of(ram: int) -> None:
    engine = Engine(ram=ram).up()
    engine.dispatcher.submit(prompt(TEXT))
    engine.run(engine.start())
    engine.clock.advance(60)
    assert engine.take() == []


async def test_a_long_prompt_is_saved_while_it_is_computed() -> None:
    engine = Engine(checkpoint_interval=40).up()
    r = engine.dispatcher.submit(prompt("x" * 100)).id
    engine.take()
    engine.say(p.Started(r, 0), p.Prefilled(r, 16, 0.1))
    assert engine.take() == []
    engine.say(p.Prefilled(r, 32, 0.1), p.Prefilled(r, 48, 0.1))
    (save,) = engine.take()
    assert isinstance(save, p.Save)
    assert ([(cut.begin, cut.end) for cut in save.cuts], save.checkpoint) == ([(0, 32)], None)


async def test_a_long_prompt_is_saved_up_to_each_checkpoint_where_those_are_needed() -> None:
    engine = Engine(kind="hybrid", checkpoint_interval=40).up()
    r = engine.dispatcher.submit(prompt("x" * 100)).id
    start = engine.start()
    assert sorted(start.checkpoints) == [40, 80]
    engine.say(p.Started(r, 0), p.Prefilled(r, 40, 0.1))
    assert engine.take() == []
    extent = start.checkpoints[40]
    engine.say(p.Checkpointed(r, 40, extent, piece(extent)))
    (save,) = engine.take()
    assert isinstance(save, p.Save)
    assert ([(cut.begin, cut.end) for cut in save.cuts], save.checkpoint) == ([(0, 40)], None)


async def test_a_long_reply_leaves_a_checkpoint_of_its_tail() -> None:
    engine = Engine(kind="hybrid").up()
    r = engine.dispatcher.submit(prompt("hello")).id
    engine.prefill(engine.start())
    engine.say(p.Step([p.Output(r, [120], "x")]))
    engine.clock.advance(30)
    (mark,) = engine.take()
    assert isinstance(mark, p.Mark)
    assert mark.position == 5 + AHEAD
    engine.say(p.Step([p.Output(r, [120] * AHEAD, "x" * AHEAD)]))
    engine.say(p.Checkpointed(r, mark.position, mark.extent, piece(mark.extent)))
    (save,) = engine.take()
    assert isinstance(save, p.Save)
    assert [(cut.begin, cut.end) for cut in save.cuts] == [(0, mark.position)]
    engine.say(p.Saved(save.seq, [p.Segment(c.begin, c.end, piece(c.extent)) for c in save.cuts], None))
    engine.dispatcher.on_down("killed", "killed")
    assert engine.up().start().begin == mark.position
