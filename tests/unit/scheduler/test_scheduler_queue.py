"""Who is served next."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fakes.vocab import tokens
from lcpd.scheduler.queue import Waiting, expired, in_order

NOW = 100.0


def waiting(request: int, **rest: Any) -> Waiting:
    arrived = rest.setdefault("arrived", 50.0 + request)
    return Waiting(request, tokens("x"), 1, since=arrived, **rest)


def order(*many: Waiting, served: dict[str, float] | None = None, ageing: float = 1000.0) -> list[int]:
    return [one.request for one in in_order(many, served or {}, ageing, NOW)]


def test_first_come_first_served() -> None:
    assert order(waiting(2), waiting(1), waiting(3)) == [1, 2, 3]


def test_interactive_requests_come_before_background_ones() -> None:
    assert order(waiting(1, background=True), waiting(2)) == [2, 1]


def test_a_background_request_that_waited_long_enough_counts_as_interactive() -> None:
    aged, other = waiting(1, background=True, arrived=70.0), waiting(2, arrived=80.0)
    assert order(aged, other, ageing=30) == [1, 2]
    assert order(aged, other, ageing=31) == [2, 1]


def test_what_it_waited_before_it_was_parked_counts_too() -> None:
    assert order(waiting(2), waiting(1, background=True, arrived=90.0, waited=20.0, begun=True), ageing=30) == [1, 2]


def test_those_that_were_started_before_come_first_in_their_class_the_oldest_first() -> None:
    parked = [waiting(5, begun=True), waiting(4, begun=True), waiting(3, begun=True, background=True)]
    assert order(waiting(1), waiting(2, background=True), *parked) == [4, 5, 1, 3, 2]


def test_clients_take_turns_whoever_asks_more() -> None:
    greedy = [waiting(n, client="greedy") for n in (1, 2, 3)]
    modest = [waiting(n, client="modest") for n in (4, 5)]
    assert order(*greedy, *modest) == [1, 4, 2, 5, 3]


def test_the_client_served_longest_ago_is_next() -> None:
    many = [waiting(n, client=client) for n, client in ((1, "a"), (2, "b"), (3, "c"))]
    assert order(*many, served={"a": 90.0, "b": 70.0, "c": 80.0}) == [2, 3, 1]


def test_a_new_client_does_not_overtake_one_that_was_served_before_it_came() -> None:
    assert order(waiting(1, client="old"), waiting(2, client="new", arrived=60.0), served={"old": 55.0}) == [1, 2]


def test_only_what_never_ran_is_given_up_for_having_waited_too_long() -> None:
    late, parked = waiting(1, arrived=50.0), waiting(2, arrived=40.0, begun=True)
    assert expired([parked, late], 50.0, NOW) is late
    assert expired([parked, late], 50.1, NOW) is None


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.sampled_from("abc")), max_size=10))
def test_all_that_wait_are_in_line_exactly_once(kinds: list[tuple[bool, bool, str]]) -> None:
    many = [waiting(n, background=b, begun=g, client=c) for n, (b, g, c) in enumerate(kinds)]
    assert sorted(order(*many)) == list(range(len(kinds)))


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=6), st.integers(1, 5))
def test_nobody_is_passed_over_for_ever_by_clients_that_go_on_asking(busy: list[str], each: int) -> None:
    patient = waiting(0, client="patient")
    queue = [patient]
    served: dict[str, float] = {}
    number = 1
    for turn in range(100):
        now = NOW + turn
        for client in busy:
            for _ in range(each):
                queue.append(waiting(number, client=client, arrived=now))
                number += 1
        first = in_order(queue, served, 1000.0, now)[0]
        queue.remove(first)
        served[first.client] = now
        if first is patient:
            break
    assert turn <= len(set(busy))
