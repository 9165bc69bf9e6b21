"""What is remembered of prompts and replies once their state is gone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lcpd.cache.history import History, Loss, Past


def tokens(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def ids(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def history(*prompts: str, limit: int = 1000) -> History:
    """With prompts, the latest last."""
    now = iter(range(1000))
    found = History(limit, clock=lambda: float(next(now)))
    for text in prompts:
        found.remember(tokens(text), len(text))
    return found


# ---- what was before ---------------------------------------------------------------------------------------


def test_of_an_unknown_prompt_nothing_is_remembered() -> None:
    assert history("head one").past(tokens("other")) == Past()


def test_a_prompt_that_goes_on_from_the_end_of_another_has_not_left_it() -> None:
    assert history("head").past(tokens("head and more")) == Past(4)


def test_where_a_prompt_leaves_another_its_way_on_is_told() -> None:
    assert history("head one, long ago").past(tokens("head two")) == Past(5, ids("one, long ago"))


def test_of_several_ways_on_the_one_used_last_is_told() -> None:
    assert history("head one", "head two").past(tokens("head")) == Past(4, ids(" two"))


def test_a_reply_is_remembered_like_a_prompt() -> None:
    known = history()
    known.remember(tokens("headreply"), 4)
    assert known.past(tokens("headreply and more")).length == 9


def test_looking_up_changes_nothing() -> None:
    known = history("head one")
    known.past(tokens("head two"))
    assert known.past(tokens("head two")).length == 5
    assert known.tokens == 8


# ---- losses ------------------------------------------------------------------------------------------------


def test_what_was_lost_is_told_with_its_reason_the_latest_first() -> None:
    known = history("head one")
    known.lose(tokens("head"), 0, "damaged")
    known.lose(tokens("head one"), 0, "engine restarted")
    assert known.past(tokens("head one more")).losses == (Loss(8, "engine restarted"), Loss(4, "damaged"))


def test_a_loss_does_not_concern_prompts_that_turn_off_before_it() -> None:
    known = history("head one")
    known.lose(tokens("head one"), 5, "damaged")
    assert known.past(tokens("head two")).losses == ()


def test_what_was_computed_again_is_lost_no_more() -> None:
    known = history("head one")
    known.lose(tokens("head one"), 0, "engine restarted")
    known.remember(tokens("head two"), 8)
    assert known.past(tokens("head two")).losses == ()
    assert known.past(tokens("head one")).losses == (Loss(8, "engine restarted"),)
    known.remember(tokens("head one"), 8)
    assert known.past(tokens("head one")).losses == ()


# ---- branch points -----------------------------------------------------------------------------------------


def test_a_path_that_leaves_a_known_one_has_a_branch_point_there() -> None:
    assert history("headuserone").branches_on(tokens("headusertwo")) == [8]


def test_a_path_has_a_branch_point_wherever_others_have_left_it() -> None:
    assert history("headuserone", "headuse1", "heaD").branches_on(tokens("headuserone and on")) == [3, 7]


def test_a_path_that_goes_on_from_the_end_of_another_has_no_branch_point_there() -> None:
    assert history("head").branches_on(tokens("headuser")) == []


def test_a_path_that_goes_another_way_from_a_boundary_has_a_branch_point_there() -> None:
    assert history("head", "headone").branches_on(tokens("headtwo")) == [4]


def test_an_unknown_path_has_no_branch_points() -> None:
    assert history("head").branches_on(tokens("other")) == []


def test_where_only_a_reply_went_another_way_is_no_branch_point() -> None:
    known = history()
    known.remember(tokens("headreply"), 4)
    assert known.branches_on(tokens("headanother")) == []
    assert known.branches_on(tokens("headresult")) == []


def test_a_reply_that_came_back_in_a_prompt_makes_a_branch_point_like_any_prompt() -> None:
    known = history()
    known.remember(tokens("headreply"), 4)
    known.remember(tokens("headreply and on"), 16)
    assert known.branches_on(tokens("headresult")) == [6]


# ---- its size ----------------------------------------------------------------------------------------------


def test_the_ends_of_the_paths_used_longest_ago_are_forgotten() -> None:
    known = history("head: the first one", "head: the second one", "head: the third one", limit=33)
    assert known.past(tokens("head: the first one")).length == len("head: the ")
    assert known.past(tokens("head: the third one")).length == len("head: the third one")


def test_a_long_conversation_does_not_gather_nodes() -> None:
    known = history()
    text = "head "
    for turn in range(50):
        prompt = len(text)
        text += f"reply {turn} "
        known.remember(tokens(text), prompt)
        text += f"question {turn} "
    known.remember(tokens(text), len(text))
    assert sum(1 for _ in known._trie.nodes()) <= 2


@given(st.lists(st.tuples(st.text("ab", max_size=12), st.integers(0, 12)), max_size=20))
def test_it_never_exceeds_its_limit_and_remembers_the_latest(paths: list[tuple[str, int]]) -> None:
    known = history(limit=30)
    for text, prompt in paths:
        known.remember(tokens(text), prompt)
        known.check_integrity()
        assert known.tokens <= 30
        assert known.past(tokens(text)).length == len(text)
