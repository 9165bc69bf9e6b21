"""Who is blamed for a death of the worker: the table of `recovery`, and what holds whatever happens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcpd.scheduler.generation import Prompt
from lcpd.scheduler.recovery import (
    CLEAN,
    FAULTS,
    KILLED,
    KILLS,
    QUARANTINE_SECONDS,
    Quarantine,
    Record,
    after_death,
    after_progress,
    fingerprint,
    guilty,
)

PROMPT = Prompt(np.array([1, 2, 3], np.int32), (), b'{"top_k":1}', 10)


@pytest.mark.parametrize(
    ("deaths", "blamed"),
    [
        ([("crash", True)], False),
        ([("crash", False), ("crash", True)], True),
        ([("crash", True), ("hang", True)], True),
        ([("crash", False), ("crash", False)], False),
        ([(KILLED, False), ("crash", True)], False),
        ([("crash", False), ("crash", False), (KILLED, True)], False),
        ([(KILLED, True)] * (KILLS - 1), False),
        ([(KILLED, True)] * KILLS, True),
        ([(KILLED, False)] * 100, False),
    ],
)
def test_a_request_is_blamed_for_a_second_death_that_it_saw_alone(deaths: list[tuple[str, bool]], blamed: bool) -> None:
    record = CLEAN
    for cause, alone in deaths:
        record = after_death(record, 10, cause, alone)
    cause, alone = deaths[-1]
    assert guilty(record, cause, alone) is blamed


def test_a_suspect_is_cleared_when_it_gets_past_where_it_stood_and_not_before() -> None:
    record = after_death(CLEAN, 10, "crash", alone=True)
    assert after_progress(record, 10) == record
    assert after_progress(record, 11) == CLEAN


def test_where_it_stood_is_the_furthest_that_it_ever_got() -> None:
    record = after_death(after_death(CLEAN, 10, KILLED, alone=True), 4, KILLED, alone=True)
    assert record == Record(stood=10, kills=2, alone=2)


def test_the_one_that_saw_more_faults_is_more_suspicious_however_many_kills_another_saw() -> None:
    assert Record(faults=1).weight > Record(kills=19, alone=19).weight


STEPS = st.lists(st.tuples(st.sampled_from(["crash", "hang", KILLED]), st.booleans(), st.integers(0, 20)))


@given(STEPS)
def test_nobody_is_blamed_with_fewer_deaths_than_it_takes_since_the_last_progress(
    steps: list[tuple[str, bool, int]],
) -> None:
    record, faults, kills = CLEAN, 0, 0
    for cause, alone, reached in steps:
        before, record = record, after_progress(record, reached)
        if before.suspect and not record.suspect:
            faults = kills = 0
        record = after_death(record, reached, cause, alone)
        faults, kills = faults + (cause != KILLED), kills + (cause == KILLED and alone)
        assert guilty(record, cause, alone) == (alone and (kills >= KILLS if cause == KILLED else faults >= FAULTS))


def test_a_prompt_is_refused_for_ten_minutes_and_no_other() -> None:
    quarantine = Quarantine()
    quarantine.add(fingerprint(PROMPT), now=100)
    assert quarantine.seconds_left(PROMPT, now=101) == QUARANTINE_SECONDS - 1
    assert quarantine.seconds_left(replace(PROMPT, sampling=b"{}"), now=101) == 0
    assert quarantine.seconds_left(replace(PROMPT, tokens=PROMPT.tokens[:2]), now=101) == 0
    assert quarantine.seconds_left(PROMPT, now=100 + QUARANTINE_SECONDS) == 0


def test_the_quarantine_does_not_grow_without_end() -> None:
    quarantine = Quarantine()
    for number in range(1000):
        quarantine.add(str(number), now=0)
    assert len(quarantine) == 256
