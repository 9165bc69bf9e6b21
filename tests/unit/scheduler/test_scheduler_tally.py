"""What is counted and timed of requests, on a clock that a test sets."""

from __future__ import annotations

import pytest
from dispatcher_bench import Engine, finished, parked, prompt

from lcpd.engine import protocol as p
from lcpd.metrics import Metrics
from lcpd.scheduler.dispatcher import Dispatcher
from lcpd.scheduler.policy import Policy
from lcpd.scheduler.request import Request
from lcpd.scheduler.slots import Span

INTERACTIVE = {"class": "interactive"}


def sums(engine: Engine, *names: str, **labels: str) -> list[float]:
    return [engine.figure(f"lcpd_{name}_seconds_sum", **labels) for name in names]


def tokens(engine: Engine, request: int, count: int) -> None:
    engine.say(p.Step([p.Output(request, [1] * count, "x" * count)]))


async def test_each_phase_of_a_request_has_its_time() -> None:
    engine = Engine()
    engine.clock.advance(5)
    engine.dispatcher.submit(prompt("hello", received=engine.clock.now() - 2))
    engine.clock.advance(3)
    engine.up()
    start = engine.start()
    engine.clock.advance(1)
    engine.say(p.Started(start.request, 0))
    engine.clock.advance(4)
    engine.say(p.Prefilled(start.request, 5, 0.5))
    tokens(engine, start.request, 1)
    engine.clock.advance(8)
    tokens(engine, start.request, 4)
    engine.say(finished(start.request, "xxxx"))
    assert sums(engine, "request_render_time", "request_restore_time", "request_prefill_time") == [2, 1, 4]
    assert sums(engine, "request_decode_time", "inter_token_latency") == [8, 8]
    assert sums(engine, "request_queue_time", "time_to_first_token", "e2e_request_latency", **INTERACTIVE) == [
        3,
        10,
        18,
    ]
    assert engine.figure("lcpd_inter_token_latency_seconds_count") == 4
    assert engine.figure("lcpd_inter_token_latency_seconds_bucket", le="1.0") == 0, "2 s each"
    assert engine.figure("lcpd_prefill_tokens_total") == 5
    assert engine.figure("lcpd_prefill_seconds_total") == 0.5


async def test_all_stays_of_a_parked_request_in_a_phase_count_together() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("one", priority="background"))
    start = engine.start()
    engine.say(p.Started(start.request, 0), p.Prefilled(start.request, 3, 0.1))
    tokens(engine, start.request, 1)
    engine.clock.advance(2)
    other = engine.dispatcher.submit(prompt("two"))
    engine.take()  # the order to park
    engine.say(parked(start.request, "one", 3, "x"))
    (first,) = engine.save()
    assert isinstance(first, p.Start)
    engine.clock.advance(7)
    engine.run(first)
    assert other.over
    (again,) = engine.save()
    assert isinstance(again, p.Start)
    engine.say(p.Started(again.request, again.begin))
    tokens(engine, again.request, 1)
    engine.clock.advance(3)
    engine.say(finished(again.request, "xx"))
    assert sums(engine, "request_queue_time", **{"class": "background"}) == [7]
    assert engine.figure("lcpd_time_to_first_token_seconds_count", **{"class": "background"}) == 1
    assert engine.figure("lcpd_num_preemptions_total", reason="slot") == 1
    assert sums(engine, "inter_token_latency") == [pytest.approx(2 + 7)], "what its reader waited for"


async def test_what_timed_out_in_the_queue_counts_with_its_wait_and_its_prompt() -> None:
    engine = Engine(queue_timeout=100).up()
    engine.dispatcher.submit(prompt("one"))
    start = engine.start()
    engine.say(p.Started(start.request, 0))
    engine.dispatcher.submit(prompt("another"))
    engine.clock.advance(101)
    assert engine.figure("lcpd_request_outcomes_total", outcome="timed-out") == 1
    assert sums(engine, "request_queue_time", **INTERACTIVE) == [pytest.approx(100, abs=1.1)]
    assert engine.figure("lcpd_prompt_tokens_abandoned_total") == len("another")
    assert engine.figure("lcpd_e2e_request_latency_seconds_count", **INTERACTIVE) == 0


@pytest.mark.parametrize(("code", "outcome"), [("invalid", "refused"), ("compute", "failed")])
async def test_what_the_engine_cannot_run_counts_as_refused_or_failed(code: str, outcome: str) -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("hello"))
    start = engine.start()
    engine.say(p.Failed(start.request, code, "no"))  # type: ignore[arg-type]
    assert engine.figure("lcpd_request_outcomes_total", outcome=outcome) == 1
    assert engine.figure("lcpd_prompt_tokens_abandoned_total") == 5


async def test_all_requests_end_with_an_engine_that_will_not_come_back() -> None:
    engine = Engine().up()
    for text in ("one", "two"):
        engine.dispatcher.submit(prompt(text))
    engine.dispatcher.on_failed("crash loop")
    assert engine.figure("lcpd_request_outcomes_total", outcome="engine-failed") == 2
    assert engine.figure("lcpd_num_requests_waiting", **INTERACTIVE) == 0


async def test_a_wait_for_another_request_that_computes_the_same_is_counted() -> None:
    engine = Engine(slots=2).up()
    head, spans = "the same for both. ", (Span("system", 0, 19),)
    engine.dispatcher.submit(prompt(head + "one", *spans))
    start = engine.start()
    engine.say(p.Started(start.request, 0))
    engine.dispatcher.submit(prompt(head + "two", *spans))
    assert engine.figure("lcpd_follows_total") == 1


async def test_what_slots_do_and_hold_is_shown() -> None:
    engine = Engine(slots=3, n_ctx=100).up()

    def states() -> dict[str, float]:
        names = ("idle", "restoring", "prefill", "decode", "parking")
        return {name: count for name in names if (count := engine.figure("lcpd_slots", state=name))}

    assert (states(), engine.figure("lcpd_kv_cells"), engine.figure("lcpd_kv_cells_used")) == ({"idle": 3}, 100, 0)
    engine.dispatcher.submit(prompt("hello"))
    start = engine.start()
    assert states() == {"idle": 2, "restoring": 1}
    engine.say(p.Started(start.request, 0))
    assert states() == {"idle": 2, "prefill": 1}
    engine.say(p.Prefilled(start.request, 5, 0.1))
    tokens(engine, start.request, 1)
    assert states() == {"idle": 2, "decode": 1}
    used = engine.figure("lcpd_kv_cells_used")
    assert used >= 5
    assert engine.figure("lcpd_cache_bytes", tier="vram", kind="segment") == used * engine.info.segment_bytes[1]


async def test_reuse_spares_the_time_that_computing_would_have_taken() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("hello"))
    start = engine.start()
    engine.say(p.Started(start.request, 0), p.Prefilled(start.request, 5, 10.0), finished(start.request))
    assert engine.figure("lcpd_prefill_spared_seconds_total") == 0
    engine.dispatcher.submit(prompt("hello, you"))
    engine.say(p.Started(engine.start().request, 5))
    assert engine.figure("lcpd_prefill_spared_seconds_total") == pytest.approx(5 * 2.0), "at 2 s a token"


async def test_a_request_that_is_over_is_told_of_with_its_course() -> None:
    told: list[tuple[str, str, list[str]]] = []

    def on_over(request: Request, outcome: str) -> None:
        told.append((request.prompt.name, outcome, [one.phase for one in request.course.passed]))

    engine = Engine()
    engine.dispatcher = Dispatcher(
        "fake", 1, Policy(), engine.cache, engine.sent.append, Metrics(), engine.clock, on_over
    )
    engine.up()
    engine.dispatcher.submit(prompt("hello", name="cmpl-1"))
    engine.run(engine.start())
    assert told == [("cmpl-1", "stop", ["waiting", "restore", "prefill", "decode"])]


async def test_a_request_whose_client_leaves_while_it_is_being_parked_ends_once() -> None:
    engine = Engine().up()
    patient = engine.dispatcher.submit(prompt("one", priority="background"))
    start = engine.start()
    engine.say(p.Started(start.request, 0), p.Prefilled(start.request, 3, 0.1))
    tokens(engine, start.request, 1)
    engine.dispatcher.submit(prompt("two"))
    patient.close()
    engine.say(parked(start.request, "one", 3, "x"), finished(start.request, reason="cancelled"))
    assert engine.figure("lcpd_request_outcomes_total", outcome="cancelled") == 1
    assert engine.figure("lcpd_cancels_total", phase="decode") == 1


async def test_a_request_that_was_left_before_the_engine_died_ends_once() -> None:
    engine = Engine().up()
    generation = engine.dispatcher.submit(prompt("hello"))
    engine.say(p.Started(engine.start().request, 0))
    generation.close()
    engine.dispatcher.on_down("killed", "killed")
    engine.up()
    assert engine.figure("lcpd_request_outcomes_total", outcome="cancelled") == 1
    assert engine.figure("lcpd_prompt_tokens_abandoned_total") == 5


async def test_a_prompt_that_is_computed_again_counts_only_what_it_had_not_reached() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt("hello, you"))
    first = engine.start()
    engine.say(p.Started(first.request, 0), p.Prefilled(first.request, 7, 0.1))
    engine.dispatcher.on_down("killed", "killed")
    engine.up()
    again = engine.start()
    engine.say(p.Started(again.request, 0), p.Prefilled(again.request, 4, 0.1), p.Prefilled(again.request, 10, 0.1))
    assert engine.figure("lcpd_prompt_tokens_total", source="computed") == 10
    assert engine.figure("lcpd_prefill_tokens_total") == 17
