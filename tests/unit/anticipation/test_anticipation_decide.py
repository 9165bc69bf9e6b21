"""What is worth computing ahead of a conversation's next turn."""

from __future__ import annotations

import numpy as np

from lcpd.anticipation.decide import Ahead, Rendering, continuations, plan
from lcpd.scheduler.slots import Span

USER, ASSISTANT, END = 50, 60, 9
THOUGHT = [4] * 30
ANSWER = [5] * 100


def rendering(*messages: tuple[str, list[int]]) -> Rendering:
    tokens: list[int] = []
    spans = []
    for role, text in messages:
        begin = len(tokens)
        tokens += [USER if role == "user" else ASSISTANT, *text]
        spans.append(Span(role, begin, len(tokens) - begin))
    return Rendering(np.array(tokens, np.int32), tuple(spans))


def array(*parts: list[int]) -> np.ndarray:
    return np.array([token for part in parts for token in part], np.int32)


ASKED = ("user", [1, 2, 3, END])
PROMPT = rendering(ASKED, ("assistant", []))


def planned(history: list[int], generated: np.ndarray, rolls_back: bool = False, minimum: int = 64) -> Ahead | None:
    """The plan where the reply stands in the next turn as `history`."""
    one, other = (rendering(ASKED, ("assistant", history), ("user", [new, END]), ("assistant", [])) for new in (70, 80))
    return plan(PROMPT, generated, (one, other), rolls_back, minimum)


def test_a_reply_without_its_reasoning_is_computed_up_to_where_the_next_message_begins() -> None:
    ahead = planned([*ANSWER, END], array(THOUGHT, ANSWER, [END]))
    assert ahead is not None
    # The last token, with which the new part begins, makes that the place of a checkpoint.
    assert ahead.tokens.tolist() == [USER, 1, 2, 3, END, ASSISTANT, *ANSWER, END, USER]
    assert ahead.spans == (Span("user", 0, 5), Span("assistant", 5, 102), Span("assistant", 107, 1))


def test_a_model_that_can_be_cut_anywhere_computes_as_far_as_two_next_turns_agree() -> None:
    ahead = planned([*ANSWER, END], array(THOUGHT, ANSWER, [END]), rolls_back=True)
    assert ahead is not None
    assert ahead.tokens.tolist() == [USER, 1, 2, 3, END, ASSISTANT, *ANSWER, END, USER]


def test_a_reply_that_stands_in_the_history_as_it_was_generated_needs_nothing() -> None:
    assert planned([*ANSWER, END], array(ANSWER, [END])) is None
    assert planned([*ANSWER, END], array(ANSWER, [END]), rolls_back=True) is None


def test_a_reply_that_ends_otherwise_in_the_history_goes_on_from_what_the_slot_holds() -> None:
    """The token that ended the reply was sampled, but not computed."""
    assert planned([*ANSWER, 8], array(ANSWER, [END])) is None


def test_little_is_not_worth_it() -> None:
    short = [5] * 20
    assert planned([*short, END], array(THOUGHT, short, [END])) is None
    assert planned([*short, END], array(THOUGHT, short, [END]), minimum=20) is not None


def test_what_a_model_that_cannot_be_cut_would_compute_again_counts() -> None:
    """It would resume before the reply, though all but the end of it is the same."""
    history, generated = [*ANSWER, 6, 6, END], array(ANSWER, [7, END])
    assert planned(history, generated) is not None
    assert planned(history, generated, rolls_back=True) is None


def test_an_earlier_reply_that_loses_its_reasoning_makes_all_after_it_be_computed() -> None:
    call, result = [*THOUGHT, 6, END], ("user", [7] * 100)
    prompt = rendering(ASKED, ("assistant", call), result, ("assistant", []))
    one, other = (
        rendering(ASKED, ("assistant", [6, END]), result, ("assistant", [5, END]), ("user", [new]), ("assistant", []))
        for new in (70, 80)
    )
    ahead = plan(prompt, array([5, END]), (one, other), rolls_back=False)
    assert ahead is not None
    assert len(ahead.tokens) == 5 + 3 + 101 + 3 + 1


def test_a_template_without_message_boundaries_is_of_no_use_to_a_model_that_needs_them() -> None:
    one, other = (Rendering(array([1, 2], ANSWER, [new]), ()) for new in (70, 80))
    prompt = Rendering(array([1, 2]), ())
    assert plan(prompt, array(THOUGHT, ANSWER, [END]), (one, other), rolls_back=False) is None
    assert plan(prompt, array(THOUGHT, ANSWER, [END]), (one, other), rolls_back=True) is not None


def test_after_an_answer_a_user_is_expected() -> None:
    message = {"role": "assistant", "content": "done"}
    first, second = continuations(message)
    assert first[0] == second[0] == message
    assert first[1]["role"] == second[1]["role"] == "user"
    assert first[1]["content"][0] != second[1]["content"][0]


def test_after_tool_calls_a_result_of_each_is_expected() -> None:
    calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in ("a", "b")]
    for messages in continuations({"role": "assistant", "content": "", "tool_calls": calls}):
        assert [(one["role"], one["tool_call_id"]) for one in messages[1:]] == [("tool", "a"), ("tool", "b")]
