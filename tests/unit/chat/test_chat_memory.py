"""What the chat process gives back of its memory."""

from __future__ import annotations

from lcpd.chat.memory import SPARE, Spare, resident, trim


def given_back(grown: int) -> int:
    """How often memory is given back when a process of 100 MB has grown by so much."""
    sizes = iter([100 << 20, (100 << 20) + grown])
    times: list[None] = []
    Spare(lambda: next(sizes), lambda: times.append(None)).give_back()
    return len(times)


def test_memory_is_given_back_beyond_what_may_stay():
    assert (given_back(SPARE), given_back(SPARE + 1)) == (0, 1)


def test_the_size_of_this_process_is_known_and_giving_back_does_it_no_harm():
    assert resident() > 1 << 20
    trim()
