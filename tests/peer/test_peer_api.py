"""The whole API answers as llama-server's does, but for what is listed in :mod:`peer_differences`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from peer_answers import answer_of, unequal, without
from peer_differences import DIFFERENCES, SHAPES
from peer_pair import Pair
from peer_requests import REQUESTS, Request

pytestmark = pytest.mark.peer
DOCS = Path(__file__).parents[2] / "docs" / "api.md"
CASES = [pytest.param(setup, request, id=request.name) for setup, requests in REQUESTS.items() for request in requests]


@pytest.mark.parametrize(("setup", "request_"), CASES)
def test_the_answer_is_that_of_llama_server(api_pair_of: Callable[[str], Pair], setup: str, request_: Request) -> None:
    pair = api_pair_of(setup)
    ours, theirs = answer_of(pair.lcpd, request_), answer_of(pair.peer, request_)
    found = unequal(ours.content, theirs.content)
    if not request_.differs:
        assert (ours.status, found) == (theirs.status, [])
        return
    difference = DIFFERENCES[request_.differs]
    assert (ours.status, theirs.status) == (difference.ours, difference.theirs), (ours, theirs)
    if ours.status == theirs.status:
        assert found, "there is no difference any more: take it out of the table"
        places = difference.places
        assert unequal(without(ours.content, places), without(theirs.content, places)) == []


def test_there_are_two_hundred_requests_of_different_names_and_every_difference_is_seen() -> None:
    requests = [request for some in REQUESTS.values() for request in some]
    assert len({request.name for request in requests}) == len(requests) >= 200
    assert {request.differs for request in requests if request.differs} == set(DIFFERENCES)


def test_the_docs_have_the_same_table_of_differences() -> None:
    rows = [f"| {one.what} | {one.why} |" for one in (*SHAPES, *DIFFERENCES.values())]
    assert "\n".join(rows) in DOCS.read_text(), "write them into docs/api.md"
