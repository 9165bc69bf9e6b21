"""Text released from a growing reply: never beyond a stop string, never half a character."""

from __future__ import annotations

import codecs
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcpd.engine.stops import Released, TextFilter


def run(pieces: list[bytes], stops: list[str]) -> tuple[list[str], str | None]:
    """What the filter releases piece by piece (the rest at the end), and the stop that ended it."""
    text = TextFilter(stops)
    released = []
    for piece in pieces:
        result = text.push(piece)
        released.append(result.text)
        if result.stop is not None:
            return released, result.stop
    result = text.finish()
    return [*released, result.text], result.stop


def cut_at(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]


def expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text up to the stop string that is complete first, character by character."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


_SMALL = st.text("abé😀", max_size=12)


@given(_SMALL, st.lists(st.text("abé😀", max_size=4), max_size=3), st.lists(st.integers(0, 99)))
def test_the_text_ends_before_the_first_stop_string_whatever_the_pieces(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    released, stop = run(cut_at(text.encode(), cuts), stops)
    assert ("".join(released), stop) == expected(text, stops)


@given(st.binary(max_size=24), st.lists(st.integers(0, 99)))
def test_without_stops_all_bytes_come_out_decoded_and_invalid_ones_as_replacement_characters(
    data: bytes, cuts: list[int]
) -> None:
    released, stop = run(cut_at(data, cuts), [])
    whole = codecs.getincrementaldecoder("utf-8")("replace").decode(data)  # a last beginning of a character: nothing
    assert ("".join(released), stop) == (whole, None)


def test_a_character_is_held_back_until_its_last_byte_has_come() -> None:
    text = TextFilter([])
    pushed = [text.push(bytes([byte])).text for byte in "a😀é".encode()]
    assert pushed == ["a", "", "", "", "😀", "", "é"]


def test_bytes_that_can_never_become_a_character_turn_into_replacement_characters() -> None:
    assert run([b"a\xff", b"b", b"\xf0\x9f", b"x"], []) == (["a�", "b", "", "�x", ""], None)


def test_the_beginning_of_a_character_at_the_end_of_a_reply_is_left_out() -> None:
    assert run([b"a", b"\xf0\x9f"], []) == (["a", "", ""], None)


def test_text_that_could_become_a_stop_string_is_held_back_and_released_when_it_does_not() -> None:
    text = TextFilter(["STOP"])
    assert text.push(b"one ST") == Released("one ")
    assert text.push(b"O") == Released("")
    assert text.push(b"NE") == Released("STONE")


def test_only_as_much_is_held_back_as_could_become_a_stop_string() -> None:
    text = TextFilter(["aab"])
    assert text.push(b"aaaa") == Released("aa")
    assert text.push(b"b") == Released("", "aab")


def test_a_beginning_of_a_stop_string_at_the_end_of_the_reply_is_text() -> None:
    text = TextFilter(["STOP"])
    text.push(b"the ST")
    assert text.finish() == Released("ST")


def test_a_stop_string_may_span_pieces_and_what_follows_it_is_dropped() -> None:
    assert run([b"yes\nUs", b"er: more"], ["\nUser:"]) == (["yes", ""], "\nUser:")


@pytest.mark.parametrize("stops", [["b", "ab"], ["ab", "b"]])
def test_of_stop_strings_that_end_together_the_longest_is_named(stops: list[str]) -> None:
    assert run([b"xab"], stops) == (["x"], "ab")


def test_a_stop_string_inside_another_ends_the_reply_in_one_piece_as_in_many() -> None:
    stops = ["abcd", "bc"]
    whole, many = run([b"abcd"], stops), run([b"a", b"b", b"c", b"d"], stops)
    assert ("".join(whole[0]), whole[1]) == ("".join(many[0]), many[1]) == ("a", "bc")


def test_empty_stop_strings_are_ignored() -> None:
    assert run([b"text"], [""]) == (["text", ""], None)
