"""Who gets cells and slots when there are not enough: eviction, parking, classes."""

from __future__ import annotations

import numpy as np
from dispatcher_bench import Engine, events, finished, held, parked, prompt, text

from lcpd.engine import protocol as p
from lcpd.scheduler.generation import (
    Begun,
    Done,
    Text,
)

# ---- cells -------------------------------------------------------------------------------------------------


async def test_idle_slots_are_emptied_for_a_prompt_that_needs_their_cells_the_one_used_longest_ago_first() -> None:
    engine = Engine(slots=3, n_ctx=120).up()
    for talk in ("a" * 30, "b" * 30):
        engine.dispatcher.submit(prompt(talk))
        engine.run(engine.start())
        engine.clock.advance(1)
    engine.dispatcher.submit(prompt("c" * 50))
    save, clear, start = engine.take()
    assert isinstance(save, p.Save)
    assert clear == p.Clear("fake", 0)
    assert isinstance(start, p.Start)
    assert (held(engine, 0), held(engine, 1)) == ("", "b" * 30 + "xy")


async def test_a_prompt_waits_for_cells_that_running_ones_hold() -> None:
    engine = Engine(slots=2, n_ctx=100).up()
    engine.dispatcher.submit(prompt("a" * 60))
    first = engine.start()
    waiting = engine.dispatcher.submit(prompt("b" * 60))
    assert engine.take() == []
    engine.run(first)
    assert [m.request for m in engine.save() if isinstance(m, p.Start)] == [waiting.id]


async def test_purely_recurrent_state_takes_no_cells_so_every_slot_can_be_as_long_as_the_context() -> None:
    engine = Engine(slots=2, n_ctx=100, kind="recurrent").up()
    engine.dispatcher.submit(prompt("a" * 60))
    engine.dispatcher.submit(prompt("b" * 60))
    assert [start.seq for start in engine.take() if isinstance(start, p.Start)] == [0, 1]


async def test_replies_that_outgrow_the_cache_park_the_youngest_which_goes_on_when_there_is_room() -> None:
    engine = Engine(slots=2, n_ctx=100).up()
    old = engine.dispatcher.submit(prompt("a" * 30, max_tokens=60))
    young = engine.dispatcher.submit(prompt("b" * 30, max_tokens=60))
    starts = engine.take()
    for start in starts:
        engine.prefill(start)  # type: ignore[arg-type]
    for _ in range(6):
        engine.say(p.Step([p.Output(r, [120], "x") for r in (old.id, young.id)]))
    assert engine.take() == [p.Park("fake", young.id)]
    assert engine.figure("lcpd_num_preemptions_total", reason="cells") == 1
    assert engine.dispatcher.snapshot().slots[1].state == "parking"
    engine.say(parked(young.id, "b" * 30, done=30, generated="xxxxxx", seq=1))
    assert [one.state for one in engine.dispatcher.snapshot().waiting] == ["parked"]
    assert engine.take() == []
    engine.say(finished(old.id, "xxxxx"))
    back = engine.start()
    assert (back.request, back.reply) == (young.id, p.pack(np.array([120] * 6, np.int32)))
    assert back.tokens == p.pack(young.prompt.tokens)
    assert (back.source, back.begin) == (1, 35)  # all but the last token are still there
    engine.say(p.Started(young.id, 35), p.Step([p.Output(young.id, [121], "y")]), finished(young.id, "xxxxxx"))
    seen = await events(young)
    assert seen[0] == Begun(0)
    assert sum(isinstance(event, Begun) for event in seen) == 1
    assert "".join(event.text for event in seen if isinstance(event, Text)) == "xxxxxxy"


async def test_the_last_running_request_is_never_parked() -> None:
    engine = Engine(slots=2, n_ctx=64).up()
    only = engine.dispatcher.submit(prompt("a" * 30, max_tokens=34))
    engine.prefill(engine.start())
    for _ in range(33):
        engine.say(p.Step([p.Output(only.id, [120], "x")]))
    engine.say(p.Starved(1))
    assert engine.take() == []


async def test_an_engine_that_lacks_cells_against_our_count_gets_those_of_an_idle_slot() -> None:
    engine = Engine(slots=2).up()
    engine.dispatcher.submit(prompt("idle"))
    engine.run(engine.start())
    engine.dispatcher.submit(prompt("running"))
    engine.start()
    engine.say(p.Starved(3))
    assert engine.save() == [p.Clear("fake", 0)]


async def test_an_engine_that_lacks_cells_while_nothing_is_idle_has_one_request_parked() -> None:
    engine = Engine(slots=2).up()
    generations = [engine.dispatcher.submit(prompt(text)) for text in ("one", "two")]
    for start in engine.take():
        engine.say(p.Started(start.request, 0))  # type: ignore[union-attr]
    engine.say(p.Starved(3))
    assert engine.take() == [p.Park("fake", generations[1].id)]
    engine.say(parked(generations[1].id, "two", done=2, seq=1))
    messages = engine.save()
    assert messages[0] == p.Clear("fake", 1)


# ---- classes -----------------------------------------------------------------------------------------------


async def test_an_interactive_request_takes_the_slot_of_a_background_one() -> None:
    engine = Engine().up()
    background = engine.dispatcher.submit(prompt("a title", priority="background"))
    engine.prefill(engine.start())
    urgent = engine.dispatcher.submit(prompt("quick"))
    assert engine.take() == [p.Park("fake", background.id)]
    assert engine.figure("lcpd_num_preemptions_total", reason="slot") == 1
    engine.say(p.Step([p.Output(background.id, [120], "x")]), parked(background.id, "a title", done=7, generated="x"))
    (start,) = engine.save()
    assert isinstance(start, p.Start)
    assert start.request == urgent.id
    engine.run(start)
    (back,) = engine.save()
    assert isinstance(back, p.Start)
    assert (back.request, back.begin) == (background.id, 7)


async def test_one_that_the_engine_has_not_begun_with_is_parked_when_it_has() -> None:
    engine = Engine().up()
    background = engine.dispatcher.submit(prompt("a title", priority="background"))
    engine.take()
    engine.dispatcher.submit(prompt("quick"))
    assert engine.take() == []
    engine.say(p.Started(background.id, 0))
    assert engine.take() == [p.Park("fake", background.id)]


async def test_a_background_request_that_waited_long_enough_is_no_longer_parked() -> None:
    engine = Engine(ageing=5).up()
    engine.dispatcher.submit(prompt("running"))
    first = engine.start()
    aged = engine.dispatcher.submit(prompt("a title", priority="background"))
    engine.clock.advance(6)
    engine.run(first)
    (start,) = engine.save()
    assert isinstance(start, p.Start)
    assert (start.request, start.priority) == (aged.id, 0)
    engine.say(p.Started(aged.id, 0))
    engine.dispatcher.submit(prompt("quick"))
    assert engine.take() == []


async def test_parking_that_crosses_the_end_of_the_reply_is_over_with_it() -> None:
    engine = Engine().up()
    background = engine.dispatcher.submit(prompt("a title", priority="background"))
    engine.prefill(engine.start())
    urgent = engine.dispatcher.submit(prompt("quick"))
    engine.say(finished(background.id))
    assert isinstance((await events(background))[-1], Done)
    assert [m.request for m in engine.save() if isinstance(m, p.Start)] == [urgent.id]


async def test_a_parked_request_that_is_closed_is_cancelled_in_the_engine_and_gone() -> None:
    engine = Engine().up()
    background = engine.dispatcher.submit(prompt("a title", priority="background"))
    engine.prefill(engine.start())
    urgent = engine.dispatcher.submit(prompt("quick"))
    engine.say(parked(background.id, "a title", done=7, generated="x"))
    start = next(m for m in engine.save() if isinstance(m, p.Start))
    background.close()
    assert engine.take() == [p.Cancel("fake", background.id)]
    engine.say(finished(background.id, "", "cancelled"))
    assert engine.dispatcher.waiting == 0
    engine.run(start)
    assert urgent.over
    assert engine.save() == []


async def test_one_that_is_closed_while_it_is_being_parked_is_gone_when_the_engine_confirms_either() -> None:
    engine = Engine().up()
    background = engine.dispatcher.submit(prompt("a title", priority="background"))
    engine.prefill(engine.start())
    engine.dispatcher.submit(prompt("quick"))
    background.close()
    assert engine.take() == [p.Park("fake", background.id), p.Cancel("fake", background.id)]
    engine.say(parked(background.id, "a title", done=7, generated="x"), finished(background.id, "", "cancelled"))
    assert (engine.dispatcher.running, engine.dispatcher.waiting) == (1, 0)


async def test_a_parked_request_goes_on_with_its_reply_when_the_engine_dies_and_is_no_suspect() -> None:
    engine = Engine().up()
    shown = engine.dispatcher.submit(prompt("a title", priority="background"))
    engine.prefill(engine.start())
    engine.say(p.Step([p.Output(shown.id, [120], "x")]))
    urgent = engine.dispatcher.submit(prompt("quick"))
    engine.say(parked(shown.id, "a title", done=7, generated="x"))
    engine.take()
    engine.dispatcher.on_down("crashed", "crash")
    engine.up()
    start = engine.start()
    assert start.request == urgent.id
    engine.run(start)
    (again,) = engine.save()
    assert isinstance(again, p.Start)
    assert (again.request, text(again.reply)) == (shown.id, "x")


async def test_a_request_parked_in_its_prefill_is_run_again_when_the_engine_dies() -> None:
    engine = Engine().up()
    hidden = engine.dispatcher.submit(prompt("a title", priority="background"))
    engine.say(p.Started(engine.start().request, 0), p.Prefilled(hidden.id, 3, 0.1))
    urgent = engine.dispatcher.submit(prompt("quick"))
    engine.say(parked(hidden.id, "a title", done=3))
    engine.dispatcher.on_down("killed", "crash")
    urgent.close()
    engine.take()
    engine.up()
    start = engine.start()
    assert (start.request, start.reply) == (hidden.id, b"")
