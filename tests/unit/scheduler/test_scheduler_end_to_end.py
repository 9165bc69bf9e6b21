"""Dispatcher, supervisor and fake worker together.

The fake's reply depends on every token that its sequence holds, and it refuses a Start that disagrees with what the
sequence holds: a right reply is proof that the slot was what the dispatcher believed.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import vocab
from fakes.api import until
from fakes.chat import render
from fakes.worker import Fault, load, worker_command
from lcpd.cache.arena import Arena
from lcpd.cache.cache import PromptCache
from lcpd.engine.policy import RestartPolicy
from lcpd.engine.protocol import FromWorker, Started, ToWorker
from lcpd.engine.supervisor import Supervisor, WorkerSettings
from lcpd.metrics import Metrics
from lcpd.scheduler.dispatcher import Dispatcher
from lcpd.scheduler.generation import (
    Begun,
    Done,
    EngineFailed,
    Event,
    Generation,
    Progress,
    Prompt,
    Quarantined,
    Text,
)
from lcpd.scheduler.policy import Policy
from lcpd.scheduler.slots import Span


class Engine:
    """A running dispatcher with its fake worker."""

    def __init__(self, slots: int, crash_limit: int, ram: int, policy: Policy, script: dict[str, Any]) -> None:
        self.metrics = Metrics()
        self.arena = Arena(ram)
        self.cache = PromptCache(self.arena, segment_chunk=64)
        self.dispatcher = Dispatcher("fake", slots, policy, self.cache, self._send, self.metrics)
        settings = WorkerSettings(
            load=load(slots, n_batch=8, arena_bytes=ram),
            restart=RestartPolicy(backoff=0, crash_limit=crash_limit),
            command=worker_command(**script),
            descriptors=(self.arena.fd,) if ram else (),
        )
        self.messages: list[FromWorker] = []
        self.supervisor = Supervisor(settings, self.dispatcher)
        listen = self.dispatcher.on_message

        def hear(message: FromWorker) -> None:
            self.messages.append(message)
            listen(message)

        self.dispatcher.on_message = hear  # type: ignore[method-assign]

    def _send(self, message: ToWorker) -> None:
        self.supervisor.send(message)

    def figure(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


Make = Callable[..., Engine]
POLICY = Policy(follow_min=4)


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Starts engines; the keywords that are not named here are the fake worker's script."""
    made = []

    def build(
        slots: int = 1, crash_limit: int = 100, ram: int = 1 << 20, policy: Policy = POLICY, **script: Any
    ) -> Engine:
        engine = Engine(slots, crash_limit, ram, policy, script)
        engine.supervisor.start()
        made.append(engine)
        return engine

    yield build
    for engine in made:
        await engine.supervisor.stop()
        engine.cache.check_integrity()
        engine.arena.close()


ENDLESS = b'{"ignore_eos":true}'


def prompt(*messages: tuple[str, str], fields: bytes = b"{}", max_tokens: int = 1000) -> Prompt:
    """A chat's prompt."""
    tokens, spans = render({"messages": [{"role": role, "content": text} for role, text in messages]})
    places = tuple(Span(span.role, span.begin, span.length) for span in spans)
    return Prompt(np.array(tokens, np.int32), places, fields, max_tokens)


def right_reply(prompt: Prompt) -> str:
    return vocab.reply_text(prompt.tokens.tolist())


async def events(generation: Generation) -> AsyncIterator[Event]:
    async with asyncio.timeout(60):
        async for batch in generation.batches():
            for event in batch:
                yield event


async def first(generation: Generation, kind: type[Event]) -> Any:
    """The first event of a kind."""
    async for event in events(generation):
        if isinstance(event, kind):
            return event
    raise AssertionError(f"it ended without a {kind.__name__}")


async def reply(generation: Generation) -> tuple[str, Done]:
    """The whole text, and the end."""
    text = ""
    async for event in events(generation):
        if isinstance(event, Text | Done):
            text += event.text
    assert isinstance(event, Done)
    return text, event


async def ask(engine: Engine, prompt: Prompt) -> tuple[str, Done]:
    return await reply(engine.dispatcher.submit(prompt))


SYSTEM = ("system", "You are a fake.")


# ---- reuse ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["attention", "hybrid"])
async def test_the_second_turn_computes_only_what_is_new(make: Make, kind: str) -> None:
    engine = make(kind=kind)
    one = prompt(SYSTEM, ("user", "one"))
    said, done = await ask(engine, one)
    assert (said, done.reason, done.cached) == (right_reply(one), "stop", 0)
    two = prompt(SYSTEM, ("user", "one"), ("assistant", said), ("user", "two"))
    again, done = await ask(engine, two)
    assert again == right_reply(two)
    # The end token of the reply was sampled but never decoded.
    assert done.cached == len(one.tokens) + len(said.encode())


async def test_a_reply_that_the_history_renders_otherwise_costs_a_hybrid_only_its_last_messages(make: Make) -> None:
    engine = make(kind="hybrid")
    await ask(engine, prompt(SYSTEM, ("user", "one")))
    two = prompt(SYSTEM, ("user", "one"), ("assistant", "put otherwise"), ("user", "two"))
    said, done = await ask(engine, two)
    assert said == right_reply(two)
    assert done.cached == sum(span.length for span in two.spans[:2])  # the checkpoint at the end of the user's turn


async def test_another_conversation_with_the_same_head_resumes_a_hybrid_at_the_end_of_the_head(make: Make) -> None:
    engine = make(kind="hybrid")
    await ask(engine, prompt(SYSTEM, ("user", "one")))
    other = prompt(SYSTEM, ("user", "something else"))
    said, done = await ask(engine, other)
    assert (said, done.cached) == (right_reply(other), other.spans[0].length)


async def test_the_same_prompt_again_computes_one_token_on_attention(make: Make) -> None:
    engine = make()
    one = prompt(SYSTEM, ("user", "one"))
    await ask(engine, one)
    said, done = await ask(engine, one)
    assert (said, done.cached) == (right_reply(one), len(one.tokens) - 1)


async def test_stop_strings_and_token_limits_reach_the_engine(make: Make) -> None:
    engine = make(reply="one two three")
    said, done = await ask(engine, prompt(("user", "go"), fields=b'{"stop":[" tw"]}'))
    assert (said, done.reason, done.stop) == ("one", "stop-string", " tw")
    said, done = await ask(engine, prompt(("user", "go"), max_tokens=5))
    assert (said, done.reason, done.generated) == ("one t", "length", 5)


# ---- several at once --------------------------------------------------------------------------------------


async def test_more_prompts_than_slots_wait_and_all_get_their_own_replies(make: Make) -> None:
    engine = make(slots=2, policy=Policy(follow_min=1000), decode_seconds=0.001)
    prompts = [prompt(SYSTEM, ("user", f"question {n}")) for n in range(6)]
    generations = [engine.dispatcher.submit(p) for p in prompts]
    await until(lambda: engine.dispatcher.running == 2)
    assert engine.dispatcher.waiting == 4
    said = [await reply(generation) for generation in generations]
    assert [text for text, _ in said] == [right_reply(p) for p in prompts]


@pytest.mark.parametrize("kind", ["attention", "hybrid"])
@pytest.mark.parametrize(("ram", "back"), [(0, False), (1 << 20, True)])
async def test_a_slot_that_was_emptied_to_make_room_comes_back_from_ram_where_there_is_some(
    make: Make, kind: str, ram: int, back: bool
) -> None:
    engine = make(slots=2, n_ctx=190, kind=kind, ram=ram)
    one, other = prompt(("user", "a" * 80)), prompt(("system", "b" * 60))
    first_said, _ = await ask(engine, one)
    said, _ = await ask(engine, other)
    assert said == right_reply(other)
    assert sorted(len(slot.tokens) for slot in engine.dispatcher.slots)[0] == 0
    again = prompt(("user", "a" * 80), ("assistant", first_said), ("user", "go on"))
    said, done = await ask(engine, again)
    assert said == right_reply(again)
    # The end token of the reply was sampled but never decoded.
    held = len(one.tokens) + len(first_said.encode())
    assert done.cached == (held if back else 0)
    assert engine.figure("lcpd_prompt_tokens_total", source="ram") == done.cached


@pytest.mark.parametrize("kind", ["attention", "hybrid"])
async def test_several_with_one_head_at_once_compute_it_once(make: Make, kind: str) -> None:
    engine = make(slots=4, kind=kind, prefill_seconds=0.01)
    head = ("system", "s" * 200)
    prompts = [prompt(head, ("user", f"{n}: go")) for n in range(4)]
    generations = [engine.dispatcher.submit(p) for p in prompts]
    assert [one.state for one in engine.dispatcher.snapshot().waiting] in ([], ["waiting"] * 4, ["following"] * 3)
    said = [await reply(generation) for generation in generations]
    assert [text for text, _ in said] == [right_reply(p) for p in prompts]
    shared = prompts[0].spans[0].length
    assert [done.cached >= shared for _, done in said] == [False, True, True, True]
    assert engine.figure("lcpd_prompt_tokens_total", source="shared") >= 3 * shared


# ---- pressure ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["attention", "hybrid"])
@pytest.mark.parametrize("ram", [0, 1 << 20])
async def test_a_cache_a_third_of_the_demand_parks_and_all_finish_as_if_nothing_had_happened(
    make: Make, kind: str, ram: int
) -> None:
    engine = make(slots=4, n_ctx=170, kind=kind, ram=ram, reply="x" * 70)
    prompts = [prompt(("user", f"{n} " * 10)) for n in range(8)]
    said = await asyncio.gather(*(ask(engine, p) for p in prompts))
    assert [text for text, _ in said] == ["x" * 70] * 8
    assert engine.figure("lcpd_num_preemptions_total", reason="cells") > 0
    assert engine.supervisor.restarts == 0


async def test_an_interactive_request_takes_the_slot_of_a_background_one_which_goes_on_later(make: Make) -> None:
    engine = make(decode_seconds=0.002, reply="y" * 100)
    title = engine.dispatcher.submit(replace(prompt(("user", "a title")), priority="background"))
    events_of_title = events(title)
    while not isinstance(await anext(events_of_title), Text):
        pass
    said, _ = await ask(engine, prompt(("user", "quick"), max_tokens=3))
    assert said == "yyy"
    assert engine.figure("lcpd_num_preemptions_total", reason="slot") == 1
    rest = [event async for event in events_of_title]
    assert isinstance(rest[-1], Done)
    assert rest[-1].generated == 101
    assert not [event for event in rest if isinstance(event, Begun)]


# ---- cancelling -------------------------------------------------------------------------------------------


async def test_a_generation_closed_while_it_waits_never_runs_and_the_next_one_does(make: Make) -> None:
    engine = make()
    endless = engine.dispatcher.submit(prompt(("user", "on and on"), fields=ENDLESS, max_tokens=100_000))
    waiting = engine.dispatcher.submit(prompt(("user", "never")))
    last = engine.dispatcher.submit(prompt(("user", "last")))
    await first(endless, Text)
    waiting.close()
    endless.close()
    assert (await reply(last))[0] == right_reply(last.prompt)
    assert waiting.unread == 0


async def test_a_generation_closed_during_its_prefill_leaves_what_was_computed_in_a_usable_slot(make: Make) -> None:
    engine = make(prefill_seconds=0.01)
    long = prompt(("user", "x" * 2000))
    generation = engine.dispatcher.submit(long)
    await first(generation, Progress)
    generation.close()
    _, done = await reply(generation)
    assert done.reason == "cancelled"
    shorter = prompt(("user", "x" * 6))
    said, done = await ask(engine, shorter)
    assert (said, done.cached) == (right_reply(shorter), 7)


@pytest.mark.parametrize("kind", ["attention", "hybrid"])
async def test_a_generation_closed_during_its_reply_leaves_a_usable_slot(make: Make, kind: str) -> None:
    engine = make(kind=kind, decode_seconds=0.001)
    question = prompt(SYSTEM, ("user", "on and on"), fields=ENDLESS, max_tokens=100_000)
    generation = engine.dispatcher.submit(question)
    await first(generation, Text)
    generation.close()
    _, done = await reply(generation)
    assert done.reason == "cancelled"
    following = prompt(SYSTEM, ("user", "on and on"), ("assistant", "cut"), ("user", "next"))
    said, done = await ask(engine, following)
    assert said == right_reply(following)
    assert done.cached >= sum(span.length for span in following.spans[:2])


# ---- deaths -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["request:1", "prefill:2"])
async def test_an_engine_that_dies_before_the_first_token_is_not_noticed(
    make: Make, tmp_path: Path, point: str
) -> None:
    engine = make(faults=[Fault(point, "kill", once=str(tmp_path / "first life"))])
    question = prompt(SYSTEM, ("user", "one"))
    said, done = await ask(engine, question)
    assert (said, done.reason) == (right_reply(question), "stop")
    assert engine.supervisor.restarts == 1


@pytest.mark.parametrize("fault", ["kill", "exit:1", "nonsense"])
async def test_replies_go_on_where_they_were_when_the_engine_dies(make: Make, tmp_path: Path, fault: str) -> None:
    engine = make(slots=2, faults=[Fault("token:7", fault, once=str(tmp_path / "first life"))])
    questions = [prompt(("user", word)) for word in ("one", "two", "three")]
    generations = [engine.dispatcher.submit(question) for question in questions]
    for question, generation in zip(questions, generations, strict=True):
        assert (await reply(generation))[0] == right_reply(question)
    assert engine.supervisor.restarts == 1


async def test_a_reply_that_ends_with_the_last_token_before_the_death_is_ended_by_the_next_engine(
    make: Make, tmp_path: Path
) -> None:
    engine = make(reply="xyz", faults=[Fault("token:3", "exit:1", once=str(tmp_path / "first life"))])
    said, done = await reply(engine.dispatcher.submit(prompt(("user", "one"), max_tokens=3)))
    assert (said, done.reason, done.generated) == ("xyz", "length", 3)


async def test_text_that_was_held_back_for_a_stop_string_is_neither_lost_nor_sent_twice(
    make: Make, tmp_path: Path
) -> None:
    fields = b'{"stop":["abcd"]}'
    engine = make(reply="1 ab 2 abcd 3", faults=[Fault("token:4", "exit:1", once=str(tmp_path / "first life"))])
    said, done = await reply(engine.dispatcher.submit(prompt(("user", "one"), fields=fields)))
    assert (said, done.reason, done.stop) == ("1 ab 2 ", "stop-string", "abcd")


async def test_a_request_that_kills_the_engine_each_time_is_quarantined_and_its_neighbours_finish(make: Make) -> None:
    engine = make(slots=3, poison="poison")
    words = ["one", "two", "poison", "three", "four"]
    questions = [prompt(("user", word)) for word in words]
    generations = [engine.dispatcher.submit(question) for question in questions]
    for word, question, generation in zip(words, questions, generations, strict=True):
        if word == "poison":
            with pytest.raises(Quarantined, match="crashed the engine twice"):
                await reply(generation)
        else:
            assert (await reply(generation))[0] == right_reply(question)
    with pytest.raises(Quarantined, match="refused for another"):
        engine.dispatcher.submit(questions[2])


@pytest.mark.parametrize("kind", ["attention", "hybrid"])
async def test_a_death_costs_one_interval_at_most(make: Make, tmp_path: Path, kind: str) -> None:
    policy = Policy(follow_min=4, checkpoint_interval=64)
    death = Fault("prefill:60", "exit:1", once=str(tmp_path / "first life"))
    engine = make(kind=kind, policy=policy, prefill_seconds=0.005, faults=[death])
    question = prompt(("user", "x" * 600))
    assert (await ask(engine, question))[0] == right_reply(question)
    computed = [m for m in engine.messages if isinstance(m, Started)]
    assert [m.problem for m in computed] == ["", ""]
    assert 60 * 8 - computed[1].begin <= 64 + 64 // 16 + 2 * 8


async def test_after_a_restart_every_slot_is_known_to_be_empty(make: Make) -> None:
    engine = make()
    one = prompt(SYSTEM, ("user", "one"))
    await ask(engine, one)
    pid = engine.supervisor.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    two = prompt(SYSTEM, ("user", "two"))
    # Whether the death is seen before or after this prompt is submitted does not matter.
    said, done = await ask(engine, two)
    assert (said, done.cached) == (right_reply(two), 0)


async def test_an_engine_that_fails_for_good_fails_every_request(make: Make) -> None:
    engine = make(crash_limit=2, faults=[Fault("load", "exit:1")])
    waiting = engine.dispatcher.submit(prompt(("user", "one")))
    with pytest.raises(EngineFailed, match="crash loop: 2 crashes"):
        await reply(waiting)
    with pytest.raises(EngineFailed, match="crash loop: 2 crashes"):
        engine.dispatcher.submit(prompt(("user", "two")))


# ---- all together -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["attention", "hybrid"])
async def test_any_mixture_of_conversations_gets_right_replies_and_every_prompt_token_is_counted_once(
    make: Make, kind: str
) -> None:
    dice = random.Random(kind)
    engine = make(slots=3, kind=kind, n_ctx=600)
    tokens = 0

    async def conversation(number: int) -> None:
        nonlocal tokens
        messages = [SYSTEM, ("user", f"{dice.choice(['plan', 'fix'])} {number % 3}")]
        for _ in range(4):
            question = prompt(*messages)
            said, done = await ask(engine, question)
            assert said == right_reply(question)
            assert done.cached < len(question.tokens)
            tokens += len(question.tokens)
            told = said if dice.random() < 0.5 else "said otherwise"
            messages += [("assistant", told), (dice.choice(["user", "tool"]), dice.choice(["go on", "why?"]))]
            if dice.random() < 0.2:
                del messages[-2:]

    await asyncio.gather(*(conversation(number) for number in range(5)))
    counted = {s: engine.figure("lcpd_prompt_tokens_total", source=s) for s in ("computed", "vram", "shared", "ram")}
    assert sum(counted.values()) == tokens
    assert min(counted.values()) > 0
    assert engine.supervisor.restarts == 0
