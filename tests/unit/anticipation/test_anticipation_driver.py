"""When something is computed ahead, and what never happens because of it."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import numpy as np
import pytest

from lcpd.anticipation import driver
from lcpd.anticipation.driver import Anticipator, Asked, FinishedTurn, follows
from lcpd.chat.client import ChatCrashed
from lcpd.chat.protocol import Rendered, Span
from lcpd.engine.protocol import pack
from lcpd.scheduler.generation import Begun, Done, Generation, Prompt, QueueFull
from lcpd.scheduler.slots import Span as PromptSpan

MARKS = {"user": 300, "assistant": 301, "tool": 302}


def rendered(messages: list[dict]) -> tuple[np.ndarray, list[Span]]:
    """A template that leaves reasoning out of the history, and an empty reply."""
    tokens: list[int] = []
    spans = []
    for role, text in [*((m["role"], m["content"]) for m in messages), ("assistant", "")]:
        spans.append(Span(role, len(tokens), 1 + len(text)))
        tokens += [MARKS[role], *text.encode()]
    return np.array(tokens, np.int32), spans


class Chat:
    """A chat process."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.calls = 0
        self.called = asyncio.Event()

    async def render(self, dialect: str, body: bytes, overrides: bytes | None, more: bytes, scope: int) -> Rendered:
        assert scope == 0
        self.calls += 1
        self.called.set()
        await asyncio.sleep(0)
        if self.error:
            raise self.error
        tokens, spans = rendered([*json.loads(body)["messages"], *json.loads(more)])
        return Rendered(0, pack(tokens), spans, b"{}", b"{}", -1)


class Dispatcher:
    """A dispatcher whose prefills end when the test says so."""

    def __init__(self) -> None:
        self.running = self.waiting = 0
        self.submitted: list[Generation] = []
        self.closed = 0
        self.n_ctx = 10_000
        self.full = False

    async def model_info(self) -> SimpleNamespace:
        return SimpleNamespace(rolls_back=False, n_ctx=self.n_ctx)

    def submit(self, prompt: Prompt) -> Generation:
        if self.full:
            raise QueueFull("full", 1)
        self.submitted.append(Generation(len(self.submitted), prompt, 0.0, self._close))
        return self.submitted[-1]

    def _close(self, generation: Generation) -> None:
        self.closed += 1

    def end(self, reason: str = "length") -> None:
        """The latest prefill is over."""
        self.submitted[-1].emit(Begun(0))
        self.submitted[-1].emit(Done(reason, "", "", 0, 0, 0.1, 0.0))


@pytest.fixture
def chat() -> Chat:
    return Chat()


@pytest.fixture
def dispatcher() -> Dispatcher:
    return Dispatcher()


@pytest.fixture
async def ahead(chat: Chat, dispatcher: Dispatcher):
    anticipator = Anticipator(chat, dispatcher, patience=0)  # type: ignore[arg-type]
    yield anticipator
    await anticipator.stop()


def turn(text: str = "hello", answer: str = "a" * 100, **fields: object) -> FinishedTurn:
    """A turn whose reply had some reasoning in front of the answer."""
    messages = [{"role": "user", "content": text}]
    tokens, spans = rendered(messages)
    prompt = Prompt(tokens, tuple(PromptSpan(s.role, s.begin, s.length) for s in spans), b"{}", 100)
    generated = np.array([*b"<think>", *answer.encode(), 400], np.int32)
    body = json.dumps({"messages": messages, **fields}).encode()
    return FinishedTurn(Asked("chat", body), prompt, generated, {"role": "assistant", "content": answer})


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_the_conversation_with_its_reply_is_prefilled_at_the_lowest_priority(ahead, dispatcher) -> None:
    ahead.finished(turn())
    await settle()
    (generation,) = dispatcher.submitted
    prompt = generation.prompt
    assert (prompt.kind, prompt.priority, prompt.max_tokens) == ("prefill", "background", 0)
    tokens, _ = rendered([{"role": "user", "content": "hello"}, {"role": "assistant", "content": "a" * 100}])
    assert prompt.tokens.tolist() == [*tokens[:-1], MARKS["user"]]
    dispatcher.end()
    await settle()
    assert (ahead.pending, ahead.working) == (0, False)


@pytest.mark.parametrize("busy", ["running", "waiting"])
async def test_nothing_is_rendered_while_the_engine_has_something_to_do(ahead, chat, dispatcher, busy: str) -> None:
    setattr(dispatcher, busy, 1)
    ahead.finished(turn())
    await settle()
    assert chat.calls == 0
    assert dispatcher.submitted == []


async def test_what_could_not_be_done_is_tried_again_when_the_next_reply_is_complete(ahead, dispatcher) -> None:
    dispatcher.running = 1
    ahead.finished(turn("one"))
    await settle()
    dispatcher.running = 0
    ahead.finished(turn("two"))
    await settle()
    dispatcher.end()
    await settle()
    dispatcher.end()
    await settle()
    assert len(dispatcher.submitted) == 2
    assert ahead.pending == 0


async def test_what_was_cut_off_is_tried_again_later(ahead, dispatcher) -> None:
    ahead.finished(turn("one"))
    await settle()
    dispatcher.end("cancelled")
    await settle()
    assert (ahead.pending, ahead.working) == (1, False)
    ahead.finished(turn("two", "short"))
    await settle()
    assert len(dispatcher.submitted) == 2
    assert dispatcher.submitted[1].prompt.tokens.tolist() == dispatcher.submitted[0].prompt.tokens.tolist()


async def test_only_one_is_computed_at_a_time(ahead, dispatcher) -> None:
    ahead.finished(turn("one"))
    ahead.finished(turn("two"))
    await settle()
    assert len(dispatcher.submitted) == 1


async def test_the_next_turn_of_the_conversation_makes_it_pointless(ahead, chat, dispatcher) -> None:
    dispatcher.running = 1
    ahead.finished(turn("one"))
    ahead.finished(turn("two"))
    ahead.begun(turn("one", "other").prompt)
    assert ahead.pending == 1


async def test_a_next_turn_that_comes_soon_finds_nothing_being_rendered(chat, dispatcher) -> None:
    anticipator = Anticipator(chat, dispatcher, patience=30)  # type: ignore[arg-type]
    one = turn("one")
    anticipator.finished(one)
    await settle()
    anticipator.begun(one.prompt)
    assert (chat.calls, anticipator.pending) == (0, 0)
    await anticipator.stop()


async def test_a_turn_that_was_overtaken_while_it_was_rendered_is_not_submitted(ahead, chat, dispatcher) -> None:
    one = turn("one")
    ahead.finished(one)
    await chat.called.wait()
    ahead.begun(one.prompt)
    await settle()
    assert (chat.calls, dispatcher.submitted) == (1, [])


async def test_a_later_turn_takes_the_place_of_an_earlier_one_of_its_conversation(ahead, dispatcher) -> None:
    dispatcher.running = 1
    for _ in range(3):
        ahead.finished(turn("one"))
    assert ahead.pending == 1


async def test_the_turns_that_are_kept_are_bounded_in_number_and_size(ahead, dispatcher, monkeypatch) -> None:
    dispatcher.running = 1
    for number in range(100):
        ahead.finished(turn(f"conversation {number}"))
    assert ahead.pending == 8
    monkeypatch.setattr(driver, "_MOST_BYTES", 1000)
    ahead.finished(turn("large", padding="x" * 990))
    assert ahead.pending == 0


async def test_a_conversation_that_fills_the_context_has_no_next_turn(ahead, dispatcher) -> None:
    dispatcher.n_ctx = 50
    ahead.finished(turn())
    await settle()
    assert dispatcher.submitted == []
    assert ahead.pending == 0


async def test_a_reply_that_the_slot_holds_as_it_will_be_sent_is_left_alone(ahead, chat, dispatcher) -> None:
    same = turn()
    ahead.finished(FinishedTurn(same.asked, same.prompt, same.generated[len(b"<think>") :], same.message))
    await settle()
    assert chat.calls == 1
    assert dispatcher.submitted == []
    assert ahead.pending == 0


@pytest.mark.parametrize("error", [ChatCrashed("too much"), RuntimeError("a mistake of ours")])
async def test_what_cannot_be_rendered_is_given_up_and_the_others_go_on(ahead, chat, dispatcher, error) -> None:
    chat.error = error
    ahead.finished(turn("one"))
    await settle()
    assert (ahead.pending, ahead.working) == (0, False)
    chat.error = None
    ahead.finished(turn("two"))
    await settle()
    assert len(dispatcher.submitted) == 1


async def test_a_full_queue_is_no_error(ahead, dispatcher) -> None:
    dispatcher.full = True
    ahead.finished(turn())
    await settle()
    assert ahead.pending == 0


async def test_stopping_ends_what_is_under_way(ahead, dispatcher) -> None:
    ahead.finished(turn())
    await settle()
    await ahead.stop()
    assert dispatcher.closed == 1
    assert not ahead.working


def prompt_of(*messages: str) -> Prompt:
    roles = ("user", "assistant")
    tokens, spans = rendered([{"role": roles[i % 2], "content": text} for i, text in enumerate(messages)])
    return Prompt(tokens, tuple(PromptSpan(s.role, s.begin, s.length) for s in spans), b"{}", 1)


def test_a_conversation_is_known_by_its_first_message() -> None:
    assert follows(prompt_of("one", "answer", "more"), prompt_of("one"))
    assert follows(prompt_of("one", "answer", "more"), prompt_of("one", "reasoning, answer", "other"))
    assert not follows(prompt_of("other", "answer", "more"), prompt_of("one", "answer", "more"))


def test_a_prompt_without_messages_is_known_by_all_of_it() -> None:
    earlier = Prompt(np.array([1, 2], np.int32), (), b"{}", 1)
    assert follows(Prompt(np.array([1, 2, 3], np.int32), (), b"{}", 1), earlier)
    assert not follows(Prompt(np.array([1, 3], np.int32), (), b"{}", 1), earlier)
