"""When live state is copied to RAM: the table of `saving`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lcpd.scheduler.policy import Policy
from lcpd.scheduler.saving import AHEAD, Live, OrderCheckpoint, SaveFront, SaveIdle, decide, next_moment

POLICY = Policy(checkpoint_interval=1600, save_after=5, save_every=30)
PREFILL = Live(seq=1, running=True, decoding=False, held=5000, exported=4200, since=100, checkpoint=4300, tail=9000)
REPLY = Live(seq=1, running=True, decoding=True, held=9100, exported=9000, since=100, checkpoint=8900, tail=9000)
IDLE = Live(seq=1, running=False, decoding=False, held=10, exported=0, since=100)


def test_a_prompt_is_saved_every_half_interval_where_sequences_can_be_truncated() -> None:
    assert decide(PREFILL, POLICY, rolls_back=True, now=100) == SaveFront(1, 5000, tail=False)
    assert decide(replace(PREFILL, exported=4201), POLICY, rolls_back=True, now=100) is None


def test_a_prompt_is_saved_up_to_its_last_checkpoint_where_they_cannot() -> None:
    assert decide(PREFILL, POLICY, rolls_back=False, now=100) == SaveFront(1, 4300, tail=False)
    assert decide(replace(PREFILL, exported=4201), POLICY, rolls_back=False, now=100) is None


def test_the_tail_of_a_reply_is_saved_when_its_time_has_come() -> None:
    assert decide(REPLY, POLICY, rolls_back=True, now=129) is None
    assert decide(REPLY, POLICY, rolls_back=True, now=130) == SaveFront(1, 9100, tail=True)


def test_where_a_tail_needs_a_checkpoint_one_is_ordered_and_saved_once_it_is_there() -> None:
    assert decide(REPLY, POLICY, rolls_back=False, now=130) == OrderCheckpoint(1, 9100 + AHEAD)
    taken = replace(REPLY, since=130, checkpoint=9164, held=9200)
    assert decide(taken, POLICY, rolls_back=False, now=133) == SaveFront(1, 9164, tail=False)


def test_an_idle_slot_is_saved_when_it_has_been_idle_long_enough() -> None:
    assert decide(IDLE, POLICY, rolls_back=True, now=104) is None
    assert decide(IDLE, POLICY, rolls_back=True, now=105) == SaveIdle(1)
    assert decide(replace(IDLE, held=0), POLICY, rolls_back=True, now=105) is None


@pytest.mark.parametrize("live", [REPLY, IDLE])
def test_zero_means_never(live: Live) -> None:
    policy = replace(POLICY, save_after=0, save_every=0)
    assert decide(live, policy, rolls_back=True, now=1e9) is None
    assert next_moment(live, policy, now=1e9) is None


def test_the_next_look_is_when_something_is_due() -> None:
    assert next_moment(IDLE, POLICY, now=101) == 105
    assert next_moment(REPLY, POLICY, now=101) == 130
    assert next_moment(IDLE, POLICY, now=106) is None  # something else holds it up, which will be news
    assert next_moment(PREFILL, POLICY, now=200) == 230
