"""The last values that were used stay, within the room there is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lcpd.chat.recent import Recent


def test_a_value_is_found_until_it_is_cleared() -> None:
    recent: Recent[str, int] = Recent(100)
    recent.put("a", 1, 25)
    assert recent.get("a") == 1
    assert recent.get("b") is None
    recent.clear()
    assert recent.get("a") is None


def test_what_was_not_used_for_longest_goes_first() -> None:
    recent: Recent[str, int] = Recent(100)
    for key in "abcd":
        recent.put(key, 0, 25)
    recent.get("a")
    recent.put("e", 0, 25)
    assert [key for key in "abcde" if recent.get(key) is not None] == ["a", "c", "d", "e"]


def test_a_look_at_a_value_is_no_use_of_it() -> None:
    recent: Recent[str, int] = Recent(100)
    for key in "abcd":
        recent.put(key, 0, 25)
    assert recent.get("a", use=False) == 0
    recent.put("e", 0, 25)
    assert recent.get("a") is None


def test_one_that_is_too_large_is_not_kept_and_pushes_nothing_out() -> None:
    recent: Recent[str, int] = Recent(100)
    recent.put("a", 1, 25)
    recent.put("b", 2, 26)
    assert (recent.get("a"), recent.get("b")) == (1, None)


def test_a_new_value_takes_the_old_one_s_place() -> None:
    recent: Recent[str, int] = Recent(100)
    for _ in range(10):
        recent.put("a", 1, 25)
        recent.put("b", 2, 25)
    assert (recent.get("a"), recent.get("b")) == (1, 2)
    recent.put("a", 3, 90)
    assert recent.get("a") is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), max_size=60))
def test_as_many_of_the_last_are_kept_as_fit(puts: list[tuple[int, int]]) -> None:
    recent: Recent[int, int] = Recent(100)
    last: dict[int, int] = {}
    for key, size in puts:
        recent.put(key, size, size)
        last.pop(key, None)
        if size <= 25:
            last[key] = size
        while sum(last.values()) > 100:
            del last[next(iter(last))]
    assert {key: recent.get(key) for key in range(10)} == {key: last.get(key) for key in range(10)}
