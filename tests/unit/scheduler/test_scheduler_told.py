"""What the dispatcher tells: cache reports and metrics."""

from __future__ import annotations

from typing import Any

from dispatcher_bench import TEXT, TURN_1, Engine, finished, piece, prompt

from lcpd.engine import protocol as p
from lcpd.scheduler.generation import (
    Begun,
)

# ---- cache reports -----------------------------------------------------------------------------------------


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
    assert engine.figure("lcpd_cache_miss_tokens_total", reason="cold") == 51
    assert engine.figure("lcpd_cache_miss_tokens_total", reason="diverged") == 1


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


# ---- metrics -----------------------------------------------------------------------------------------------


async def test_running_and_waiting_are_shown_as_they_are() -> None:
    engine = Engine().up()

    def load_shown() -> tuple[Any, Any]:
        shown = (
            engine.figure(f"lcpd_num_requests_{name}", **{"class": "interactive"}) for name in ("running", "waiting")
        )
        return next(shown), next(shown)

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
    assert engine.figure("lcpd_request_prefill_time_seconds_count") == 3
    assert engine.figure("lcpd_time_to_first_token_seconds_count", **{"class": "interactive"}) == 3


async def test_restarts_are_counted_by_cause_and_checkpoints_by_size() -> None:
    engine = Engine(kind="hybrid").up()
    engine.dispatcher.submit(TURN_1)
    engine.run(engine.start())
    engine.dispatcher.on_down("silence", "hang")
    assert engine.figure("lcpd_worker_restarts_total", cause="hang") == 1
    assert engine.figure("lcpd_checkpoint_size_bytes_sum") == 2000


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
    assert engine.figure("lcpd_cache_copy_runs_total") == 5


async def test_what_the_cache_holds_is_shown_as_it_is_when_it_is_asked_for() -> None:
    engine = Engine().up()
    engine.dispatcher.submit(prompt(TEXT))
    engine.run(engine.start(), "")
    assert engine.figure("lcpd_cache_used_bytes", tier="ram") == 0
    engine.dispatcher.submit(prompt("something else"))
    assert engine.figure("lcpd_cache_bytes", tier="ram", kind="reserved") > 0
    engine.save()
    assert engine.figure("lcpd_cache_bytes", tier="ram", kind="reserved") == 0
    assert engine.figure("lcpd_cache_bytes", tier="ram", kind="segment") > 0
    assert engine.figure("lcpd_cache_used_bytes", tier="ram") >= engine.figure(
        "lcpd_cache_bytes", tier="ram", kind="segment"
    )
