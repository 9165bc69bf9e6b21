"""Requests to embed: what is sent when, to a worker that the test plays."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from fakes import vocab
from fakes.worker import load, model_info
from lcpd.engine import protocol as p
from lcpd.engine.policy import KILLS_FOR_A_CRASH, RestartPolicy
from lcpd.engine.supervisor import SLEEP, NotReadyError
from lcpd.metrics import Metrics
from lcpd.scheduler.embeddings import EmbeddingFailed, Embeddings
from lcpd.scheduler.generation import EngineFailed, Quarantined, QueueFull, QueueTimedOut
from lcpd.scheduler.recovery import KILLED, KILLS

INFO = model_info(load())


class Engine:
    """What was sent, and answers to it."""

    def __init__(self, **settings):
        self.sent = []
        self.up = True
        self.calm = True
        self.woken = 0
        self.beats = 0
        usual = {"queue_size": 4, "timeout": 30.0, "calm": lambda: self.calm}
        usual |= {"on_work": self.wake, "on_life": self.beat}
        self.embeddings = Embeddings("m", self.send, Metrics(), **{**usual, **settings})
        self.embeddings.on_up(INFO)

    def send(self, message):
        if not self.up:
            raise NotReadyError("gone")
        self.sent.append(message)

    def wake(self):
        self.woken += 1

    def beat(self):
        self.beats += 1

    async def ask(self, *texts, **terms):
        """Start a request, which has been sent if it may be."""
        task = asyncio.create_task(self.embeddings.embed([vocab.tokens(text) for text in texts], **terms))
        await asyncio.sleep(0)
        return task

    def take(self):
        """What was sent since the last time."""
        sent, self.sent = self.sent, []
        return sent

    def answer(self, embed, *numbers):
        """Vectors of some of its texts: their lengths."""
        for number in numbers:
            vector = np.array([len(p.unpack(embed.texts[number]))], "<f4")
            self.embeddings.on_message(p.Embedded(embed.request, number, vector.tobytes()))

    def crash(self, cause="crash"):
        """Die and come back."""
        self.embeddings.on_down("it died", cause)
        self.embeddings.on_up(INFO)


def texts_of(embed):
    return [vocab.decode(p.unpack(text).tolist()) for text in embed.texts]


async def result(task):
    return [vector.tolist() for vector in await task]


async def test_vectors_come_in_the_order_of_the_texts_whatever_the_engine_does():
    engine = Engine()
    task = await engine.ask("a", "bb", "ccc", priority="background")
    (embed,) = engine.take()
    assert (texts_of(embed), embed.priority) == (["a", "bb", "ccc"], 1)
    engine.answer(embed, 2, 0, 1)
    assert await result(task) == [[1], [2], [3]]
    assert engine.embeddings.running == 0
    assert engine.take() == []


async def test_after_a_crash_only_what_is_missing_is_sent():
    engine = Engine()
    task = await engine.ask("a", "bb", "ccc")
    (embed,) = engine.take()
    engine.answer(embed, 1)
    engine.crash()
    (embed,) = engine.take()
    assert texts_of(embed) == ["a", "ccc"]
    engine.answer(embed, 0, 1)
    assert await result(task) == [[1], [2], [3]]


async def test_a_request_that_sees_two_crashes_without_a_vector_is_quarantined():
    engine = Engine()
    task = await engine.ask("a", "b")
    engine.crash()
    engine.answer(engine.take()[-1], 0)
    engine.crash()
    assert not task.done()
    engine.crash()
    with pytest.raises(Quarantined, match="2 times"):
        await task


@pytest.mark.parametrize("cause", ["killed", SLEEP])
async def test_who_ends_the_engine_on_purpose_leaves_nobody_to_blame(cause):
    engine = Engine()
    task = await engine.ask("a")
    for _ in range(5):
        engine.crash(cause)
    engine.answer(engine.take()[-1], 0)
    assert await result(task) == [[1]]
    assert engine.woken >= (6 if cause == SLEEP else 1)


async def test_texts_that_have_the_engine_killed_each_time_come_to_an_end_before_the_engine_does():
    engine = Engine()
    task = await engine.ask("a")
    for _ in range(KILLS):
        assert not task.done()
        engine.crash(KILLED)
        await asyncio.sleep(0)
    with pytest.raises(Quarantined, match=f"{KILLS} times"):
        await task
    crashes = KILLS // KILLS_FOR_A_CRASH
    assert crashes < RestartPolicy().crash_limit


async def test_an_engine_that_works_on_a_long_text_is_not_believed_to_be_idle():
    engine = Engine()
    task = await engine.ask("a")
    engine.embeddings.on_message(p.Beat(1, 1, 1))
    assert engine.beats == 1
    engine.answer(engine.take()[0], 0)
    await task
    beats = engine.beats
    engine.embeddings.on_message(p.Beat(2, 2, 0))
    assert engine.beats == beats
    assert engine.woken == 1, "nobody new has come"


async def test_suspects_are_sent_one_at_a_time():
    engine = Engine()
    tasks = [await engine.ask(text) for text in ("a", "b")]
    assert len(engine.take()) == 2
    engine.crash()
    (first,) = engine.take()
    late = await engine.ask("c")
    assert engine.take() == []
    engine.answer(first, 0)
    await tasks[0]
    (second,) = engine.take()
    engine.answer(second, 0)
    await tasks[1]
    (third,) = engine.take()
    engine.answer(third, 0)
    assert texts_of(first) + texts_of(second) + texts_of(third) == ["a", "b", "c"]
    await late


async def test_nothing_is_sent_while_a_chat_is_suspected():
    engine = Engine()
    engine.calm = False
    task = await engine.ask("a")
    assert engine.take() == []
    engine.calm = True
    engine.embeddings.on_message(p.Beat(1, 1, 1))
    engine.answer(engine.take()[0], 0)
    await task


async def test_who_goes_away_stops_the_engine_and_late_vectors_are_passed_over():
    engine = Engine()
    task = await engine.ask("a", "b")
    (embed,) = engine.take()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.take() == [p.StopEmbedding("m", embed.request)]
    engine.answer(embed, 0)
    assert engine.embeddings.running == 0


async def test_a_problem_of_one_text_ends_the_request():
    engine = Engine()
    task = await engine.ask("a", "b")
    (embed,) = engine.take()
    engine.embeddings.on_message(p.Embedded(embed.request, 0, b"", "no memory"))
    with pytest.raises(EmbeddingFailed, match="no memory"):
        await task


async def test_limits_and_ends_are_told():
    engine = Engine(queue_size=1, timeout=0.01)
    engine.calm = False
    task = await engine.ask("a")
    with pytest.raises(QueueFull, match=r"server\.queue_size"):
        await engine.embeddings.embed([vocab.tokens("b")])
    with pytest.raises(QueueTimedOut, match=r"scheduler\.queue_timeout"):
        await task
    task = await engine.ask("a")
    engine.embeddings.on_failed("crash loop\nits log")
    with pytest.raises(EngineFailed, match=r"^crash loop$"):
        await task
    with pytest.raises(EngineFailed):
        await engine.embeddings.embed([vocab.tokens("b")])


async def test_while_there_is_no_engine_requests_wait():
    engine = Engine()
    engine.embeddings.on_down("it died", "crash")
    engine.up = False
    task = await engine.ask("a")
    engine.up = True
    engine.embeddings.on_up(INFO)
    engine.answer(engine.take()[0], 0)
    await task
