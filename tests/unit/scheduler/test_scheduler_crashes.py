"""The engine dies: what goes on, who is suspected, who is given up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dispatcher_bench import Engine, events, finished, held, pending, prompt, replace_info, text

from lcpd.engine import protocol as p
from lcpd.engine.supervisor import SLEEP
from lcpd.scheduler.generation import (
    Begun,
    Done,
    EngineFailed,
    GenerationFailed,
    Prompt,
    Quarantined,
    Text,
)
from lcpd.scheduler.recovery import FAULTS


async def test_a_generation_without_a_token_is_run_again_and_does_not_notice() -> None:
    engine = Engine().up()
    generation = engine.dispatcher.submit(prompt("hello"))
    r = engine.start().request
    engine.say(p.Started(r, 0), p.Prefilled(r, 3, 0.1))
    engine.dispatcher.on_down("killed", "crash")
    assert pending(generation)
    assert held(engine) == ""
    engine.up()
    start = engine.start()
    assert (start.request, start.begin) == (r, 0)
    engine.run(start, reply="x")
    assert [event for event in await events(generation) if isinstance(event, Begun | Text)] == [
        Begun(0),
        Text((120, 0), "x"),
    ]


async def test_those_that_ran_are_first_in_line_again_in_their_old_order() -> None:
    engine = Engine(slots=2).up()
    generations = [engine.dispatcher.submit(prompt(text)) for text in ("1", "2", "3")]
    engine.take()
    engine.dispatcher.on_down("killed", "crash")
    assert engine.dispatcher.waiting == 3
    engine.up()
    first = engine.start()
    engine.prefill(first)
    engine.say(p.Step([p.Output(first.request, [120], "x")]))
    assert [first.request, engine.start().request] == [g.id for g in generations[:2]]


async def test_a_generation_that_ran_alone_when_the_engine_died_twice_is_quarantined() -> None:
    engine = Engine().up()
    generation = engine.dispatcher.submit(prompt("poison"))
    engine.dispatcher.on_down("aborted", "crash")
    engine.up()
    engine.dispatcher.on_down("aborted again\nwith a log", "crash")
    with pytest.raises(Quarantined, match=r"crashed the engine twice.*\(aborted again\), and is quarantined"):
        await events(generation)
    assert engine.dispatcher.waiting == 0


async def test_the_same_request_is_refused_at_once_until_the_quarantine_is_over_and_others_are_not() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("poison"))
    engine.dispatcher.on_down("aborted", "crash")
    engine.up()
    engine.dispatcher.on_down("aborted", "hang")
    with pytest.raises(Quarantined, match="refused for another 600 s"):
        engine.dispatcher.submit(prompt("poison"))
    engine.dispatcher.submit(replace(prompt("poison"), sampling=b'{"top_k":1}')).close()
    engine.clock.advance(600)
    engine.dispatcher.submit(prompt("poison"))


async def test_nobody_is_blamed_when_the_engine_is_put_to_sleep() -> None:
    engine = Engine().up()
    ahead = engine.dispatcher.submit(prompt("ahead", kind="prefill", max_tokens=0))
    engine.dispatcher.on_down("the engine is put to sleep", SLEEP)
    assert isinstance((await events(ahead))[-1], Done)
    for _ in range(FAULTS + 1):
        engine.up()
        engine.dispatcher.submit(prompt("late"))
        engine.dispatcher.on_down("the engine is put to sleep", SLEEP)
    assert engine.figure("lcpd_request_outcomes_total", outcome="quarantined") == 0
    assert engine.dispatcher.waiting == FAULTS + 1


async def test_a_generation_that_has_given_out_tokens_goes_on_behind_them() -> None:
    engine = Engine().up()
    generation = engine.dispatcher.submit(prompt("hello"))
    r = engine.start().request
    engine.say(p.Started(r, 0), p.Prefilled(r, 5, 0.1), p.Step([p.Output(r, [120], "x")]))
    engine.dispatcher.on_down("killed\nand the log", "killed")
    start = engine.up().start()
    assert (start.request, text(start.tokens), text(start.reply)) == (r, "hello", "x")
    engine.say(p.Started(r, 0), p.Prefilled(r, 5, 0.1), p.Step([p.Output(r, [121], "y")]), finished(r, "xy"))
    told = await events(generation)
    assert [event for event in told if isinstance(event, Begun | Text)] == [Begun(0), Text((120, 121), "xy")]
    assert isinstance(told[-1], Done)


async def test_being_killed_from_outside_is_borne_twenty_times_without_any_progress() -> None:
    engine = Engine().up()
    generation = engine.dispatcher.submit(prompt("unlucky"))
    for _ in range(19):
        engine.dispatcher.on_down("killed", "killed")
        engine.up()
    assert pending(generation)
    engine.dispatcher.on_down("killed", "killed")
    with pytest.raises(Quarantined, match="20 times"):
        await events(generation)


async def test_what_ran_when_the_engine_died_goes_on_one_at_a_time_and_the_rest_waits_for_that() -> None:
    engine = Engine(slots=3).up()
    one, two = engine.dispatcher.submit(prompt("one")), engine.dispatcher.submit(prompt("two"))
    for start in engine.take():
        assert isinstance(start, p.Start)
        engine.prefill(start)
    engine.dispatcher.on_down("aborted", "crash")
    other = engine.dispatcher.submit(prompt("three"))
    engine.up()
    start = engine.start()
    assert start.request == one.id
    engine.prefill(start)
    assert engine.take() == []  # it stands where it stood
    engine.say(p.Step([p.Output(one.id, [120], "x")]))
    start = engine.start()
    assert start.request == two.id
    engine.prefill(start)
    engine.say(p.Step([p.Output(two.id, [120], "x")]))
    assert engine.start().request == other.id


async def test_the_one_that_was_there_each_time_stands_first_in_line() -> None:
    engine = Engine(slots=2).up()
    bystander, poison = engine.dispatcher.submit(prompt("one")), engine.dispatcher.submit(prompt("two"))
    engine.take()
    engine.dispatcher.on_down("aborted", "crash")
    engine.up()
    start = engine.start()
    engine.prefill(start)
    engine.say(p.Step([p.Output(bystander.id, [120], "x")]))
    assert engine.start().request == poison.id
    engine.dispatcher.on_down("aborted", "crash")
    engine.up()
    assert engine.start().request == poison.id  # and alone
    engine.dispatcher.on_down("aborted", "crash")
    with pytest.raises(Quarantined):
        await events(poison)
    assert engine.up().start().request == bystander.id


async def test_a_hang_is_a_death_like_others() -> None:
    engine = Engine().up()
    generation = engine.dispatcher.submit(prompt("hello"))
    engine.take()
    engine.dispatcher.on_down("no sign of life", "hang")
    assert engine.up().start().request == generation.id


async def test_what_does_not_fit_into_a_smaller_context_after_a_restart_is_an_error_or_cut_short() -> None:
    engine = Engine(slots=2, n_ctx=400).up()
    fits = engine.dispatcher.submit(replace(prompt("fits"), max_tokens=300))
    large = engine.dispatcher.submit(prompt("x" * 120))
    engine.take()
    engine.dispatcher.on_down("out of memory", "memory")
    engine.info = replace_info(engine.info, n_ctx=100)
    start = engine.up().start()
    assert (start.request, start.max_tokens) == (fits.id, 96)
    with pytest.raises(GenerationFailed, match="context of 100 tokens"):
        await events(large)


async def test_in_a_smaller_context_a_prompt_goes_on_before_the_segment_that_does_not_fit_into_it_any_more() -> None:
    engine = Engine(n_ctx=400).up()
    for size in (50, 120):
        engine.dispatcher.submit(prompt("x" * size))
        engine.run(engine.start(), reply="")
        engine.dispatcher.save(0)
        assert engine.save() == []
    engine.dispatcher.on_down("out of memory", "memory")
    engine.info = replace_info(engine.info, n_ctx=100)
    engine.up()
    engine.dispatcher.submit(prompt("x" * 95, max_tokens=5))
    start = engine.start()
    assert (start.begin, [(one.begin, one.end) for one in start.segments]) == (50, [(0, 50)])


async def test_an_anticipation_during_which_the_engine_dies_is_over() -> None:
    engine = Engine().up()
    ahead = engine.dispatcher.submit(Prompt(prompt("hello").tokens, (), b"{}", 0, kind="prefill"))
    engine.take()
    engine.dispatcher.on_down("aborted", "crash")
    assert isinstance((await events(ahead))[-1], Done)
    assert engine.up().take() == []
    with pytest.raises(Quarantined):
        engine.dispatcher.submit(ahead.prompt)


async def test_a_generation_that_was_closed_is_not_run_again() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("nobody listens")).close()
    engine.take()
    engine.dispatcher.on_down("killed", "crash")
    assert engine.up().take() == []
    assert (engine.dispatcher.waiting, engine.dispatcher.running) == (0, 0)


async def test_a_start_that_could_not_be_sent_because_the_engine_just_died_is_sent_to_the_next_one() -> None:
    engine = Engine().up()
    engine.ready = False
    generation = engine.dispatcher.submit(prompt("hello"))
    engine.dispatcher.on_down("killed", "crash")
    engine.ready = True
    engine.up()
    assert engine.start().request == generation.id


async def test_an_engine_that_fails_for_good_fails_all_that_run_or_wait_or_come_later() -> None:
    engine = Engine(slots=1).up()
    running, waiting = engine.dispatcher.submit(prompt("1")), engine.dispatcher.submit(prompt("2"))
    engine.dispatcher.on_down("killed", "crash")
    engine.dispatcher.on_failed("crash loop: 5 crashes\nand a log")
    for generation in (running, waiting):
        with pytest.raises(EngineFailed, match=r"crash loop: 5 crashes$"):
            await events(generation)
    with pytest.raises(EngineFailed, match=r"crash loop: 5 crashes$"):
        engine.dispatcher.submit(prompt("3"))
    assert (engine.dispatcher.running, engine.dispatcher.waiting) == (0, 0)
