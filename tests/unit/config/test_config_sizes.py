"""Sizes are read as people write them and written so that they read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcpd.config.sizes import LARGEST, format_size, parse_size

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 * 2**30),
        ("500MB", 500_000_000),
        ("1024", 1024),
        (1024, 1024),
        ("0", 0),
        (" 2 gib ", 2 * 2**30),
        ("1.5KiB", 1536),
        ("0.5kb", 500),
    ],
)
def test_a_size_is_read(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1", "-1GiB", "8G", "8 gigabytes", "1e9", "1.GiB", ".5GiB", "٣GiB", None, True, 1.5, []]
)
def test_what_is_no_size_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(ValueError, match="such as"):
        parse_size(text)


@pytest.mark.parametrize("value", [-1, LARGEST + 1, str(LARGEST + 1), "8388608TiB"])
def test_a_size_out_of_range_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"from 0 to|such as"):
        parse_size(value)


def test_a_fraction_of_a_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="whole number of bytes"):
        parse_size("1.0001KB")


@given(st.integers(0, LARGEST))
def test_a_written_size_reads_back_exactly(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.integers(0, 10_000), st.sampled_from(sorted(UNITS)), st.booleans(), st.sampled_from(["", " "]))
def test_a_whole_number_with_a_unit_is_its_product(number: int, unit: str, lower: bool, gap: str) -> None:
    spelled = f"{number}{gap}{unit.lower() if lower else unit}"
    assert parse_size(spelled) == number * UNITS[unit]


@given(st.text(max_size=30))
def test_any_text_is_a_size_or_a_value_error(text: str) -> None:
    try:
        size = parse_size(text)
    except ValueError:
        return
    assert 0 <= size <= LARGEST


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0"), (1, "1B"), (1024, "1KiB"), (500_000_000, "500MB"), (8 * 2**30, "8GiB"), (1536, "1536B")],
)
def test_a_size_is_written_in_the_unit_that_makes_it_shortest(size: int, text: str) -> None:
    assert format_size(size) == text
