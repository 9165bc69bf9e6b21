"""Requests that go on from one another: followers, and prompts that are computed ahead."""

from __future__ import annotations

from dispatcher_bench import Engine, events, finished, held, piece, prompt

from lcpd.engine import protocol as p
from lcpd.scheduler.generation import (
    Done,
    Prompt,
)

# ---- single flight -----------------------------------------------------------------------------------------


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


# ---- anticipations -----------------------------------------------------------------------------------------


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
    assert engine.figure("lcpd_num_requests_running", **{"class": "interactive"}) == 0
    start = engine.start()
    engine.prefill(start)
    engine.say(finished(start.request, "", "length"))
    assert engine.figure("lcpd_prompt_tokens_total", source="anticipated") == 5
    assert engine.figure("lcpd_prompt_tokens_total", source="computed") == 5
    assert engine.figure("lcpd_prompt_tokens_total", source="vram") == 0
    assert engine.figure("lcpd_request_prefill_time_seconds_count") == 1
    assert engine.figure("lcpd_time_to_first_token_seconds_count", **{"class": "interactive"}) == 1
    assert engine.figure("lcpd_cache_miss_tokens_total", reason="cold") == 5


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
