"""A client goes away and sends its request again: what the dispatcher sends to the engine, and what the client gets."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from dispatcher_bench import Engine, events, finished, prompt, text

from lcpd.engine import protocol as p
from lcpd.scheduler.generation import Begun, Done, Generation, Prompt, QueueTimedOut, Text

HELLO = prompt("hello", client="ada")
GRACE = 5.0


def engine(**options: object) -> Engine:
    return Engine(**{"retry_grace": GRACE, **options}).up()


def said(*tokens: str, request: int) -> p.Step:
    """Tokens of one letter each."""
    return p.Step([p.Output(request, [ord(token)], token) for token in tokens])


def vanish(engine: Engine, prompt: Prompt = HELLO, reply: str = "xyz") -> p.Start:
    """A client that goes away when it has so much of its reply, and the engine's confirmation."""
    generation = engine.dispatcher.submit(prompt)
    start = begin(engine, reply)
    generation.close()
    assert engine.take() == [p.Cancel("fake", generation.id)]
    engine.say(finished(start.request, reply[:-1], "cancelled"))
    return start


def started(engine: Engine) -> p.Start:
    """The Start that is sent once what has to be saved is saved."""
    (start,) = [message for message in engine.save() if isinstance(message, p.Start)]
    return start


def begin(engine: Engine, reply: str) -> p.Start:
    start = engine.start()
    engine.prefill(start)
    for token in reply:
        engine.say(said(token, request=start.request))
    return start


async def the_rest(engine: Engine, generation: Generation, start: p.Start) -> list:
    """Let the engine say one more token and the end; all events but those of progress."""
    engine.say(p.Started(start.request, start.begin), said("!", request=start.request), finished(start.request))
    return [event for event in await events(generation) if isinstance(event, Begun | Text | Done)]


async def test_a_retry_gets_the_reply_from_the_start_and_the_engine_goes_on_behind_it() -> None:
    e = engine()
    vanish(e)
    generation = e.dispatcher.submit(HELLO)
    start = e.start()
    assert (text(start.tokens), text(start.reply), start.begin) == ("hello", "xyz", len("helloxy"))
    begun, *texts, done = await the_rest(e, generation, start)
    assert begun.cached == len("hello")
    assert ("".join(one.text for one in texts), type(done)) == ("xyz!", Done)


async def test_a_retry_that_comes_while_the_first_try_is_being_stopped_waits_for_that() -> None:
    e = engine(slots=2)
    first = e.dispatcher.submit(HELLO)
    begun = begin(e, "xy")
    first.close()
    again, other = e.dispatcher.submit(HELLO), e.dispatcher.submit(prompt("others", client="bob"))
    cancel, start = e.take()
    assert isinstance(cancel, p.Cancel) and isinstance(start, p.Start)
    assert text(start.tokens) == "others", "nobody else waits"
    e.say(said("z", request=begun.request), finished(begun.request, "xy", "cancelled"))
    start = e.start()
    assert (start.request, start.seq, text(start.reply)) == (again.id, begun.seq, "xyz")
    other.close()


async def test_a_retry_of_what_was_stopped_in_its_prefill_computes_the_rest() -> None:
    e = engine(kind="hybrid", alignment=1)
    first = e.dispatcher.submit(prompt("a long prompt"))
    start = e.start()
    e.say(p.Started(start.request, 0), p.Prefilled(start.request, 6, 0.1))
    first.close()
    e.dispatcher.submit(prompt("a long prompt"))
    e.take()
    e.say(p.Prefilled(start.request, 8, 0.1), finished(start.request, "", "cancelled"))
    again = e.start()
    assert (again.seq, again.begin, again.reply) == (start.seq, 8, b"")


async def test_a_reply_that_was_complete_when_its_client_went_is_given_whole() -> None:
    e = engine()
    first = e.dispatcher.submit(HELLO)
    start = begin(e, "xy")
    first.close()
    e.take()
    e.say(said("\0", request=start.request), finished(start.request, "xy", "stop"))
    e.dispatcher.submit(HELLO)
    assert text(e.start().reply) == "xy\0"


async def test_several_retries_lose_nothing_either() -> None:
    e = engine()
    vanish(e)
    second = e.dispatcher.submit(HELLO)
    start = e.start()
    e.say(p.Started(start.request, start.begin), said("!", request=start.request))
    second.close()
    e.take()
    e.say(finished(start.request, "xyz", "cancelled"))
    third = e.dispatcher.submit(HELLO)
    start = e.start()
    assert text(start.reply) == "xyz!"
    _, *texts, _ = await the_rest(e, third, start)
    assert "".join(one.text for one in texts) == "xyz!!"


async def test_a_retry_that_vanishes_before_it_is_started_leaves_the_reply_to_the_next_one() -> None:
    e = engine()
    vanish(e)
    busy = e.dispatcher.submit(prompt("others", client="bob"))
    e.dispatcher.submit(HELLO).close()
    busy_start = started(e)
    e.dispatcher.submit(HELLO)
    e.run(busy_start)
    assert text(started(e).reply) == "xyz"
    busy.close()


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_retry_for_which_no_slot_comes_free_in_time_leaves_the_reply_to_the_next_one(streamed: bool) -> None:
    e = engine(queue_timeout=10)
    vanish(e)
    e.dispatcher.submit(prompt("others", client="bob"))
    busy = started(e)
    asked = replace(HELLO, streamed=streamed)
    late = e.dispatcher.submit(asked)
    e.clock.advance(10)
    with pytest.raises(QueueTimedOut):
        await events(late)
    e.clock.advance(GRACE - 1)
    third = e.dispatcher.submit(asked)
    e.run(busy)
    start = started(e)
    assert (start.request, text(start.reply)) == (third.id, "xyz")


async def test_a_retry_that_waits_too_long_for_the_first_try_to_be_stopped_leaves_its_reply_to_the_next_one() -> None:
    e = engine(queue_timeout=10)
    first = e.dispatcher.submit(HELLO)
    start = begin(e, "xyz")
    first.close()
    late = e.dispatcher.submit(HELLO)
    e.take()
    e.clock.advance(10)
    with pytest.raises(QueueTimedOut):
        await events(late)
    e.say(finished(start.request, "xy", "cancelled"))
    e.dispatcher.submit(HELLO)
    assert text(e.start().reply) == "xyz"


async def test_a_streamed_retry_that_vanishes_before_it_is_started_has_shown_nothing_and_leaves_the_reply_too() -> None:
    e = engine()
    vanish(e)
    e.dispatcher.submit(prompt("others", client="bob"))
    busy = started(e)
    streamed = replace(HELLO, streamed=True)
    e.dispatcher.submit(streamed).close()
    e.dispatcher.submit(streamed)
    e.run(busy)
    assert text(started(e).reply) == "xyz"


async def test_one_that_was_parked_is_remembered_too() -> None:
    e = engine()
    side = prompt("side", priority="background")
    background = e.dispatcher.submit(side)
    start = begin(e, "xy")
    e.dispatcher.submit(prompt("main"))
    (park,) = e.take()
    assert isinstance(park, p.Park)
    e.say(p.Parked(start.request, 0, 4, p.pack(p.unpack(b"x\0\0\0")), p.pack(p.unpack(b"x\0\0\0y\0\0\0"))))
    main = started(e)
    background.close()
    e.dispatcher.submit(side)
    e.run(main)
    assert text(started(e).reply) == "xy"


async def test_a_retry_may_ask_for_a_whole_reply_instead_of_a_stream() -> None:
    e = engine()
    fields = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    vanish(e, replace(HELLO, sampling=json.dumps(fields).encode()))
    e.dispatcher.submit(replace(HELLO, sampling=b'{"temperature": 0, "stream": false}'))
    assert text(e.start().reply) == "xyz"


RANDOM = [b"{}", b'{"temperature": 1}', b'{"temperature": 1, "seed": -1}', b'{"seed": 4294967295}']
REPRODUCIBLE = [b'{"temperature": 0}', b'{"temperature": 1, "seed": 7}']


@pytest.mark.parametrize("sampling", RANDOM)
async def test_who_saw_the_beginning_of_a_random_reply_and_asks_again_gets_another_one(sampling: bytes) -> None:
    e = engine()
    streamed = replace(HELLO, sampling=sampling, streamed=True)
    vanish(e, streamed)
    e.dispatcher.submit(streamed)
    start = e.start()
    assert (start.reply, start.begin) == (b"", len("hello") - 1), "of the prompt nothing is lost"


@pytest.mark.parametrize("sampling", REPRODUCIBLE)
async def test_a_reply_that_would_be_the_same_again_is_gone_on_with_where_it_was_streamed_too(sampling: bytes) -> None:
    e = engine()
    streamed = replace(HELLO, sampling=sampling, streamed=True)
    vanish(e, streamed)
    e.dispatcher.submit(streamed)
    assert text(e.start().reply) == "xyz"


async def test_another_reply_waits_too_until_the_first_is_stopped_and_has_its_prompt_then() -> None:
    e = engine(slots=2)
    streamed = replace(HELLO, streamed=True)
    first = e.dispatcher.submit(streamed)
    begun = begin(e, "xy")
    first.close()
    again = e.dispatcher.submit(streamed)
    assert e.take() == [p.Cancel("fake", first.id)]
    e.say(finished(begun.request, "x", "cancelled"))
    start = e.start()
    assert (start.request, start.reply, start.begin) == (again.id, b"", len("hello") - 1)


async def test_a_random_reply_that_is_gone_on_with_is_not_any_more_once_it_was_shown() -> None:
    e = engine()
    vanish(e)
    streamed = replace(HELLO, streamed=True)
    second = e.dispatcher.submit(streamed)
    start = e.start()
    assert text(start.reply) == "xyz"
    e.say(p.Started(start.request, start.begin), said("!", request=start.request))
    second.close()
    e.take()
    e.say(finished(start.request, "xyz", "cancelled"))
    e.dispatcher.submit(streamed)
    assert started(e).reply == b""


async def test_who_has_an_answer_and_asks_again_is_no_retry() -> None:
    e = engine()
    first = e.dispatcher.submit(HELLO)
    start = begin(e, "xy")
    first.close(answered=True)
    first.close()
    e.take()
    e.say(finished(start.request, "x", "cancelled"))
    e.dispatcher.submit(HELLO)
    assert started(e).reply == b""


async def test_two_equal_requests_at_the_same_time_are_independent() -> None:
    e = engine(slots=2)
    first, second = e.dispatcher.submit(HELLO), e.dispatcher.submit(HELLO)
    begin(e, "xy")
    (start,) = (message for message in e.take() if isinstance(message, p.Start))
    first.close()
    e.say(finished(first.id, "x", "cancelled"))
    assert (start.request, start.reply) == (second.id, b"")
    _, *texts, _ = await the_rest(e, second, start)
    assert "".join(one.text for one in texts) == "!"


@pytest.mark.parametrize(
    "other",
    [
        replace(HELLO, client="bob"),
        replace(HELLO, sampling=b'{"seed": 1}'),
        replace(HELLO, max_tokens=9),
        replace(HELLO, min_tokens=1),
        prompt("hallo", client="ada"),
    ],
)
async def test_another_request_is_no_retry(other: Prompt) -> None:
    e = engine()
    vanish(e)
    e.dispatcher.submit(other)
    assert started(e).reply == b""


async def test_after_the_grace_it_is_a_new_request_and_nothing_is_kept() -> None:
    e = engine()
    vanish(e)
    e.clock.advance(GRACE)
    assert len(e.dispatcher._retries) == 0
    e.save()
    e.dispatcher.submit(HELLO)
    assert started(e).reply == b""


@pytest.mark.parametrize(("grace", "store"), [(0.0, True), (GRACE, False)])
async def test_nothing_is_remembered_where_that_is_not_wanted(grace: float, store: bool) -> None:
    e = engine(retry_grace=grace)
    asked = replace(HELLO, store=store)
    vanish(e, asked)
    e.dispatcher.submit(asked)
    assert e.start().reply == b""


async def test_a_purge_forgets_replies_also_of_what_is_being_stopped() -> None:
    e = engine(slots=2)
    vanish(e)
    running = e.dispatcher.submit(prompt("others"))
    start = begin(e, "xy")
    running.close()
    e.dispatcher.forget()
    e.say(finished(start.request, "x", "cancelled"))
    e.take()
    for asked in (HELLO, prompt("others")):
        e.dispatcher.submit(asked)
        assert e.start().reply == b""


async def test_a_purge_forgets_what_a_retry_that_is_being_stopped_had_of_an_earlier_try() -> None:
    e = engine()
    vanish(e)
    retry = e.dispatcher.submit(HELLO)
    start = e.start()
    retry.close()
    e.dispatcher.forget()
    e.say(p.Started(start.request, start.begin), finished(start.request, "", "cancelled"))
    e.take()
    e.dispatcher.submit(HELLO)
    assert started(e).reply == b""


async def test_a_retry_goes_on_behind_the_reply_also_when_the_engine_dies_meanwhile() -> None:
    e = engine()
    first = e.dispatcher.submit(HELLO)
    begin(e, "xy")
    first.close()
    again = e.dispatcher.submit(HELLO)
    e.take()
    e.dispatcher.on_down("crashed", "crash")
    e.up()
    start = e.start()
    assert (start.request, text(start.reply)) == (again.id, "xy")


async def test_tokens_that_are_said_again_are_not_counted_again() -> None:
    e = engine()
    vanish(e)
    generation = e.dispatcher.submit(HELLO)
    await the_rest(e, generation, e.start())
    assert e.figure("lcpd_generation_tokens_total") == len("xyz!")
