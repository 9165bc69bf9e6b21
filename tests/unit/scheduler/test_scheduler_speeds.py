"""Speeds are guessed until they are measured, and what took long counts for more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fakes.vocab import tokens
from fakes.worker import load, model_info
from lcpd.scheduler.cells import Run
from lcpd.scheduler.placement import Costs, Demand, costs_of, place
from lcpd.scheduler.slots import Known, Resume, Slot
from lcpd.scheduler.speeds import Rate, Speeds, guessed


def test_a_rate_is_a_guess_until_it_is_measured() -> None:
    rate = Rate(1000.0)
    assert rate.value == 1000.0
    rate.observe(50, 0.1)
    assert rate.value == pytest.approx(500.0)


def test_what_took_long_counts_for_more() -> None:
    rate = Rate(1.0)
    rate.observe(1000, 1.0)
    rate.observe(1, 0.0001)
    assert rate.value == pytest.approx(1000, rel=0.01)


def test_old_measurements_fade() -> None:
    rate = Rate(1.0)
    for speed in [100.0] * 50 + [1000.0] * 50:
        rate.observe(speed, 1.0)
    assert rate.value == pytest.approx(1000, rel=0.01)


def test_nothing_is_learned_from_what_took_no_time() -> None:
    rate = Rate(7.0)
    rate.observe(5, 0.0)
    rate.observe(0, 5.0)
    assert rate.value == 7.0


def test_a_27b_model_is_guessed_at_about_1000_tokens_a_second_on_a_gpu_and_a_few_without() -> None:
    big = msgspec.structs.replace(model_info(load()), n_params=27_000_000_000)
    assert 500 < guessed(msgspec.structs.replace(big, devices={"CUDA0": 64})).prefill.value < 2000
    assert 1 <= guessed(big).prefill.value < 5


# ---- what follows from them --------------------------------------------------------------------------------


def slot(seq: int, text: str, **rest: Any) -> Slot:
    return Slot(seq, tokens(text), (Run(seq, len(text)),) if text else (), **rest)


def test_costs_are_the_measured_seconds() -> None:
    speeds = Speeds(prefill=500.0)
    speeds.restore.observe(4_000_000, 0.5)
    speeds.save.observe(4_000_000, 1.0)
    costs = costs_of(speeds, token_bytes=8000, checkpoint_bytes=80_000, saves=True)
    assert costs == Costs(compute=0.002, restore=0.001, checkpoint=0.01, lose=0.003, park=0.03, cell=costs.cell)
    assert costs.cell < costs.restore


def test_cells_cost_nothing_where_no_attention_looks_at_them() -> None:
    costs = costs_of(Speeds(prefill=500.0), token_bytes=0, checkpoint_bytes=80_000, saves=True)
    assert (costs.cell, costs.restore) == (0.0, 0.0)


def test_what_cannot_be_saved_costs_its_computing_when_it_is_overwritten() -> None:
    costs = costs_of(Speeds(prefill=500.0), token_bytes=8000, checkpoint_bytes=80_000, saves=False)
    assert (costs.lose, costs.park) == (0.002, 0.0)


def test_what_is_dear_to_bring_back_is_computed_instead() -> None:
    slots = [slot(0, "")]
    demand = Demand(tokens("system: title"), 14)
    known = Known(8, (8,))
    quick = Costs(checkpoint=0.001)
    assert place(slots, demand, known, False, 100, quick).resume == Resume(8, restore=True)  # type: ignore[union-attr]
    shared = [slot(0, "sys"), slot(1, "")]
    slow = replace(quick, checkpoint=1.0)
    found = place(shared, demand, known, False, 100, slow)
    assert found is not None
    assert found.resume == Resume(3, 0, 3)
