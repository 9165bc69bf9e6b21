"""Tokens are gathered for an interval, never lost, never reordered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lcpd.engine.outbox import Outbox
from lcpd.engine.protocol import Output, Step, TokenProbs


def outbox(interval: float = 1.0) -> tuple[Outbox, list[Step]]:
    sent: list[Step] = []
    return Outbox(sent.append, interval), sent


def test_the_first_tokens_are_sent_at_once_and_later_ones_after_an_interval():
    box, sent = outbox()
    for now in (10.0, 10.4, 10.8, 11.1):
        box.add(1, int(now * 10), "x")
        box.flush_if_due(now)
    assert sent == [Step([Output(1, [100], "x")]), Step([Output(1, [104, 108, 111], "xxx")])]


def test_the_tokens_of_several_replies_are_gathered_for_longer_than_those_of_one():
    for replies, due in ((1, 1.0), (2, 4.0), (20, 4.0)):
        box, sent = outbox()
        box.add(0, 0, "")
        box.flush(10.0)
        for request in range(replies):
            box.add(request, 1, "x")
        box.flush_if_due(10.0 + due - 0.1)
        assert len(sent) == 1
        box.flush_if_due(10.0 + due)
        assert len(sent) == 2


def test_the_tokens_of_several_requests_travel_in_one_message():
    box, sent = outbox()
    box.add(1, 7, "a")
    box.add(2, 8, "b")
    box.flush(0.0)
    assert sent == [Step([Output(1, [7], "a"), Output(2, [8], "b")])]


def test_probabilities_travel_with_their_tokens():
    box, sent = outbox()
    first, second = TokenProbs(7, -0.1, b"a", []), TokenProbs(8, -0.2, b"b", [])
    box.add(1, 7, "a", first)
    box.add(1, 8, "b", second)
    box.flush(0.0)
    assert sent == [Step([Output(1, [7, 8], "ab", [first, second])])]


def test_nothing_is_sent_when_there_is_nothing():
    box, sent = outbox()
    box.flush(0.0)
    box.flush_if_due(5.0)
    assert sent == []


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 99), st.floats(0, 2))), st.floats(0, 2))
def test_every_token_arrives_once_and_in_order(adds, interval):
    box, sent = outbox(interval)
    now = 0.0
    for request, token, pause in adds:
        now += pause
        box.add(request, token, f"{token},")
        box.flush_if_due(now)
    box.flush(now)
    for request in (1, 2, 3):
        outputs = [o for step in sent for o in step.outputs if o.request == request]
        expected = [token for r, token, _ in adds if r == request]
        assert [t for o in outputs for t in o.tokens] == expected
        assert "".join(o.text for o in outputs) == "".join(f"{t}," for t in expected)
