"""The dispatcher's table, with a recording `send` and hand-made messages of the engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from fakes.clock import FakeClock
from fakes.worker import Kind, load, model_info
from lcpd.cache.arena import Arena
from lcpd.cache.cache import PromptCache
from lcpd.engine import protocol as p
from lcpd.engine.supervisor import SLEEP, NotReadyError
from lcpd.metrics import Metrics
from lcpd.scheduler.dispatcher import Dispatcher
from lcpd.scheduler.generation import (
    Begun,
    Done,
    EngineFailed,
    Event,
    Generation,
    GenerationFailed,
    GenerationRefused,
    Progress,
    Prompt,
    Quarantined,
    QueueFull,
    QueueTimedOut,
    Text,
)
from lcpd.scheduler.policy import Policy
from lcpd.scheduler.recovery import FAULTS
from lcpd.scheduler.report import NOTHING
from lcpd.scheduler.saving import AHEAD
from lcpd.scheduler.slots import Span


class Engine:
    """A dispatcher, what it sent, and words to answer with."""

    def __init__(
        self,
        slots: int = 1,
        kind: Kind = "attention",
        n_ctx: int = 4096,
        ram: int = 1 << 20,
        alignment: int = 1,
        **policy: Any,
    ) -> None:
        self.sent: list[p.ToWorker] = []
        self.metrics = Metrics()
        self.clock = FakeClock()
        self.info = model_info(load(slots), kind, n_ctx, alignment)
        self.ready = True
        self.arena = Arena(ram)
        self.cache = PromptCache(self.arena, clock=self.clock.now)
        self.dispatcher = Dispatcher(
            "fake", slots, Policy(**{"follow_min": 4, **policy}), self.cache, self._send, self.metrics, self.clock
        )

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
        self.prefill(start)
        for token in [*reply.encode(), 0]:
            self.say(p.Step([p.Output(start.request, [token], chr(token) if token else "")]))
        self.say(finished(start.request, reply, reason))

    def prefill(self, start: p.Start) -> None:
        """Begin, and compute all of the prompt."""
        r = start.request
        self.say(p.Started(r, start.begin))
        for at, extent in sorted(start.checkpoints.items()):
            self.say(p.Prefilled(r, at, 0.1), p.Checkpointed(r, at, extent, piece(extent)))
        self.say(p.Prefilled(r, len(start.tokens) // 4 + len(start.reply) // 4, 0.1))

    def save(self) -> list[p.ToWorker]:
        """Carry out the Saves among what was sent, and those that are sent meanwhile; returns the rest."""
        rest: list[p.ToWorker] = []
        while self.sent:
            message = self.sent.pop(0)
            if isinstance(message, p.Save):
                segments = [p.Segment(cut.begin, cut.end, piece(cut.extent)) for cut in message.cuts]
                checkpoint = piece(message.checkpoint) if message.checkpoint else None
                self.say(p.Saved(message.seq, segments, checkpoint))
            else:
                rest.append(message)
        return rest

    def figure(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


def text(tokens: bytes) -> str:
    return bytes(p.unpack(tokens).tolist()).decode()


def replace_info(info: p.ModelInfo, **changes: Any) -> p.ModelInfo:
    return msgspec.structs.replace(info, **changes)


def piece(extent: p.Extent) -> p.Piece:
    return p.Piece(extent, b"0123456789abcdef")


def parked(request: int, text: str, done: int, generated: str = "", seq: int = 0) -> p.Parked:
    """`generated`: tokens so far, of which the last is not held."""
    tokens = np.array(list(generated.encode()), np.int32)
    return p.Parked(request, seq, done, p.pack(tokens[:-1]), p.pack(tokens))


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


def prompt(text: str, *spans: Span, max_tokens: int = 10, **rest: Any) -> Prompt:
    return Prompt(np.array(list(text.encode()), np.int32), spans, b"{}", max_tokens, **rest)


async def events(generation: Generation) -> list[Event]:
    """All events of a generation that is over, without cache reports; raises its error."""
    result: list[Event] = []
    async with asyncio.timeout(10):
        async for batch in generation.batches():
            result += [replace(event, report=NOTHING) if isinstance(event, Begun) else event for event in batch]
    return result


def pending(generation: Generation) -> bool:
    return not generation.over


def held(engine: Engine, seq: int = 0) -> str:
    return bytes(engine.dispatcher.slots[seq].tokens.astype(np.uint8)).decode()


# ---- waiting -> running -> over ---------------------------------------------------------------------------


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


# ---- checkpoints ------------------------------------------------------------------------------------------

# "SSSS" system, "uu" user, "R" reply, "vv" user; then "G", the generation prompt.
TURN_1 = prompt("SSSSuuG", Span("system", 0, 4), Span("user", 4, 2))
TURN_2 = prompt("SSSSuuRvvG", Span("system", 0, 4), Span("user", 4, 2), Span("assistant", 6, 1), Span("user", 7, 2))


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


# ---- RAM --------------------------------------------------------------------------------------------------


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


# ---- cells ------------------------------------------------------------------------------------------------


async def test_idle_slots_are_emptied_for_a_prompt_that_needs_their_cells_the_one_used_longest_ago_first() -> None:
    engine = Engine(slots=3, n_ctx=120).up()
    for text in ("a" * 30, "b" * 30):
        engine.dispatcher.submit(prompt(text))
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
    assert engine.figure("lcpd_preemptions_total", reason="cells") == 1
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


# ---- classes ----------------------------------------------------------------------------------------------


async def test_an_interactive_request_takes_the_slot_of_a_background_one() -> None:
    engine = Engine().up()
    background = engine.dispatcher.submit(prompt("a title", priority="background"))
    engine.prefill(engine.start())
    urgent = engine.dispatcher.submit(prompt("quick"))
    assert engine.take() == [p.Park("fake", background.id)]
    assert engine.figure("lcpd_preemptions_total", reason="slot") == 1
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


# ---- anticipations ----------------------------------------------------------------------------------------


def ahead(text: str) -> Prompt:
    return prompt(text, max_tokens=0, priority="background", kind="prefill")


async def test_an_anticipation_computes_a_prompt_and_its_slot_holds_it() -> None:
    engine = Engine().up()
    generation = engine.dispatcher.submit(ahead("what may come"))
    start = engine.start()
    assert (start.max_tokens, start.priority) == (0, 2)
    engine.prefill(start)
    engine.say(finished(start.request, "", "length"))
    done = (await events(generation))[-1]
    assert isinstance(done, Done)
    assert done.reason == "length"
    assert held(engine) == "what may come"
    engine.dispatcher.submit(prompt("what may come, and did"))
    assert engine.start().begin == 13


async def test_an_anticipation_counts_as_anticipated_tokens_and_as_nothing_else() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("hello"))
    engine.run(engine.start(), "")
    engine.dispatcher.submit(ahead("hello, you"))
    assert engine.figure("lcpd_requests_running") == 0
    start = engine.start()
    engine.prefill(start)
    engine.say(finished(start.request, "", "length"))
    assert engine.figure("lcpd_prompt_tokens_total", source="anticipated") == 5
    assert engine.figure("lcpd_prompt_tokens_total", source="computed") == 5
    assert engine.figure("lcpd_prompt_tokens_total", source="vram") == 0
    assert engine.figure("lcpd_prefill_seconds_count") == 1
    assert engine.figure("lcpd_time_to_first_token_seconds_count") == 1
    assert engine.figure("lcpd_cache_misses_total", reason="cold") == 5


async def test_a_request_stops_an_anticipation_and_goes_on_from_where_it_stood() -> None:
    engine = Engine(slots=2).up()
    anticipated = engine.dispatcher.submit(ahead("what may come"))
    start = engine.start()
    engine.say(p.Started(start.request, 0), p.Prefilled(start.request, 8, 0.1))
    request = engine.dispatcher.submit(prompt("what may come, and did"))
    assert engine.take() == [p.Cancel("fake", anticipated.id)]
    engine.say(p.Prefilled(start.request, 10, 0.1), finished(start.request, "", "cancelled"))
    came = engine.start()
    assert (came.request, came.seq, came.begin) == (request.id, start.seq, 10)
    done = (await events(anticipated))[-1]
    assert isinstance(done, Done)
    assert done.reason == "cancelled"


async def test_an_anticipation_that_comes_while_others_run_is_over_at_once() -> None:
    engine = Engine(slots=2).up()
    engine.dispatcher.submit(prompt("hello"))
    engine.take()
    anticipated = engine.dispatcher.submit(ahead("what may come"))
    assert engine.take() == []
    assert await events(anticipated) == [Done("cancelled", "", "", 0, 0, 0.0, 0.0)]


async def test_an_anticipation_is_not_run_again_when_the_engine_dies() -> None:
    engine = Engine().up()
    anticipated = engine.dispatcher.submit(ahead("what may come"))
    engine.take()
    engine.dispatcher.on_down("killed", "crash")
    assert anticipated.over
    engine.up()
    assert engine.take() == []


async def test_an_anticipation_that_did_not_come_true_is_no_earlier_prompt() -> None:
    engine = Engine().up()
    start_text = "a conversation that goes on: "
    engine.dispatcher.submit(prompt(start_text))
    engine.run(engine.start(), "")
    engine.dispatcher.submit(ahead(start_text + "like this"))
    start = engine.start()
    engine.prefill(start)
    engine.say(finished(start.request, "", "length"))
    engine.dispatcher.on_down("killed", "crash")
    engine.up()
    engine.dispatcher.submit(prompt(start_text + "like this", name="next"))
    engine.prefill(engine.start())
    report = engine.dispatcher.report("next")
    assert report is not None
    assert [part.reason for part in report.reasons] == ["engine restarted", "last token"]


# ---- single flight ----------------------------------------------------------------------------------------

LEADER = prompt("a head that all of them share|first")
FOLLOWER = prompt("a head that all of them share|second")
CUT = 30


async def test_a_prompt_waits_while_another_one_computes_what_both_share_and_joins_at_the_cut() -> None:
    engine = Engine(slots=2).up()
    engine.dispatcher.submit(LEADER)
    leader = engine.start()
    follower = engine.dispatcher.submit(FOLLOWER)
    assert engine.take() == []
    assert [one.state for one in engine.dispatcher.snapshot().waiting] == ["following"]
    engine.say(p.Started(leader.request, 0), p.Prefilled(leader.request, 20, 0.1))
    assert engine.take() == []
    engine.say(p.Prefilled(leader.request, 32, 0.1))
    start = engine.start()
    assert (start.request, start.source, start.shared, start.begin) == (follower.id, leader.seq, CUT, CUT)
    engine.say(p.Started(follower.id, CUT))
    assert engine.figure("lcpd_prompt_tokens_total", source="shared") == CUT


async def test_on_a_hybrid_the_leader_is_told_to_leave_a_checkpoint_at_the_cut() -> None:
    engine = Engine(slots=2, kind="hybrid").up()
    engine.dispatcher.submit(LEADER)
    leader = engine.start()
    engine.dispatcher.submit(FOLLOWER)
    (mark,) = engine.take()
    assert isinstance(mark, p.Mark)
    assert (mark.request, mark.position) == (leader.request, CUT)
    engine.say(p.Started(leader.request, 0), p.Prefilled(leader.request, CUT, 0.1))
    assert engine.take() == []  # until the checkpoint is there
    engine.say(p.Checkpointed(leader.request, CUT, mark.extent, piece(mark.extent)))
    start = engine.start()
    assert (start.source, start.shared, start.begin, start.restore) == (0, CUT, CUT, piece(mark.extent))


async def test_a_follower_takes_over_where_a_leader_that_ends_early_stands() -> None:
    engine = Engine(slots=2).up()
    leading = engine.dispatcher.submit(LEADER)
    leader = engine.start()
    follower = engine.dispatcher.submit(FOLLOWER)
    engine.say(p.Started(leader.request, 0), p.Prefilled(leader.request, 20, 0.1))
    leading.close()
    engine.say(finished(leader.request, "", "cancelled"))
    start = next(message for message in engine.take() if isinstance(message, p.Start))
    assert (start.request, start.begin) == (follower.id, 20)


async def test_a_follower_does_not_wait_longer_than_its_deadline() -> None:
    engine = Engine(slots=2, follow_timeout=7).up()
    engine.dispatcher.submit(LEADER)
    engine.start()
    follower = engine.dispatcher.submit(FOLLOWER)
    engine.clock.advance(6.9)
    assert engine.take() == []
    engine.clock.advance(0.2)
    assert engine.start().request == follower.id


async def test_others_pass_a_follower() -> None:
    engine = Engine(slots=2).up()
    engine.dispatcher.submit(LEADER)
    engine.start()
    engine.dispatcher.submit(FOLLOWER)
    other = engine.dispatcher.submit(prompt("something else"))
    assert engine.start().request == other.id


async def test_a_follower_that_is_closed_is_gone() -> None:
    engine = Engine(slots=2).up()
    engine.dispatcher.submit(LEADER)
    leader = engine.start()
    engine.dispatcher.submit(FOLLOWER).close()
    engine.run(leader)
    assert engine.take() == []


# ---- waiting too long -------------------------------------------------------------------------------------


async def test_a_request_that_waits_too_long_is_told_when_to_try_again() -> None:
    engine = Engine(queue_timeout=10).up()
    engine.dispatcher.submit(prompt("running"))
    waiting = engine.dispatcher.submit(prompt("waiting"))
    engine.clock.advance(10)
    with pytest.raises(QueueTimedOut, match=r"for 10 s \(scheduler.queue_timeout\)") as late:
        await events(waiting)
    assert late.value.retry_after == 10
    assert engine.figure("lcpd_queue_timeouts_total") == 1
    assert engine.dispatcher.waiting == 0


async def test_no_timer_is_left_when_nobody_waits() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("running"))
    engine.dispatcher.submit(prompt("waiting")).close()
    assert engine.clock.timers == 0


# ---- cache reports ----------------------------------------------------------------------------------------

TEXT = "a prompt that is long enough to be told from others"


async def reasons(engine: Engine, text: str) -> list[tuple[int, int, str]]:
    """Run a prompt to its end; why its tokens were computed."""
    generation = engine.dispatcher.submit(prompt(text, name=text))
    for message in engine.save():
        if isinstance(message, p.Start):
            engine.run(message, "")
    report = engine.dispatcher.report(text)
    async for batch in generation.batches():
        assert not isinstance(batch[0], Begun) or batch[0].report == report
    assert report is not None
    return [(part.begin, part.end, part.reason) for part in report.reasons]


async def test_a_prompt_is_cold_at_first_then_goes_on_from_its_slot_and_later_has_left_it() -> None:
    engine = Engine().up()
    assert await reasons(engine, TEXT) == [(0, 51, "cold")]
    assert await reasons(engine, TEXT + "!") == [(51, 52, "new")]
    assert await reasons(engine, TEXT + "!") == [(51, 52, "last token")]
    assert await reasons(engine, TEXT + "?") == [(51, 52, "diverged")]
    assert engine.figure("lcpd_cache_misses_total", reason="cold") == 51
    assert engine.figure("lcpd_cache_misses_total", reason="diverged") == 1


async def test_what_neither_a_slot_nor_ram_has_any_more_was_evicted() -> None:
    engine = Engine(ram=0).up()
    await reasons(engine, TEXT)
    await reasons(engine, "something else altogether, and no shorter")
    assert await reasons(engine, TEXT) == [(0, 50, "evicted"), (50, 51, "last token")]


async def test_what_was_cancelled_before_it_was_computed_was_never_known() -> None:
    engine = Engine(ram=0).up()
    generation = engine.dispatcher.submit(prompt(TEXT))
    start = engine.start()
    generation.close()
    engine.say(p.Started(start.request, 0), p.Prefilled(start.request, 20, 0.1))
    engine.take()
    engine.say(finished(start.request, "", "cancelled"))
    await reasons(engine, "something else altogether, and no shorter")
    assert await reasons(engine, TEXT) == [(0, 20, "evicted"), (20, 51, "new")]


async def test_what_went_with_the_engine_is_told_so_once() -> None:
    engine = Engine().up()
    await reasons(engine, TEXT)
    engine.dispatcher.on_down("killed", "crash")
    engine.up()
    assert await reasons(engine, TEXT) == [(0, 50, "engine restarted"), (50, 51, "last token")]
    assert await reasons(engine, TEXT) == [(50, 51, "last token")]


async def test_bytes_that_were_damaged_are_told_of_when_it_shows() -> None:
    engine = Engine().up()
    await reasons(engine, TEXT)
    await reasons(engine, "something else altogether, and no shorter")
    engine.dispatcher.submit(prompt(TEXT, name="again"))
    start = next(message for message in engine.save() if isinstance(message, p.Start))
    assert start.segments
    engine.say(p.Started(start.request, 0, "the checksum is wrong", damaged=True))
    report = engine.dispatcher.report("again")
    assert report is not None
    assert (report.begin, report.ram, report.computed) == (0, 0, 51)
    assert [(part.begin, part.end, part.reason) for part in report.reasons] == [
        (0, 50, "damaged"),
        (50, 51, "last token"),
    ]


async def test_reports_are_forgotten_with_the_prompts_but_not_those_of_requests_that_run() -> None:
    engine = Engine(slots=2).up()
    for name in ("over", "runs"):
        engine.dispatcher.submit(prompt(name, name=name))
        start = engine.start()
        engine.say(p.Started(start.request, 0))
        if name == "over":
            engine.run(start)
    engine.dispatcher.forget()
    assert engine.dispatcher.report("over") is None
    assert engine.dispatcher.report("runs") is not None


async def test_only_the_latest_reports_are_kept() -> None:
    engine = Engine().up()
    for number in range(257):
        generation = engine.dispatcher.submit(prompt("hello", name=str(number)))
        engine.run(engine.start(), "")
        assert generation.over
    assert engine.dispatcher.report("0") is None
    assert engine.dispatcher.report("1") is not None


# ---- slow consumers ---------------------------------------------------------------------------------------


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


# ---- the view ---------------------------------------------------------------------------------------------


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


# ---- closing ----------------------------------------------------------------------------------------------


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
    assert engine.figure("lcpd_requests_quarantined_total") == 0
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
    assert engine.figure("lcpd_checkpoint_bytes_total") == 2000


async def test_copies_are_counted_in_bytes_seconds_and_runs() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt(TEXT))
    engine.run(engine.start(), "")
    engine.dispatcher.submit(prompt("something else altogether, and no shorter"))
    save, start = engine.take()
    assert isinstance(save, p.Save)
    assert isinstance(start, p.Start)
    (cut,) = save.cuts
    engine.say(p.Saved(0, [p.Segment(0, 51, piece(cut.extent))], None, seconds=0.5, runs=3))
    assert engine.figure("lcpd_cache_saved_bytes_total") == cut.extent.size
    assert engine.figure("lcpd_cache_save_seconds_total") == 0.5
    engine.run(start, "")
    engine.dispatcher.submit(prompt(TEXT))
    (start,) = engine.save()
    assert isinstance(start, p.Start)
    engine.say(p.Started(start.request, 50, restore_seconds=0.25, runs=2))
    assert engine.figure("lcpd_cache_restored_bytes_total") == cut.extent.size
    assert engine.figure("lcpd_cache_restore_seconds_total") == 0.25
    assert engine.figure("lcpd_copy_runs_total") == 5


async def test_what_the_cache_holds_is_shown_as_it_is_when_it_is_asked_for() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt(TEXT))
    engine.run(engine.start(), "")
    assert engine.figure("lcpd_cache_ram_used_bytes") == 0
    engine.dispatcher.submit(prompt("something else"))
    assert engine.figure("lcpd_cache_bytes", kind="reserved") > 0
    engine.save()
    assert engine.figure("lcpd_cache_bytes", kind="reserved") == 0
    assert engine.figure("lcpd_cache_bytes", kind="segment") > 0
    assert engine.figure("lcpd_cache_ram_used_bytes") >= engine.figure("lcpd_cache_bytes", kind="segment")
