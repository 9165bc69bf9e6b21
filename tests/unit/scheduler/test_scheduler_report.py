"""Why tokens are computed: every range has one reason, and together they are all that is computed."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fakes.vocab import tokens
from lcpd.cache.history import Loss, Past
from lcpd.scheduler.placement import Placement
from lcpd.scheduler.report import (
    MISSES,
    CacheReport,
    Divergence,
    Facts,
    Recomputed,
    fallen_back,
    report,
    role_at,
)
from lcpd.scheduler.slots import COLD, Known, Resume, Slot, Span, resumes

HEAD = "you are an agent with tools. "  # 29 tokens
ALL = HEAD + "question"
SPANS = (Span("system", 0, 29), Span("user", 29, 8))


def facts(prompt: str = ALL, *slots: Slot, known: Known | None = None, past: Past | None = None, **rest: Any) -> Facts:
    fields: dict[str, Any] = {"rolls_back": True, "spans": SPANS, **rest}
    return Facts(tokens(prompt), slots=slots, known=known or Known(), past=past or Past(), **fields)


def ids(text: str) -> tuple[int, ...]:
    return tuple(tokens(text).tolist())


def why(given: Facts, resume: Resume = COLD, seq: int = 0) -> list[tuple[int, int, str]]:
    return [(one.begin, one.end, one.reason) for one in report(given, Placement(seq, resume)).reasons]


# ---- where tokens come from --------------------------------------------------------------------------------


def test_tokens_of_the_own_slot_of_ram_and_computed_ones_add_up() -> None:
    slot = Slot(2, tokens(HEAD))
    found = report(facts(ALL, slot, known=Known(33), past=Past(33)), Placement(2, Resume(33, 2, 29)), name="chatcmpl-1")
    assert found == CacheReport(
        prompt=37,
        begin=33,
        vram=29,
        shared=0,
        ram=4,
        computed=4,
        known=33,
        matched=33,
        seq=2,
        name="chatcmpl-1",
        reasons=(Recomputed(33, 37, "new", "these tokens follow what was known"),),
    )


def test_tokens_of_another_slot_are_shared_ones() -> None:
    found = report(facts(ALL, Slot(0, tokens(HEAD)), Slot(1)), Placement(1, Resume(29, 0, 29, restore=True)))
    assert (found.vram, found.shared, found.ram, found.checkpoint) == (0, 29, 0, True)


# ---- no misses ---------------------------------------------------------------------------------------------


def test_what_follows_the_end_of_all_that_was_known_is_new() -> None:
    assert why(facts(ALL, Slot(0, tokens(HEAD))), Resume(29, 0, 29)) == [(29, 37, "new")]


def test_the_last_token_is_computed_though_it_is_known() -> None:
    assert why(facts(ALL, Slot(0, tokens(ALL))), Resume(36, 0, 36)) == [(36, 37, "last token")]


# ---- misses ------------------------------------------------------------------------------------------------


def test_a_prompt_of_which_nothing_is_known_is_cold() -> None:
    assert why(facts()) == [(0, 37, "cold")]


def test_sharing_no_more_than_the_first_words_of_a_template_is_cold_too() -> None:
    assert why(facts(past=Past(4, ids("it is"))), Resume(4, 0, 4)) == [(4, 37, "cold")]


def test_a_prompt_that_leaves_an_earlier_one_has_diverged_with_the_tokens_of_both() -> None:
    past = Past(20, ids("out tools"))
    found = report(facts(past=past), Placement(0, Resume(20, 0, 20))).reasons
    divergence = Divergence(20, "system", ids(ALL[4:20]), ids(ALL[20:36]), ids("out tools"))
    detail = "diverged at token 20 in the system message"
    assert found == (Recomputed(20, 37, "diverged", detail, divergence),)


def test_a_prompt_diverges_from_what_a_slot_holds_too() -> None:
    found = report(facts(ALL, Slot(0, tokens(HEAD + "quick!"))), Placement(0, Resume(31, 0, 31))).reasons
    assert found[0].divergence == Divergence(31, "user", ids(ALL[15:31]), ids("estion"), ids("ick!"))


def test_state_beyond_the_last_resume_point_is_no_use_without_a_checkpoint() -> None:
    slot = Slot(0, tokens(ALL + " and a reply"))
    given = facts(ALL + "!", slot, rolls_back=False, known=Known(0, (29,)), past=Past(37, ids(" and")))
    assert why(given, Resume(29, 0, 29, restore=True)) == [(29, 37, "no checkpoint"), (37, 38, "diverged")]
    assert report(given, Placement(0, Resume(29, 0, 29, restore=True))).reasons[0].detail == (
        "no checkpoint between 29 and 37"
    )


def test_what_was_computed_before_and_is_nowhere_any_more_was_evicted() -> None:
    assert why(facts(past=Past(37))) == [(0, 36, "evicted"), (36, 37, "last token")]
    given = facts(ALL, Slot(0, tokens(HEAD)), past=Past(33))
    assert why(given, Resume(29, 0, 29)) == [(29, 33, "evicted"), (33, 37, "new")]


def test_what_went_with_the_engine_is_told_from_what_was_evicted() -> None:
    past = Past(37, losses=(Loss(33, "engine restarted"), Loss(10, "damaged")))
    assert why(facts(past=past)) == [(0, 33, "engine restarted"), (33, 36, "evicted"), (36, 37, "last token")]


def test_what_a_busy_slot_holds_in_vain_is_busy() -> None:
    mine = Slot(0, tokens(ALL[:33]), request=7)
    found = report(facts(ALL, mine, Slot(1), rolls_back=False), Placement(1, COLD)).reasons
    assert [(one.begin, one.end, one.reason, one.detail) for one in found] == [
        (0, 33, "busy", "slot 0, which holds them, is busy"),
        (33, 37, "new", "these tokens follow what was known"),
    ]


def test_a_placement_that_leaves_a_better_slot_for_its_price_says_so() -> None:
    found = report(facts(ALL, Slot(0, tokens(HEAD)), Slot(1)), Placement(1, COLD)).reasons
    assert (found[0].reason, found[0].detail) == (
        "busy",
        "to go on from there would have cost more than to compute them, or taken more cells than there are",
    )


def test_where_the_engine_could_not_do_as_it_was_told_the_report_says_what_that_cost() -> None:
    before = report(facts(ALL, Slot(0, tokens(HEAD)), known=Known(33)), Placement(0, Resume(33, 0, 29)))
    after = fallen_back(before, 0, "the checksum is wrong", damaged=True)
    assert (after.begin, after.vram, after.ram, after.computed) == (0, 0, 0, 37)
    assert after.reasons == (Recomputed(0, 33, "damaged", "the checksum is wrong"), *before.reasons)
    assert fallen_back(before, 0, "no room", damaged=False).reasons[0].reason == "problem"
    assert fallen_back(before, 33, "", damaged=False) == before


# ---- roles -------------------------------------------------------------------------------------------------


def test_a_position_belongs_to_the_message_in_which_it_lies() -> None:
    spans = (Span("system", 2, 10), Span("user", 12, 5))
    assert [role_at(spans, at) for at in (0, 2, 11, 12, 16, 17)] == [
        "system",
        "system",
        "system",
        "user",
        "user",
        "assistant",
    ]


def test_a_prompt_without_messages_has_no_roles() -> None:
    assert role_at((), 5) == ""


# ---- whatever was known ------------------------------------------------------------------------------------

_TEXT = st.text("ab", max_size=30)


@given(
    st.text("ab", min_size=1, max_size=30),
    st.lists(st.tuples(_TEXT, st.booleans()), min_size=1, max_size=3),
    st.integers(0, 30),
    st.sets(st.integers(1, 30), max_size=3),
    st.integers(0, 30),
    _TEXT,
    st.booleans(),
    st.data(),
)
def test_the_reasons_cover_what_is_computed_without_gaps(
    prompt: str,
    held: list[tuple[str, bool]],
    covered: int,
    checkpoints: set[int],
    remembered: int,
    went_on: str,
    rolls_back: bool,
    data: st.DataObject,
) -> None:
    size = len(prompt)
    slots = [Slot(seq, tokens(text), request=9 if busy else None) for seq, (text, busy) in enumerate(held)]
    known = Known(min(covered, size), tuple(sorted(at for at in checkpoints if at <= size)))
    given = facts(
        prompt, *slots, known=known, past=Past(min(remembered, size), ids(went_on)), rolls_back=rolls_back, spans=()
    )
    ways = [
        Placement(slot.seq, resume)
        for slot in slots
        for source in (None, *slots)
        for resume in resumes(given.tokens, source, own=source is slot, known=known, rolls_back=rolls_back)
    ]
    found = report(given, data.draw(st.sampled_from(ways)) if ways else Placement(0, COLD))
    assert found.vram + found.shared + found.ram + found.computed == found.prompt == size
    at = found.begin
    for one in found.reasons:
        assert one.begin == at < one.end
        assert one.detail
        assert (one.divergence is not None) == (one.reason == "diverged")
        at = one.end
    assert at == size
    assert sum(one.tokens for one in found.reasons if one.reason in MISSES) <= found.computed
