"""From the queue to the end of a reply: what a generation and its consumer see."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from dispatcher_bench import Engine, events, finished, held, pending, prompt

from lcpd.engine import protocol as p
from lcpd.scheduler.generation import (
    Begun,
    Done,
    EngineFailed,
    Progress,
    Prompt,
    QueueFull,
    QueueTimedOut,
    Text,
)

# ---- waiting -> running -> over ----------------------------------------------------------------------------


async def test_a_prompt_is_sent_whole_with_what_the_engine_needs_to_run_it() -> None:
    engine = Engine().up()
    generation = engine.dispatcher.submit(
        Prompt(np.array([5, 6, 7], np.int32), (), b'{"seed":1}', max_tokens=9, min_tokens=2, priority="background")
    )
    start = engine.start()
    assert start == p.Start(
        model="fake",
        request=generation.id,
        seq=0,
        tokens=p.pack(np.array([5, 6, 7], np.int32)),
        begin=0,
        fields=b'{"seed":1}',
        max_tokens=9,
        min_tokens=2,
        priority=1,
    )


async def test_a_generation_tells_where_it_began_how_far_it_is_every_token_and_the_end() -> None:
    engine = Engine().up()
    generation = engine.dispatcher.submit(prompt("hello"))
    r = engine.start().request
    engine.say(p.Started(r, 0), p.Prefilled(r, 3, 0.1), p.Prefilled(r, 5, 0.1))
    engine.say(p.Step([p.Output(r, [120], "x")]), finished(r, "", "stop-string", text="rest", stop="END"))
    assert await events(generation) == [
        Begun(cached=0),
        Progress(done=5),  # 3 was out of date when it was looked at
        Text(tokens=(120,), text="x"),
        Done("stop-string", "rest", "END", cached=0, generated=1, prefill_seconds=0.5, decode_seconds=0.25),
    ]


async def test_one_step_of_the_engine_reaches_every_generation_in_it() -> None:
    engine = Engine(slots=2).up()
    a, b = engine.dispatcher.submit(prompt("a")), engine.dispatcher.submit(prompt("b"))
    for message in engine.take():
        assert isinstance(message, p.Start)
        engine.say(p.Started(message.request, 0), p.Prefilled(message.request, 1, 0.1))
    engine.say(p.Step([p.Output(b.id, [2], "two"), p.Output(a.id, [1], "one")]), finished(a.id), finished(b.id))
    assert Text((1,), "one") in await events(a)
    assert Text((2,), "two") in await events(b)


async def test_prompts_wait_for_the_engine_and_then_start_in_the_order_they_came() -> None:
    engine = Engine(slots=2)
    first, second, third = (engine.dispatcher.submit(prompt(text)) for text in ("1", "2", "3"))
    assert engine.take() == []
    assert (engine.dispatcher.waiting, engine.dispatcher.running) == (3, 0)
    engine.up()
    assert [m.request for m in engine.take() if isinstance(m, p.Start)] == [first.id, second.id]
    assert (engine.dispatcher.waiting, engine.dispatcher.running) == (1, 2)
    engine.say(p.Started(second.id, 0), finished(second.id))
    assert engine.start().request == third.id


async def test_a_later_prompt_that_would_fit_an_idle_slot_better_does_not_overtake() -> None:
    engine = Engine(ram=0).up()
    engine.dispatcher.submit(prompt("mine"))
    start = engine.start()
    other, mine = engine.dispatcher.submit(prompt("other")), engine.dispatcher.submit(prompt("mine again"))
    engine.run(start)
    assert engine.start().request == other.id
    assert pending(mine)


async def test_a_queue_that_is_full_refuses_and_takes_prompts_again_when_there_is_room() -> None:
    engine = Engine(slots=1, queue_size=1).up()
    engine.dispatcher.submit(prompt("running"))
    waiting = engine.dispatcher.submit(prompt("waiting"))
    with pytest.raises(QueueFull, match=r"1 requests wait already \(server.queue_size\)") as refused:
        engine.dispatcher.submit(prompt("too many"))
    assert refused.value.retry_after == 20  # two turns of a slot
    waiting.close()
    engine.dispatcher.submit(prompt("fits again"))


async def test_messages_of_requests_that_are_not_known_are_ignored() -> None:
    engine = Engine().up()
    engine.say(p.Started(99, 0), p.Prefilled(99, 1, 0.1), p.Checkpointed(99, 1, p.Extent(0, 1), None), finished(99))
    engine.say(p.Step([p.Output(99, [1], "x")]), p.Failed(99, "compute", "lost"))
    assert [len(slot.tokens) for slot in engine.dispatcher.slots] == [0]


# ---- waiting too long --------------------------------------------------------------------------------------


async def test_a_request_that_waits_too_long_is_told_when_to_try_again() -> None:
    engine = Engine(queue_timeout=10).up()
    engine.dispatcher.submit(prompt("running"))
    waiting = engine.dispatcher.submit(prompt("waiting"))
    engine.clock.advance(10)
    with pytest.raises(QueueTimedOut, match=r"for 10 s \(scheduler.queue_timeout\)") as late:
        await events(waiting)
    assert late.value.retry_after == 10
    assert engine.figure("lcpd_request_outcomes_total", outcome="timed-out") == 1
    assert engine.dispatcher.waiting == 0


async def test_no_timer_is_left_when_nobody_waits() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("running"))
    engine.dispatcher.submit(prompt("waiting")).close()
    assert engine.clock.timers == 0


# ---- slow consumers ----------------------------------------------------------------------------------------


async def test_what_a_slow_consumer_has_not_taken_is_one_event_of_each_kind_in_order() -> None:
    engine = Engine().up()
    generation = engine.dispatcher.submit(prompt("hello"))
    r = engine.start().request
    engine.say(p.Started(r, 0), *(p.Prefilled(r, n, 0.1) for n in range(1, 6)))
    probs = p.TokenProbs(7, -0.5, b"x", [])
    engine.say(*(p.Step([p.Output(r, [7], "x", [probs])]) for _ in range(100)))
    assert generation.unread == 3
    engine.say(finished(r))
    begun, progress, text, _ = await events(generation)
    assert (begun, progress) == (Begun(0), Progress(5))
    assert text == Text((7,) * 100, "x" * 100, (probs,) * 100)


# ---- the view ----------------------------------------------------------------------------------------------


async def test_the_view_tells_what_each_slot_does_and_who_waits() -> None:
    engine = Engine(slots=2, n_ctx=4096).up()
    engine.dispatcher.submit(prompt("hello", client="me", max_tokens=50))
    r = engine.start().request
    engine.clock.advance(1)
    assert engine.dispatcher.snapshot().slots[0].state == "restoring"
    engine.say(p.Started(r, 0), p.Prefilled(r, 3, 0.1))
    assert engine.dispatcher.snapshot().slots[0].state == "prefill"
    engine.say(p.Prefilled(r, 5, 0.1), p.Step([p.Output(r, [1], "x")]))
    engine.clock.advance(2)
    engine.say(p.Step([p.Output(r, [1] * 20, "x")]))
    busy, idle = engine.dispatcher.snapshot().slots
    assert (busy.state, busy.request, busy.n_tokens, busy.prompt_tokens) == ("decode", r, 25, 5)
    assert (busy.done, busy.generated, busy.client, busy.age) == (5, 21, "me", 3.0)
    assert busy.tokens_per_second == 10
    assert (idle.state, idle.request) == ("idle", None)
    engine.dispatcher.submit(prompt("more"))
    engine.dispatcher.submit(prompt("and more", priority="background"))
    engine.clock.advance(4)
    (waiting,) = engine.dispatcher.snapshot().waiting
    assert (waiting.state, waiting.priority, waiting.waited, waiting.prompt_tokens) == ("waiting", "background", 4, 8)
    assert engine.dispatcher.snapshot().cells == 4096


# ---- closing -----------------------------------------------------------------------------------------------


async def test_closing_a_waiting_generation_takes_it_out_of_the_queue() -> None:
    engine = Engine(ram=0).up()
    engine.dispatcher.submit(prompt("running"))
    start = engine.start()
    waiting, next_one = engine.dispatcher.submit(prompt("waiting")), engine.dispatcher.submit(prompt("next"))
    waiting.close()
    assert engine.take() == []
    engine.run(start)
    assert engine.start().request == next_one.id


async def test_closing_a_running_generation_cancels_it_and_the_slot_keeps_what_was_computed() -> None:
    engine = Engine().up()
    generation = engine.dispatcher.submit(prompt("hello"))
    r = engine.start().request
    engine.say(p.Started(r, 0), p.Prefilled(r, 3, 0.1))
    generation.close()
    generation.close()
    assert engine.take() == [p.Cancel("fake", r)]
    assert engine.dispatcher.slots[0].busy  # until the engine confirms
    engine.say(finished(r, "", "cancelled"))
    assert held(engine) == "hel"
    assert engine.dispatcher.running == 0


async def test_closing_a_generation_that_is_over_does_nothing() -> None:
    engine = Engine().up()
    generation = engine.dispatcher.submit(prompt("hello"))
    engine.run(engine.start())
    generation.close()
    assert engine.take() == []


# ---- model_info --------------------------------------------------------------------------------------------


async def test_model_info_waits_for_the_first_load() -> None:
    engine = Engine()
    asking = asyncio.create_task(engine.dispatcher.model_info())
    await asyncio.sleep(0)
    assert not asking.done()
    engine.up()
    assert await asking == engine.info


async def test_model_info_of_an_engine_that_never_loaded_is_an_error_for_all_who_ask() -> None:
    engine = Engine()
    asking = asyncio.create_task(engine.dispatcher.model_info())
    await asyncio.sleep(0)
    engine.dispatcher.on_failed("no such file")
    for awaitable in (asking, engine.dispatcher.model_info()):
        with pytest.raises(EngineFailed, match="no such file"):
            await awaitable


async def test_whoever_stops_asking_for_model_info_does_not_disturb_the_others() -> None:
    engine = Engine()
    impatient = asyncio.create_task(engine.dispatcher.model_info())
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.gather(impatient, return_exceptions=True)
    engine.up()
    assert await engine.dispatcher.model_info() == engine.info
