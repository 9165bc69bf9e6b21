"""When a worker is started again, and when it counts as hung."""

from __future__ import annotations

import pytest

from lcpd.engine.policy import Death, RestartPolicy, Watchdog
from lcpd.engine.protocol import Beat

POLICY = RestartPolicy(backoff=0.5, backoff_max=3, crash_limit=5, crash_window=100)


@pytest.mark.parametrize(
    ("crashes", "delay"),
    [
        ([0], 0.5),
        ([0, 0], 1.0),
        ([0, 0, 0], 2.0),
        ([0, 0, 0, 0], 3.0),  # 4.0, capped
        ([0, 0, 0, 0, 0], None),  # a crash loop
    ],
)
def test_the_delay_doubles_up_to_its_cap_until_it_is_a_crash_loop(crashes: list[float], delay: float | None) -> None:
    assert POLICY.delay(deaths(*crashes), now=1) == delay


def test_crashes_before_the_window_are_forgotten() -> None:
    assert POLICY.delay(deaths(0, 1, 2, 3, 150), now=150) == 0.5


def test_a_crash_exactly_one_window_ago_still_counts() -> None:
    assert POLICY.delay(deaths(50, 150), now=150) == 1.0


def test_crashes_before_the_engine_computed_something_do_not_count() -> None:
    assert POLICY.delay([*deaths(0, 0, 0, 0), Death(0, computed=True), *deaths(0)], now=1) == 0.5


@pytest.mark.parametrize(("kills", "delay"), [(1, 0.5), (9, 0.5), (10, 1.0), (24, 3.0), (25, None)])
def test_a_death_by_sigkill_counts_a_fifth_of_a_crash(kills: int, delay: float | None) -> None:
    assert POLICY.delay([Death(0, killed=True)] * kills, now=1) == delay


def deaths(*times: float) -> list[Death]:
    """Crashes of an engine that has computed nothing."""
    return [Death(time) for time in times]


def beat(batches: int = 0, running: int = 0) -> Beat:
    return Beat(batches=batches, tokens=batches, running=running)


def test_an_idle_worker_that_beats_is_well_for_ever() -> None:
    dog = Watchdog(timeout=40, heard=0)
    for now in range(0, 1000, 5):
        dog.hear(beat(), now)
        assert dog.verdict(now) is None
        assert not dog.late(now)


def test_silence_longer_than_the_timeout_is_a_hang() -> None:
    dog = Watchdog(timeout=40, heard=0)
    dog.hear(beat(), 10)
    assert dog.verdict(50) is None
    assert dog.verdict(51) == "no sign of life from the decode loop for 41 s (engine.heartbeat_timeout)"


def test_a_worker_that_never_beats_is_measured_from_the_start() -> None:
    dog = Watchdog(timeout=40, heard=100)
    assert dog.verdict(140) is None
    assert dog.verdict(141) is not None


def test_beats_without_progress_while_requests_run_are_a_hang() -> None:
    dog = Watchdog(timeout=40, heard=0)
    for now in range(0, 45, 5):
        dog.hear(beat(batches=7, running=1), now)
    assert dog.verdict(40) is None
    assert dog.verdict(41) == "requests run but no batch was decoded for 41 s (engine.heartbeat_timeout)"


def test_progress_keeps_a_busy_worker_well() -> None:
    dog = Watchdog(timeout=40, heard=0)
    for now in range(0, 400, 20):
        dog.hear(beat(batches=now, running=1), now)
        assert dog.verdict(now) is None


def test_a_request_that_begins_after_a_long_idle_time_is_measured_from_then() -> None:
    dog = Watchdog(timeout=40, heard=0)
    dog.hear(beat(batches=3, running=0), 1000)
    dog.hear(beat(batches=3, running=1), 1030)
    assert dog.verdict(1040) is None
    dog.hear(beat(batches=3, running=1), 1041)
    assert dog.verdict(1041) is not None


def test_a_quarter_of_the_timeout_without_progress_is_late() -> None:
    dog = Watchdog(timeout=40, heard=0)
    dog.hear(beat(batches=1, running=1), 0)
    assert not dog.late(10)
    assert dog.late(11)
    dog.hear(beat(batches=1, running=1), 11)  # a beat, but no batch
    assert dog.late(11)
    dog.hear(beat(batches=2, running=1), 12)
    assert not dog.late(12)
