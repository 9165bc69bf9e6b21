"""What counts as passed, and what the report shows."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def outcome():
    from check_gpu import outcome

    return outcome


def findings(outcome, *passed):
    found = outcome.Findings()
    for number, value in enumerate(passed):
        found.check(f"check {number}", value, "1, bound 2")
    return found


def test_a_step_passes_when_all_its_checks_do(outcome):
    assert outcome.judge("text", 1.0, findings(outcome, True, True)).status == outcome.PASSED


def test_a_failed_step_names_the_checks_that_failed(outcome):
    result = outcome.judge("text", 1.0, findings(outcome, True, False))
    assert (result.status, result.reason) == (outcome.FAILED, "check 1")


def test_a_step_that_checked_nothing_has_not_passed(outcome):
    found = outcome.Findings()
    found.figure("speed", 3, "GB/s")
    assert outcome.judge("copy", 1.0, found).status == outcome.FAILED


def test_a_step_that_was_left_out_spoils_the_whole(outcome):
    passed = outcome.judge("build", 1.0, findings(outcome, True))
    left_out = outcome.StepOutcome("text", outcome.LEFT_OUT, 0.0, "no time was left", outcome.Findings())
    assert outcome.all_passed([passed])
    assert not outcome.all_passed([passed, left_out])
    assert not outcome.all_passed([])


def test_the_table_shows_every_check_figure_and_note_and_what_was_not_run(outcome):
    found = findings(outcome, True, False)
    found.figure("f16 out", 12.345, "GB/s")
    found.notes.append("pageable only")
    left_out = outcome.StepOutcome("speed", outcome.LEFT_OUT, 0.0, "no time was left", outcome.Findings())
    text = outcome.table("a card", [outcome.judge("copy", 2.5, found), left_out])
    for part in (
        "a card",
        "check 0",
        "FAILED  check 1",
        "12.3",
        "GB/s",
        "note (copy): pageable only",
        "no time was left",
    ):
        assert part in text
    assert "NOT RUN: speed" in text
    assert text.endswith("check-gpu: FAILED\n")


def test_findings_survive_the_way_through_json(outcome):
    found = findings(outcome, True)
    found.figure("x", 1.5, "ms")
    found.values["build"] = "cpu-1"
    assert outcome.Findings.from_json(json.loads(json.dumps(found.to_json()))) == found
