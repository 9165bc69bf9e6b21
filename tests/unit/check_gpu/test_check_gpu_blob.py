"""Taking the cells out of a checkpoint."""

from __future__ import annotations

import struct

import pytest


@pytest.fixture
def blob():
    from check_gpu import blob

    return blob


def checkpoint(cells, rows=(b"abcd", b"efghij")):
    data = struct.pack("<IiI", 0xAF143CD8, 2, cells) + struct.pack("<iI", 399, 0) * cells + struct.pack("<II", 0, 8)
    for row in rows:
        data += struct.pack("<iQ", 0, len(row)) + row * cells
    return data


def test_only_the_cells_are_left_out(blob):
    empty = struct.pack("<IiI", 0xAF143CD8, 2, 0) + struct.pack("<II", 0, 8)
    empty += struct.pack("<iQ", 0, 4) + struct.pack("<iQ", 0, 6)
    assert blob.without_cells(checkpoint(1)) == empty
    assert blob.without_cells(checkpoint(3)) == empty


def test_what_is_no_state_is_refused(blob):
    with pytest.raises(ValueError, match="magic"):
        blob.without_cells(b"\0" * 40)


def test_a_checkpoint_that_was_cut_short_is_refused(blob):
    with pytest.raises(ValueError, match="2 bytes early"):
        blob.without_cells(checkpoint(1)[:-2])
