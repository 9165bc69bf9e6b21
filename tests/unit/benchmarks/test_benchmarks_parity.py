"""Which pairs of a measurement count, and what the machine did meanwhile."""

from __future__ import annotations

import argparse
import os

import pytest
from benchmarks.client import Rates
from benchmarks.engine_parity import Pair, choose, counts
from benchmarks.machine import OTHERS_LIMIT, Usage, busy_seconds, others_share
from benchmarks.ratios import MIN_PAIRS

RATES = Rates(prefill=1.0, decode=1.0, total=1.0, server_prefill=1.0, server_decode=1.0)
CLEAN = Pair(RATES, RATES, others=OTHERS_LIMIT)
DISTURBED = Pair(RATES, RATES, others=OTHERS_LIMIT + 0.01)


def test_disturbed_pairs_are_left_out() -> None:
    used, note = choose([CLEAN] * MIN_PAIRS + [DISTURBED] * 30)
    assert used == [CLEAN] * MIN_PAIRS
    assert "30 were left out" in note


def test_all_pairs_count_where_too_few_are_undisturbed() -> None:
    pairs = [CLEAN] * (MIN_PAIRS - 1) + [DISTURBED] * 4
    used, note = choose(pairs)
    assert used == pairs
    assert "disturbed 4 of them" in note


def test_the_share_of_others_is_what_is_not_ours() -> None:
    assert others_share(Usage(100.0, 50.0, 20.0), Usage(104.0, 57.0, 26.0)) == pytest.approx(1 / 4)


def test_the_share_of_others_is_never_negative() -> None:
    assert others_share(Usage(0.0, 0.0, 0.0), Usage(1.0, 1.9, 2.0)) == 0.0


def test_time_idle_and_waiting_for_disks_is_not_busy_but_stolen_time_is() -> None:
    tick = os.sysconf("SC_CLK_TCK")
    line = f"cpu  {1 * tick} {2 * tick} {3 * tick} {1000 * tick} {500 * tick} {4 * tick} {5 * tick} {6 * tick} 0 0"
    assert busy_seconds(f"{line}\ncpu0 1 2 3\n") == 21.0


def test_numbers_of_streams_are_a_list() -> None:
    assert counts("1,2,8") == [1, 2, 8]


@pytest.mark.parametrize("text", ["", "1,,2", "two", "0", "4,-1"])
def test_a_list_of_streams_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        counts(text)
