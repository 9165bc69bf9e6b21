"""How a client's history grows, and what the trace consists of."""

from __future__ import annotations

from collections import Counter

import pytest
from benchmarks.agentic_text import Head, Json, Writer, head
from benchmarks.agentic_trace import (
    PUSHED_OUT,
    SESSIONS,
    STRIPPED,
    Begin,
    Redo,
    Result,
    Round,
    Say,
    Session,
    agentic_trace,
    memory_trace,
)

HEAD = Head("Be brief.", ({"type": "function", "function": {"name": "look"}},))
CALL: Json = {"role": "assistant", "content": "", "tool_calls": [{"id": "call_0"}, {"id": "call_1"}]}
TEXT: Json = {"role": "assistant", "content": "Yes."}


def begun(reply: Json) -> Session:
    session = Session()
    session.send(Begin(HEAD, "Look."))
    session.answer(reply)
    return session


def test_a_session_begins_with_its_head_and_a_task() -> None:
    session = Session()
    assert session.send(Begin(HEAD, "Look.")) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Look."},
    ]
    assert session.tools == HEAD.tools


def test_a_result_answers_every_call_of_the_reply() -> None:
    session = begun(CALL)
    assert session.send(Result("three files"))[2:] == [
        CALL,
        {"role": "tool", "tool_call_id": "call_0", "content": "three files"},
        {"role": "tool", "tool_call_id": "call_1", "content": "Done."},
    ]


def test_a_result_without_a_call_comes_from_the_user() -> None:
    assert begun(TEXT).send(Result("three files"))[2:] == [TEXT, {"role": "user", "content": "three files"}]


def test_the_user_answers_whatever_the_reply_was() -> None:
    assert begun(CALL).send(Say("And now?"))[2:] == [CALL, {"role": "user", "content": "And now?"}]


def test_redoing_sends_an_earlier_turn_with_another_end() -> None:
    session = begun(TEXT)
    for text in ("one", "two", "three"):
        session.send(Say(text))
        session.answer(TEXT)
    assert session.send(Redo(2, "uno")) == [*session.sent[0], TEXT, {"role": "user", "content": "uno"}]


def test_a_session_goes_on_from_what_was_redone() -> None:
    session = begun(TEXT)
    session.send(Say("one"))
    session.answer(TEXT)
    session.send(Redo(1, "Look again."))
    session.answer(CALL)
    assert [message["content"] for message in session.send(Say("more"))] == ["Be brief.", "Look again.", "", "more"]


def test_redoing_more_than_there_is_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="a session of 1 turns"):
        begun(TEXT).send(Redo(1, "x"))


def test_only_a_stripping_session_tells_the_template_to_drop_thinking() -> None:
    session = begun(TEXT)
    assert session.fields == {}
    session.send(Begin(HEAD, "Look.", strip=True))
    assert session.fields == {"chat_template_kwargs": {"preserve_reasoning": False}}


def test_the_same_seed_writes_the_same_text() -> None:
    assert Writer("a").prose(50) == Writer("a").prose(50) != Writer("b").prose(50)
    assert agentic_trace(1.0, 1.0) == agentic_trace(1.0, 1.0)


def test_projects_of_one_agent_share_the_instructions_and_the_tools() -> None:
    one, other = head("Ada", "mill", 1.0), head("Ada", "quay", 1.0)
    assert one.system.split("\n\n")[0] == other.system.split("\n\n")[0]
    assert one.system.split("\n\n")[1] != other.system.split("\n\n")[1]
    assert one.tools == other.tools


def test_scale_changes_lengths_and_not_the_order_of_the_trace() -> None:
    small, large = agentic_trace(0.5, 0.0), agentic_trace(2.0, 0.0)
    assert _shape(small) == _shape(large)
    assert len(_head(small).system) < len(_head(large).system)


def test_every_phase_of_the_agentic_trace_is_there() -> None:
    requests = Counter(turn.phase for round_ in agentic_trace(1.0, 0.0) for turn in round_.turns)
    assert requests == {
        "cold turn": 1,
        "warm turns": 6,
        "new session, same head": 2,
        "sub-agents at once": 4,
        "sub-agents' next turns": 4,
        "main after the sub-agents": 1,
        "title request": 1,
        "main after the title": 1,
        "rewind and edit": 2,
        "sub-agents, head of their own": 4,
        "three other projects": 6,
        "return to the first project": 1,
        "dialogue: its tool turns": 4,
        STRIPPED: 3,
    }


def test_the_user_types_before_thinking_is_stripped() -> None:
    pauses = {round_.turns[0].phase: round_.pause for round_ in agentic_trace(1.0, 2.5)}
    assert {phase for phase, pause in pauses.items() if pause} == {STRIPPED}
    assert pauses[STRIPPED] == 2.5


def test_sessions_of_the_memory_trace_are_mostly_one_head() -> None:
    actions = [turn.action for turn in memory_trace(1.0)[0].turns]
    begins = [action for action in actions if isinstance(action, Begin)]
    assert len(begins) == len(actions) == SESSIONS
    assert len({action.head.system for action in begins}) == 1
    assert len({action.text for action in begins}) == SESSIONS


def test_the_others_share_nothing_with_the_sessions_nor_with_each_other() -> None:
    sessions, others, *_ = memory_trace(1.0)
    actions = [turn.action for turn in others.turns] + [sessions.turns[0].action]
    assert len({action.head.system[0] for action in actions if isinstance(action, Begin)}) == SESSIONS + 1


def test_the_ten_sessions_are_pushed_out_and_then_come_back() -> None:
    phases = [round_.turns[0].phase for round_ in memory_trace(1.0)]
    assert phases == ["ten sessions at once", PUSHED_OUT] + ["return to each"] * SESSIONS


def _shape(trace: list[Round]) -> list[list[tuple[str, str, type]]]:
    return [[(turn.phase, turn.session, type(turn.action)) for turn in round_.turns] for round_ in trace]


def _head(trace: list[Round]) -> Head:
    action = trace[0].turns[0].action
    assert isinstance(action, Begin)
    return action.head
