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
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import vocab
from fakes.chat import render
from fakes.worker import Fault, load, worker_command
from lcpd.engine.policy import RestartPolicy
from lcpd.engine.protocol import ToWorker
from lcpd.engine.supervisor import Supervisor, WorkerSettings
from lcpd.metrics import Metrics
from lcpd.scheduler.dispatcher import Dispatcher
from lcpd.scheduler.generation import (
    Begun,
    Done,
    EngineDied,
    EngineFailed,
    Event,
    Generation,
    Progress,
    Prompt,
    Text,
)
from lcpd.scheduler.slots import Span


class Engine:
    """A running dispatcher with its fake worker."""

    def __init__(self, slots: int, crash_limit: int, script: dict[str, Any]) -> None:
        self.metrics = Metrics()
        self.dispatcher = Dispatcher("fake", slots, 3, 64, self._send, self.metrics)
        policy = RestartPolicy(backoff=0, crash_limit=crash_limit)
        command = worker_command(**script)
        settings = WorkerSettings(load=load(slots, n_batch=8), restart=policy, command=command)
        self.supervisor = Supervisor(settings, self.dispatcher)

    def _send(self, message: ToWorker) -> None:
        self.supervisor.send(message)

    def figure(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


Make = Callable[..., Engine]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Starts engines; the keywords besides `slots` and `crash_limit` are the fake worker's script."""
    made = []

    def build(slots: int = 1, crash_limit: int = 100, **script: Any) -> Engine:
        engine = Engine(slots, crash_limit, script)
        engine.supervisor.start()
        made.append(engine)
        return engine

    yield build
    for engine in made:
        await engine.supervisor.stop()


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
    engine = make(slots=2)
    prompts = [prompt(SYSTEM, ("user", f"question {n}")) for n in range(6)]
    generations = [engine.dispatcher.submit(p) for p in prompts]
    await asyncio.wait_for(first(generations[0], Begun), 60)
    assert (engine.dispatcher.running, engine.dispatcher.waiting) == (2, 4)
    said = [await reply(generation) for generation in generations]
    assert [text for text, _ in said] == [right_reply(p) for p in prompts]


async def test_a_slot_that_was_emptied_to_make_room_is_computed_anew(make: Make) -> None:
    engine = make(slots=2, n_ctx=150)
    one, other = prompt(("user", "a" * 80)), prompt(("user", "b" * 60))
    await ask(engine, one)
    said, _ = await ask(engine, other)
    assert said == right_reply(other)
    assert sorted(len(slot.tokens) for slot in engine.dispatcher.slots)[0] == 0
    said, done = await ask(engine, one)
    assert (said, done.cached) == (right_reply(one), 0)


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
    assert waiting._events.empty()


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


async def test_an_engine_that_dies_later_ends_the_running_replies_and_serves_the_waiting_ones(
    make: Make, tmp_path: Path
) -> None:
    engine = make(faults=[Fault("token:3", "kill", once=str(tmp_path / "first life"))])
    one, two = prompt(("user", "one")), prompt(("user", "two"))
    running, waiting = engine.dispatcher.submit(one), engine.dispatcher.submit(two)
    with pytest.raises(EngineDied, match="killed by SIGKILL"):
        await reply(running)
    assert (await reply(waiting))[0] == right_reply(two)


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
    computed = engine.figure("lcpd_prompt_tokens_total", source="computed")
    reused = engine.figure("lcpd_prompt_tokens_total", source="vram")
    assert computed + reused == tokens
    assert reused > 0
    assert engine.supervisor.restarts == 0
