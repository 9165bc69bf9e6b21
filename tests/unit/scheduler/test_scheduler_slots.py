"""Which slot a prompt goes to and where computing begins on it: pure decisions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcpd.scheduler.slots import (
    Checkpoint,
    Placement,
    Resume,
    Slot,
    Span,
    Tokens,
    checkpoint_positions,
    common_prefix,
    place,
    resume_point,
    rewound,
    thin,
)


def tokens(text: str) -> Tokens:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def checkpoints(*positions: int) -> tuple[Checkpoint, ...]:
    return tuple(Checkpoint(id=100 + at, position=at) for at in positions)


_TEXT = st.text("ab", max_size=12).map(tokens)
_PROMPT = st.text("ab", min_size=1, max_size=12).map(tokens)


@st.composite
def slots(draw: st.DrawFn) -> Slot:
    held = draw(_TEXT)
    positions = draw(st.sets(st.integers(1, len(held)), max_size=4)) if len(held) else set()
    return Slot(0, held, checkpoints(*sorted(positions)), draw(st.booleans()), draw(st.integers(0, 3)))


# ---- common_prefix ----------------------------------------------------------------------------------------


@given(_TEXT, _TEXT)
def test_the_common_prefix_is_shared_and_cannot_be_longer(a: Tokens, b: Tokens) -> None:
    size = common_prefix(a, b)
    assert a[:size].tolist() == b[:size].tolist()
    assert size == min(len(a), len(b)) or a[size] != b[size]


# ---- resume_point -----------------------------------------------------------------------------------------


@given(slots(), _PROMPT, st.booleans())
def test_a_resume_point_lies_within_what_is_shared_and_leaves_a_token_to_compute(
    slot: Slot, prompt: Tokens, rolls_back: bool
) -> None:
    resume = resume_point(slot, prompt, rolls_back)
    assert 0 <= resume.begin <= min(common_prefix(slot.tokens, prompt), len(prompt) - 1)


@given(slots(), _PROMPT)
def test_a_model_that_rolls_back_resumes_at_the_last_shared_token_without_a_checkpoint(
    slot: Slot, prompt: Tokens
) -> None:
    best = min(common_prefix(slot.tokens, prompt), len(prompt) - 1)
    assert resume_point(slot, prompt, rolls_back=True) == Resume(best)


@given(slots(), _PROMPT)
def test_other_models_resume_only_at_their_live_end_at_a_checkpoint_or_at_0(slot: Slot, prompt: Tokens) -> None:
    resume = resume_point(slot, prompt, rolls_back=False)
    if resume.restore is None:
        assert resume.begin in (0, len(slot.tokens))
    else:
        assert resume.restore in slot.checkpoints
        assert resume.begin == resume.restore.position


@given(slots(), _PROMPT)
def test_other_models_resume_at_the_latest_place_that_they_can(slot: Slot, prompt: Tokens) -> None:
    limit = min(common_prefix(slot.tokens, prompt), len(prompt) - 1)
    possible = [0, len(slot.tokens), *(c.position for c in slot.checkpoints)]
    assert resume_point(slot, prompt, rolls_back=False).begin == max(at for at in possible if at <= limit)


@pytest.mark.parametrize(
    ("held", "at", "prompt", "rolls_back", "expected"),
    [
        pytest.param("", (), "abc", False, Resume(0), id="an empty slot"),
        pytest.param("abc", (), "abcd", False, Resume(3), id="the live end, one token more"),
        pytest.param("abc", (), "abc", True, Resume(2), id="the same prompt again, rolled back by one"),
        pytest.param("abc", (), "abc", False, Resume(0), id="the same prompt again without a checkpoint"),
        pytest.param("abc", (2,), "abc", False, Resume(2, Checkpoint(102, 2)), id="and with one"),
        pytest.param("abcd", (1, 3), "abxx", False, Resume(1, Checkpoint(101, 1)), id="only a checkpoint before"),
        pytest.param("abcd", (3,), "abxx", False, Resume(0), id="only a checkpoint after"),
        pytest.param("abcd", (), "abxx", True, Resume(2), id="diverged on attention"),
    ],
)
def test_resume_points_by_example(
    held: str, at: tuple[int, ...], prompt: str, rolls_back: bool, expected: Resume
) -> None:
    slot = Slot(0, tokens(held), checkpoints(*at))
    assert resume_point(slot, tokens(prompt), rolls_back) == expected


# ---- place ------------------------------------------------------------------------------------------------


def cost(placement: Placement, prompt: Tokens) -> int:
    begin = placement.resume.begin
    return (len(prompt) - begin) + (len(placement.slot.tokens) - begin)


@given(
    st.lists(slots(), max_size=4).map(lambda many: [replace(s, seq=i) for i, s in enumerate(many)]),
    _PROMPT,
    st.booleans(),
)
def test_a_prompt_goes_to_the_idle_slot_where_it_costs_least_and_then_to_the_one_used_longest_ago(
    many: list[Slot], prompt: Tokens, rolls_back: bool
) -> None:
    idle = [Placement(slot, resume_point(slot, prompt, rolls_back)) for slot in many if not slot.busy]
    chosen = place(many, prompt, rolls_back)
    if not idle:
        assert chosen is None
        return
    assert chosen is not None
    assert not chosen.slot.busy
    assert chosen.resume == resume_point(chosen.slot, prompt, rolls_back)
    best = min((cost(p, prompt), p.slot.last_used) for p in idle)
    assert (cost(chosen, prompt), chosen.slot.last_used) == best


def test_a_side_session_goes_to_an_empty_slot_and_not_over_a_long_conversation() -> None:
    main, empty = Slot(0, tokens("system: main conversation")), Slot(1)
    placement = place([main, empty], tokens("system: title"), rolls_back=True)
    assert placement is not None
    assert placement.slot is empty


def test_the_next_turn_goes_back_to_its_own_slot() -> None:
    mine, other = Slot(0, tokens("system: mine")), Slot(1, tokens("system: other"), last_used=9)
    placement = place([other, mine], tokens("system: mine, more"), rolls_back=True)
    assert placement == Placement(mine, Resume(len("system: mine")))


# ---- rewound ----------------------------------------------------------------------------------------------


@given(slots(), st.data())
def test_a_rewound_slot_keeps_just_what_lies_up_to_the_resume_point(slot: Slot, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(slot.tokens)))
    after = rewound(slot, Resume(begin))
    assert after.tokens.tolist() == slot.tokens[:begin].tolist()
    assert after.checkpoints == tuple(c for c in slot.checkpoints if c.position <= begin)
    assert (after.seq, after.busy, after.last_used) == (slot.seq, slot.busy, slot.last_used)


@given(slots(), _PROMPT, st.booleans())
def test_what_a_rewound_slot_holds_is_a_beginning_of_the_prompt_and_the_restored_checkpoint_is_kept(
    slot: Slot, prompt: Tokens, rolls_back: bool
) -> None:
    resume = resume_point(slot, prompt, rolls_back)
    after = rewound(slot, resume)
    assert after.tokens.tolist() == prompt[: resume.begin].tolist()
    if resume.restore is not None:
        assert resume.restore in after.checkpoints


def test_rewinding_does_not_change_the_slot_it_was_given() -> None:
    slot = Slot(0, tokens("abcd"), checkpoints(2, 4))
    rewound(slot, Resume(1))
    assert slot.tokens.tolist() == tokens("abcd").tolist()
    assert slot.checkpoints == checkpoints(2, 4)


# ---- checkpoint_positions ---------------------------------------------------------------------------------


def messages(*roles_and_lengths: tuple[str, int]) -> list[Span]:
    spans, begin = [], 0
    for role, length in roles_and_lengths:
        spans.append(Span(role, begin, length))
        begin += length
    return spans


_MESSAGES = st.lists(
    st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), st.integers(0, 9)), max_size=6
).map(lambda many: messages(*many))


@given(_MESSAGES, st.integers(0, 60), st.integers(0, 60))
def test_checkpoints_are_planned_strictly_inside_of_what_is_computed_and_in_order(
    spans: list[Span], begin: int, length: int
) -> None:
    positions = checkpoint_positions(spans, begin, length)
    assert all(begin < at < length for at in positions)
    assert positions == sorted(set(positions))
    assert len(positions) <= 3


CHAT = messages(("system", 10), ("user", 5), ("assistant", 7), ("user", 4))  # 26 tokens, then the generation prompt


def test_they_lie_at_the_end_of_the_head_before_the_last_user_message_and_at_the_end_of_the_last_message() -> None:
    assert checkpoint_positions(CHAT, 0, 29) == [10, 22, 26]


def test_none_is_planned_where_the_slot_stands_already_or_before_it() -> None:
    assert checkpoint_positions(CHAT, 10, 29) == [22, 26]
    assert checkpoint_positions(CHAT, 22, 29) == [26]


def test_none_is_planned_at_the_very_end_of_the_prompt_where_the_last_token_is_computed_again() -> None:
    assert checkpoint_positions(messages(("system", 10), ("user", 5)), 0, 15) == [10]


def test_a_prompt_that_ends_with_a_begun_reply_has_its_last_checkpoint_before_that_reply() -> None:
    spans = messages(("system", 10), ("user", 5), ("assistant", 7))
    assert checkpoint_positions(spans, 0, 22) == [10, 15]


def test_tool_results_after_the_last_user_message_have_a_checkpoint_at_their_end() -> None:
    spans = messages(("user", 5), ("assistant", 7), ("tool", 6))
    assert checkpoint_positions(spans, 0, 21) == [18]


def test_a_prompt_that_is_no_chat_has_none() -> None:
    assert checkpoint_positions([], 0, 100) == []


# ---- thin -------------------------------------------------------------------------------------------------


@given(st.sets(st.integers(1, 50), max_size=10), st.integers(0, 10))
def test_thinning_keeps_the_head_and_the_latest_and_drops_the_rest(positions: set[int], limit: int) -> None:
    given_ = checkpoints(*positions)
    kept, dropped = thin(given_, limit)
    assert len(kept) == min(limit, len(given_))
    assert {*kept, *dropped} == {*given_}
    assert len(kept) + len(dropped) == len(given_)
    in_order = sorted(positions)
    assert [c.position for c in kept] == sorted(c.position for c in kept)
    if limit >= 2 and in_order:
        assert kept[0].position == in_order[0]
    if limit >= 1 and in_order:
        assert kept[-1].position == in_order[-1]
    latest = [c.position for c in kept][1:]
    assert latest == in_order[len(in_order) - len(latest) :]
