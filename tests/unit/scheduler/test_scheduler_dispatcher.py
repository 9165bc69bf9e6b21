"""The dispatcher's table, with a recording `send` and hand-made messages of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fakes.worker import Kind, load, model_info
from lcpd.engine import protocol as p
from lcpd.engine.supervisor import NotReadyError
from lcpd.metrics import Metrics
from lcpd.scheduler.dispatcher import Dispatcher
from lcpd.scheduler.generation import (
    Begun,
    Done,
    EngineDied,
    EngineFailed,
    Event,
    Generation,
    GenerationRefused,
    Progress,
    Prompt,
    QueueFull,
    Text,
)
from lcpd.scheduler.slots import Span


class Engine:
    """A dispatcher, what it sent, and words to answer with."""

    def __init__(self, slots: int = 1, checkpoints: int = 3, queue_size: int = 8, kind: Kind = "attention") -> None:
        self.sent: list[p.ToWorker] = []
        self.metrics = Metrics()
        self.info = model_info(load(slots), kind)
        self.ready = True
        self.dispatcher = Dispatcher("fake", slots, checkpoints, queue_size, self._send, self.metrics)

    def _send(self, message: p.ToWorker) -> None:
        if not self.ready:
            raise NotReadyError("the engine is restarting")
        self.sent.append(message)

    def up(self) -> Engine:
        self.dispatcher.on_up(self.info)
        return self

    def take(self) -> list[p.ToWorker]:
        """What was sent since the last time."""
        sent, self.sent = self.sent, []
        return sent

    def start(self) -> p.Start:
        """The Start that was sent, and nothing else."""
        (message,) = self.take()
        assert isinstance(message, p.Start)
        return message

    def say(self, *messages: p.FromWorker) -> None:
        for message in messages:
            self.dispatcher.on_message(message)

    def run(self, start: p.Start, reply: str = "xy", reason: p.Reason = "stop") -> None:
        """Carry a Start out: prefill, a token for each letter, one more that ends it."""
        r, length = start.request, len(start.tokens) // 4
        self.say(p.Started(r, start.begin))
        for at, checkpoint in sorted((at, c) for at, c in start.checkpoints.items() if at > start.begin):
            self.say(p.Prefilled(r, at, 0.1), p.Checkpointed(r, checkpoint, at, 50))
        self.say(p.Prefilled(r, length, 0.1))
        for token in [*reply.encode(), 0]:
            self.say(p.Step([p.Output(r, [token], chr(token) if token else "")]))
        self.say(finished(r, reply, reason))

    def figure(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


def finished(request: int, held: str = "", reason: p.Reason = "stop", text: str = "", stop: str = "") -> p.Finished:
    return p.Finished(
        request=request,
        reason=reason,
        text=text,
        stop=stop,
        generated=len(held) + 1,
        held=p.pack(np.array(list(held.encode()), np.int32)),
        prefill_seconds=0.5,
        decode_seconds=0.25,
    )


def prompt(text: str, *spans: Span) -> Prompt:
    return Prompt(np.array(list(text.encode()), np.int32), spans, b"{}", max_tokens=10)


async def events(generation: Generation) -> list[Event]:
    """All events of a generation that is over; raises its error."""
    result: list[Event] = []
    async with asyncio.timeout(10):
        async for batch in generation.batches():
            result += batch
    return result


def pending(generation: Generation) -> bool:
    return not generation.over


def held(engine: Engine, seq: int = 0) -> str:
    return bytes(engine.dispatcher.slots[seq].tokens.astype(np.uint8)).decode()


# ---- waiting -> running -> over ---------------------------------------------------------------------------


async def test_a_prompt_is_sent_whole_with_what_the_engine_needs_to_run_it() -> None:
    engine = Engine().up()
    generation = engine.dispatcher.submit(Prompt(np.array([5, 6, 7], np.int32), (), b'{"seed":1}', max_tokens=9))
    start = engine.start()
    assert start == p.Start(
        model="fake",
        request=generation.id,
        seq=0,
        tokens=p.pack(np.array([5, 6, 7], np.int32)),
        begin=0,
        restore=-1,
        checkpoints={},
        fields=b'{"seed":1}',
        max_tokens=9,
    )


async def test_a_generation_tells_where_it_began_how_far_it_is_every_token_and_the_end() -> None:
    engine = Engine().up()
    generation = engine.dispatcher.submit(prompt("hello"))
    r = engine.start().request
    engine.say(p.Started(r, 0), p.Prefilled(r, 3, 0.1), p.Prefilled(r, 5, 0.1))
    engine.say(p.Step([p.Output(r, [120], "x")]), finished(r, "", "stop-string", text="rest", stop="END"))
    assert await events(generation) == [
        Begun(cached=0),
        Progress(done=3),
        Progress(done=5),
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
    engine = Engine(slots=1).up()
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
    with pytest.raises(QueueFull, match=r"1 requests wait already \(server.queue_size\)"):
        engine.dispatcher.submit(prompt("too many"))
    waiting.close()
    engine.dispatcher.submit(prompt("fits again"))


async def test_messages_of_requests_that_are_not_known_are_ignored() -> None:
    engine = Engine().up()
    engine.say(p.Started(99, 0), p.Prefilled(99, 1, 0.1), p.Checkpointed(99, 1, 1, 1), finished(99))
    engine.say(p.Step([p.Output(99, [1], "x")]), p.Failed(99, "compute", "lost"))
    assert [len(slot.tokens) for slot in engine.dispatcher.slots] == [0]


# ---- what the slots hold ----------------------------------------------------------------------------------


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
    assert (start.begin, start.restore) == (6, -1)
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


async def test_an_evicted_slot_is_known_to_be_empty() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("hello"))
    engine.run(engine.start())
    engine.say(p.Evicted(0))
    engine.dispatcher.submit(prompt("hello again"))
    assert engine.start().begin == 0


async def test_an_eviction_that_crosses_the_next_start_leaves_the_slot_busy() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("hello"))
    engine.run(engine.start())
    generation = engine.dispatcher.submit(prompt("hello again"))
    start = engine.start()
    engine.say(p.Evicted(0))
    assert engine.dispatcher.slots[0].busy
    engine.say(p.Started(start.request, 0), p.Prefilled(start.request, 11, 0.1), finished(start.request))
    assert held(engine) == "hello again"
    assert isinstance((await events(generation))[-1], Done)


# ---- checkpoints ------------------------------------------------------------------------------------------

# "SSSS" system, "uu" user, "R" reply, "vv" user; then "G", the generation prompt.
TURN_1 = prompt("SSSSuuG", Span("system", 0, 4), Span("user", 4, 2))
TURN_2 = prompt("SSSSuuRvvG", Span("system", 0, 4), Span("user", 4, 2), Span("assistant", 6, 1), Span("user", 7, 2))


async def test_models_that_cannot_roll_back_are_asked_for_checkpoints_with_ids_of_their_own() -> None:
    engine = Engine(kind="hybrid").up()
    engine.dispatcher.submit(TURN_1)
    first = engine.start()
    assert list(first.checkpoints) == [4, 6]
    engine.run(first, reply="r")
    engine.dispatcher.submit(TURN_2)
    second = engine.start()
    # 4 and 6 are passed over unless the worker has to begin earlier than asked.
    assert list(second.checkpoints) == [4, 7, 9]
    assert not {*first.checkpoints.values()} & {*second.checkpoints.values()}


@pytest.mark.parametrize(("kind", "limit"), [("attention", 3), ("hybrid", 0)])
async def test_none_are_asked_for_where_they_are_not_needed_or_not_wanted(kind: Kind, limit: int) -> None:
    engine = Engine(kind=kind, checkpoints=limit).up()
    engine.dispatcher.submit(TURN_1)
    assert engine.start().checkpoints == {}


async def test_the_next_turn_is_resumed_from_the_last_checkpoint_that_it_shares() -> None:
    engine = Engine(kind="hybrid").up()
    engine.dispatcher.submit(TURN_1)
    first = engine.start()
    engine.run(first, reply="r")  # the history will have "R" instead
    engine.dispatcher.submit(TURN_2)
    second = engine.start()
    assert (second.begin, second.restore) == (6, first.checkpoints[6])


async def test_checkpoints_beyond_the_resume_point_are_dropped_before_the_start() -> None:
    engine = Engine(kind="hybrid").up()
    engine.dispatcher.submit(TURN_1)
    first = engine.start()
    engine.run(first)
    engine.dispatcher.submit(prompt("SSSSother"))
    drop, start = engine.take()
    assert drop == p.Drop("fake", [first.checkpoints[6]])
    assert isinstance(start, p.Start)
    assert (start.begin, start.restore) == (4, first.checkpoints[4])


async def test_more_checkpoints_than_the_limit_are_thinned_and_dropped_in_the_engine() -> None:
    engine = Engine(kind="hybrid", checkpoints=2).up()
    engine.dispatcher.submit(TURN_1)
    first = engine.start()
    engine.run(first)
    engine.dispatcher.submit(TURN_2)
    second = engine.start()
    engine.run(second)
    assert engine.take() == [p.Drop("fake", [first.checkpoints[6]]), p.Drop("fake", [second.checkpoints[7]])]
    kept = [c.id for c in engine.dispatcher.slots[0].checkpoints]
    assert kept == [first.checkpoints[4], second.checkpoints[9]]


@pytest.mark.parametrize("message", [lambda r: p.Evicted(0), lambda r: p.Failed(r, "compute", "no")])
async def test_checkpoints_of_a_slot_that_was_emptied_are_dropped(message: Callable[[int], p.FromWorker]) -> None:
    engine = Engine(kind="hybrid").up()
    engine.dispatcher.submit(TURN_1)
    first = engine.start()
    engine.run(first, reply="R")
    engine.dispatcher.submit(TURN_2)
    engine.say(message(engine.start().request))
    assert engine.take() == [p.Drop("fake", list(first.checkpoints.values()))]


async def test_checkpoints_of_a_start_that_fell_back_to_0_are_dropped() -> None:
    engine = Engine(kind="hybrid").up()
    engine.dispatcher.submit(TURN_1)
    first = engine.start()
    engine.run(first, reply="R")
    engine.dispatcher.submit(TURN_2)
    engine.say(p.Started(engine.start().request, 0))
    assert engine.take() == [p.Drop("fake", list(first.checkpoints.values()))]


# ---- closing ----------------------------------------------------------------------------------------------


async def test_closing_a_waiting_generation_takes_it_out_of_the_queue() -> None:
    engine = Engine().up()
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


# ---- the engine dies --------------------------------------------------------------------------------------


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
    assert Text((120,), "x") in await events(generation)


async def test_those_that_ran_are_first_in_line_again_in_their_old_order() -> None:
    engine = Engine(slots=2).up()
    generations = [engine.dispatcher.submit(prompt(text)) for text in ("1", "2", "3")]
    engine.take()
    engine.dispatcher.on_down("killed", "crash")
    assert engine.dispatcher.waiting == 3
    engine.up()
    first, second = engine.take()
    assert [m.request for m in (first, second) if isinstance(m, p.Start)] == [g.id for g in generations[:2]]


async def test_a_generation_during_which_the_engine_dies_twice_is_not_run_a_third_time() -> None:
    engine = Engine().up()
    generation = engine.dispatcher.submit(prompt("poison"))
    engine.dispatcher.on_down("killed", "crash")
    engine.up()
    engine.dispatcher.on_down("killed again\nwith a log", "crash")
    with pytest.raises(EngineDied, match=r"killed again$"):
        await events(generation)
    assert engine.dispatcher.waiting == 0


async def test_a_generation_that_has_given_out_a_token_ends_with_an_error_after_what_it_had() -> None:
    engine = Engine().up()
    generation = engine.dispatcher.submit(prompt("hello"))
    r = engine.start().request
    engine.say(p.Started(r, 0), p.Prefilled(r, 5, 0.1), p.Step([p.Output(r, [120], "x")]))
    engine.dispatcher.on_down("killed\nand the log", "crash")
    seen: list[Event] = []
    with pytest.raises(EngineDied, match=r"on this request: killed$"):
        async for batch in generation.batches():
            seen += batch
    assert seen[-1] == Text((120,), "x")
    assert engine.up().take() == []


async def test_a_generation_that_was_closed_is_not_run_again() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("nobody listens")).close()
    engine.take()
    engine.dispatcher.on_down("killed", "crash")
    assert engine.up().take() == []
    assert (engine.dispatcher.waiting, engine.dispatcher.running) == (0, 0)


async def test_checkpoints_of_a_dead_engine_are_not_dropped_in_its_successor() -> None:
    engine = Engine(kind="hybrid").up()
    engine.dispatcher.submit(TURN_1)
    engine.run(engine.start())
    engine.dispatcher.on_down("killed", "crash")
    engine.up().dispatcher.submit(prompt("other"))
    assert engine.start().begin == 0


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


# ---- model_info -------------------------------------------------------------------------------------------


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


# ---- metrics ----------------------------------------------------------------------------------------------


async def test_running_and_waiting_are_shown_as_they_are() -> None:
    engine = Engine().up()

    def load_shown() -> tuple[Any, Any]:
        return engine.figure("lcpd_requests_running"), engine.figure("lcpd_requests_waiting")

    engine.dispatcher.submit(prompt("1"))
    start = engine.start()
    waiting = engine.dispatcher.submit(prompt("2"))
    assert load_shown() == (1, 1)
    waiting.close()
    assert load_shown() == (1, 0)
    engine.run(start)
    assert load_shown() == (0, 0)


async def test_prompt_tokens_are_counted_as_computed_or_reused_and_generated_ones_as_sampled() -> None:
    engine = Engine().up()
    for text in ("hello", "helloxy and more", "helloxy and less"):
        engine.dispatcher.submit(prompt(text))
        engine.run(engine.start(), reply="xy")
    assert engine.figure("lcpd_prompt_tokens_total", source="vram") == 0 + 7 + 12
    assert engine.figure("lcpd_prompt_tokens_total", source="computed") == 5 + 9 + 4
    assert engine.figure("lcpd_generation_tokens_total") == 3 * 3
    assert engine.figure("lcpd_prefill_seconds_count") == 3
    assert engine.figure("lcpd_time_to_first_token_seconds_count") == 3


async def test_restarts_are_counted_by_cause_and_checkpoints_by_size() -> None:
    engine = Engine(kind="hybrid").up()
    engine.dispatcher.submit(TURN_1)
    engine.run(engine.start())
    engine.dispatcher.on_down("silence", "hang")
    assert engine.figure("lcpd_worker_restarts_total", cause="hang") == 1
    assert engine.figure("lcpd_checkpoint_bytes_total") == 100
