"""What a segment says about itself must be what it is to be, before libllama may believe it."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from lcpd.native.segment import cells_in, describes

TAIL = struct.pack("<II", 1, 0)


def segment(
    positions: list[int], *, magic: int = 0xAF143CD8, streams: int = 1, transposed: int = 0, extension: bytes = b""
) -> np.ndarray:
    """A segment with one value for each cell, and no window."""
    cells = b"".join(struct.pack("<iI", at, 1) + extension + struct.pack("<i", 2) for at in positions)
    head = struct.pack("<IiII", magic, 2, streams, len(positions))
    return np.frombuffer(head + cells + struct.pack("<II", transposed, 1) + bytes(len(positions)) + TAIL, np.uint8)


@pytest.mark.parametrize("extension", [b"", bytes(range(12))])
@pytest.mark.parametrize("positions", [[5, 6, 7], [7, 5, 6]])
def test_cells_of_the_wanted_positions_are_believed_in_any_order(positions: list[int], extension: bytes) -> None:
    assert describes(segment(positions, extension=extension, transposed=1), 5, 8, TAIL)


@pytest.mark.parametrize(
    "wrong",
    [
        segment([5, 6]),
        segment([5, 6, 6]),
        segment([4, 5, 6]),
        segment([5, 6, -7]),
        segment([5, 6, 7], magic=1),
        segment([5, 6, 7], streams=2),
        segment([5, 6, 7], transposed=3),
        segment([5, 6, 7])[:-1],
        segment([5, 6, 7])[:40],
        np.zeros(0, np.uint8),
    ],
)
def test_anything_else_is_not(wrong: np.ndarray) -> None:
    assert not describes(wrong, 5, 8, TAIL)


def test_no_byte_of_the_description_can_change_unnoticed() -> None:
    """But the sequence in the head, which nobody reads."""
    whole = segment([5, 6, 7])
    for at in [*range(4), *range(8, 16 + 3 * 12), *range(len(whole) - 8, len(whole))]:
        changed = whole.copy()
        changed[at] ^= 4
        assert not describes(changed, 5, 8, TAIL), at


def test_an_empty_range_is_described_by_nothing() -> None:
    assert not describes(segment([]), 5, 5, TAIL)


def test_how_many_cells_there_are_is_told_without_reading_beyond_the_end() -> None:
    assert cells_in(segment([5, 6, 7])) == 3
    assert cells_in(np.zeros(7, np.uint8)) == 0
