"""When the service manager is to think that the daemon is stuck."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lcpd.config.settings import EngineSettings
from lcpd.engine.supervisor import State
from lcpd.watchdog import Facts, Lookout, Sight, limits, look, stuck

ENGINE = EngineSettings()
ALLOWED = limits(ENGINE)
BUSY = Facts(work=True, state=State.READY, progress=1.0, batches=7)
IDLE = replace(BUSY, work=False)
AGES = 1e6


@pytest.mark.parametrize("state", State)
def test_an_idle_daemon_is_healthy_whatever_the_engine_does(state: State) -> None:
    assert stuck(Sight(replace(IDLE, state=state), 0.0), ALLOWED, AGES) is None


@pytest.mark.parametrize("state", [State.FAILED, State.STOPPED])
def test_a_daemon_that_answers_with_the_engines_failure_is_healthy(state: State) -> None:
    assert stuck(Sight(replace(BUSY, state=state), 0.0), ALLOWED, AGES) is None


@pytest.mark.parametrize("state", [state for state in State if state not in (State.FAILED, State.STOPPED)])
def test_requests_without_any_progress_mean_that_it_is_stuck_and_the_reason_says_where(state: State) -> None:
    limit = ALLOWED[state]
    sight = Sight(replace(BUSY, state=state), 100.0)
    assert stuck(sight, ALLOWED, 100.0 + limit) is None
    assert str(state) in (stuck(sight, ALLOWED, 101.0 + limit) or "")


@pytest.mark.parametrize(
    ("state", "own"),
    [
        (State.READY, ENGINE.heartbeat_timeout * 9 / 8 + ENGINE.stop_timeout),
        (State.STARTING, ENGINE.start_timeout + ENGINE.stop_timeout),
        (State.LOADING, ENGINE.load_timeout + ENGINE.stop_timeout),
        (State.RESTARTING, ENGINE.restart_backoff_max),
    ],
)
def test_the_supervisor_has_time_to_do_something_about_it_first(state: State, own: float) -> None:
    assert ALLOWED[state] > own + 10


@pytest.mark.parametrize(
    "change",
    [{"batches": 8}, {"state": State.RESTARTING}, {"progress": 0.5}, {"work": False}],
    ids=lambda change: next(iter(change)),
)
def test_whatever_changes_is_progress(change: dict[str, object]) -> None:
    sight = look(Sight(BUSY, 0.0), replace(BUSY, **change), 50.0)  # type: ignore[arg-type]
    assert sight.since == 50.0


def test_what_stays_the_same_is_seen_since_it_was_first_seen() -> None:
    assert look(look(None, BUSY, 3.0), BUSY, 50.0) == Sight(BUSY, 3.0)


def test_the_lookout_remembers_what_it_saw_before() -> None:
    facts = [BUSY, BUSY, replace(BUSY, batches=8)]
    allowed = {State.READY: -1.0}
    lookout = Lookout(lambda: facts.pop(0), allowed)
    assert "nothing has happened for 0 s" in (lookout() or "")
    assert lookout() is not None
    assert Lookout(lambda: BUSY, ALLOWED)() is None
