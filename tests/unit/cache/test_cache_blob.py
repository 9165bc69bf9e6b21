"""Cutting synthetic segments: each half is byte for byte what an export of just its cells would be."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from lcpd.cache.blob import BlobError, layout, split, split_sizes

MAGIC = 0xAF143CD8


@dataclass(frozen=True)
class Section:
    """A KV section; all content of a cell follows from its position."""

    positions: tuple[int, ...]
    keys: tuple[int, ...] = (8, 6)
    """Bytes per cell of each layer."""
    values: tuple[tuple[int, int], ...] = ((2, 3), (2, 4))
    """Bytes per element and elements of each layer; () on models without V rows."""
    v_trans: bool = False
    extended: bool = False
    """Whether cells have an extension (M-RoPE)."""

    def encode(self) -> bytes:
        data = struct.pack("<II", 1, len(self.positions))
        if not self.positions:
            return data
        for position in self.positions:
            extension = content(position, 100, 12) if self.extended else b""
            data += struct.pack("<iI", position, 1) + extension + struct.pack("<i", 5)
        data += struct.pack("<II", self.v_trans, len(self.keys))
        for layer, size in enumerate(self.keys):
            data += struct.pack("<iQ", 1, size) + b"".join(content(p, layer, size) for p in self.positions)
        for layer, (element, count) in enumerate(self.values, 50):
            rows = [content(p, layer, element * count) for p in self.positions]
            if self.v_trans:
                data += struct.pack("<iII", 1, element, count)
                data += b"".join(row[i * element : (i + 1) * element] for i in range(count) for row in rows)
            else:
                data += struct.pack("<iQ", 1, element * count) + b"".join(rows)
        return data

    def only(self, positions: range) -> Section:
        return replace(self, positions=tuple(p for p in self.positions if p in positions))


EMPTY_RS = struct.pack("<III", 0, 0, 24) + struct.pack("<iQ", 0, 512) * 2 + struct.pack("<iQ", 0, 4096) * 2


def content(position: int, layer: int, size: int) -> bytes:
    return np.random.default_rng((position, layer)).bytes(size)


def encode(sections: list[Section], rs: bytes = b"") -> bytes:
    return struct.pack("<Ii", MAGIC, 5) + b"".join(section.encode() for section in sections) + rs


def halves(blob: bytes, k: int) -> tuple[bytes, bytes]:
    where = layout(blob)
    sizes = split_sizes(where, k)
    front, back = bytearray(sizes[0]), bytearray(sizes[1])
    split(blob, where, k, front, back)
    return bytes(front), bytes(back)


@st.composite
def blobs(draw: st.DrawFn) -> tuple[list[Section], bytes]:
    """The sections of a segment: the first holds every position once, a second one some of them, in any order."""
    begin, cells = draw(st.integers(0, 1000)), draw(st.integers(2, 12))
    order = draw(st.permutations(range(begin, begin + cells))) if draw(st.booleans()) else range(begin, begin + cells)
    layers = draw(st.integers(1, 3))
    sizes = st.integers(16, 40)  # rows of a few bytes, which no model has, can be read in more than one way

    def section(positions: tuple[int, ...]) -> Section:
        keys = draw(st.lists(sizes, min_size=layers, max_size=layers))
        elements = st.tuples(st.sampled_from([1, 2, 4]), sizes)
        values = draw(st.lists(elements, min_size=layers, max_size=layers)) if has_values else []
        return Section(positions, tuple(keys), tuple(values), v_trans, extended)

    has_values, v_trans, extended = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    sections = [section(tuple(order))]
    if draw(st.booleans()):
        sections.append(section(tuple(p for p in order if draw(st.booleans()))))
    return sections, draw(st.sampled_from([b"", EMPTY_RS]))


@settings(max_examples=examples(60), deadline=None)
@given(blobs(), st.data())
def test_each_half_is_what_an_export_of_its_cells_would_be(
    blob: tuple[list[Section], bytes], data: st.DataObject
) -> None:
    sections, rs = blob
    positions = sections[0].positions
    k = data.draw(st.integers(1, len(positions) - 1))
    cut = min(positions) + k
    front, back = halves(encode(sections, rs), k)
    assert front == encode([section.only(range(cut)) for section in sections], rs)
    assert back == encode([section.only(range(cut, 2000)) for section in sections], rs)


def test_the_layout_tells_the_tokens_positions() -> None:
    where = layout(encode([Section((12, 10, 11))]))
    assert where.cells == 3
    assert where.positions.tolist() == [10, 11, 12]


def test_a_window_that_begins_behind_the_cut_leaves_the_front_without_window_cells() -> None:
    window = Section((6, 7), keys=(4,), values=((1, 4),))
    front, back = halves(encode([Section(tuple(range(8))), window]), 5)
    assert front == encode([Section(tuple(range(5))), window.only(range(0))])
    assert back == encode([Section((5, 6, 7)), window])


def test_both_halves_get_a_hybrids_empty_recurrent_section() -> None:
    front, back = halves(encode([Section((0, 1, 2))], EMPTY_RS), 1)
    assert front.endswith(EMPTY_RS)
    assert back.endswith(EMPTY_RS)


def test_a_half_can_be_cut_again() -> None:
    front, back = halves(encode([Section(tuple(range(9)))]), 6)
    assert halves(front, 4)[1] == encode([Section((4, 5))])
    assert halves(back, 1)[0] == encode([Section((6,))])


def test_parts_of_larger_buffers_can_be_read_and_written() -> None:
    blob = encode([Section(tuple(range(4)), v_trans=True)])
    memory = bytearray(1000)
    memory[7 : 7 + len(blob)] = blob
    source = memoryview(memory)[7 : 7 + len(blob)]
    where = layout(source)
    sizes = split_sizes(where, 2)
    target = np.zeros(sum(sizes) + 1, np.uint8)
    split(source, where, 2, target[: sizes[0]], target[sizes[0] : -1])
    assert target.tobytes() == b"".join(halves(blob, 2)) + b"\0"


@pytest.mark.parametrize("k", [-1, 0, 3, 4])
def test_a_cut_that_leaves_nothing_on_one_side_is_an_error(k: int) -> None:
    with pytest.raises(BlobError, match=f"3 tokens cannot be cut at {k}"):
        split_sizes(layout(encode([Section((0, 1, 2))])), k)


def test_cells_of_one_position_cannot_be_parted() -> None:
    where = layout(encode([Section((0, 1, 1, 1, 2), extended=True)]))
    for k in (2, 3):
        with pytest.raises(BlobError, match="same position"):
            split_sizes(where, k)
    assert split_sizes(where, 1) and split_sizes(where, 4)


@pytest.mark.parametrize("change", [(-1, 0), (0, 1)])
def test_buffers_of_other_sizes_are_refused_and_not_touched(change: tuple[int, int]) -> None:
    blob = encode([Section((0, 1, 2))])
    where = layout(blob)
    front, back = (bytearray(size + by) for size, by in zip(split_sizes(where, 1), change, strict=True))
    with pytest.raises(BlobError, match="instead of"):
        split(blob, where, 1, front, back)
    assert not any(front) and not any(back)


def test_the_layout_of_another_blob_is_refused() -> None:
    where = layout(encode([Section((0, 1, 2))]))
    with pytest.raises(BlobError, match="instead of"):
        split(encode([Section((0, 1))]), where, 1, *(bytearray(size) for size in split_sizes(where, 1)))


# ---- bytes that are no segment -----------------------------------------------------------------------------

PLAIN = Section((0, 1, 2))
TRANSPOSED = Section((0, 1, 2), v_trans=True, extended=True)
KINDS = [encode([PLAIN]), encode([TRANSPOSED], EMPTY_RS), encode([PLAIN, Section((2,))])]
SHORTER = {
    blob[:length]
    for sections in ([PLAIN], [TRANSPOSED], [PLAIN, Section((2,))])
    for blob in (
        encode([*sections[:-1], replace(sections[-1], values=())]),
        encode(sections),
        encode(sections, EMPTY_RS),
    )
    for length in (len(blob), len(blob) - 24)
}
"""Blobs of other models: without V rows, without a section, with fewer recurrent layers."""


@pytest.mark.parametrize("data", [b"", b"\0" * 100, struct.pack("<Ii", MAGIC, 0)])
def test_what_is_no_state_of_a_sequence_is_an_error(data: bytes) -> None:
    with pytest.raises(BlobError):
        layout(data)


@pytest.mark.parametrize("blob", KINDS)
def test_a_blob_that_was_cut_short_is_an_error_unless_what_is_left_is_another_models(blob: bytes) -> None:
    for length in range(len(blob)):
        if blob[:length] not in SHORTER:
            with pytest.raises(BlobError):
                layout(blob[:length])


@pytest.mark.parametrize("blob", KINDS)
def test_bytes_behind_the_last_section_are_an_error(blob: bytes) -> None:
    with pytest.raises(BlobError):
        layout(blob + b"\0")


def test_a_recurrent_state_is_an_error() -> None:
    state = struct.pack("<IiI", 1, 2, 0) + struct.pack("<II", 0, 24) + (struct.pack("<iQ", 0, 4) + b"abcd") * 4
    with pytest.raises(BlobError, match="not those of a KV segment"):
        layout(encode([Section((0, 1, 2))], state))


@settings(max_examples=examples(100), deadline=None)
@given(
    st.sampled_from(KINDS), st.lists(st.tuples(st.integers(0, 10_000), st.binary(min_size=1, max_size=8)), min_size=1)
)
def test_damaged_blobs_are_read_within_their_bounds(blob: bytes, damage: list[tuple[int, bytes]]) -> None:
    data = bytearray(blob)
    for at, new in damage:
        at %= len(data)
        data[at : at + len(new)] = new
    guarded = np.full(len(data) + 64, 255, np.uint8)
    guarded[: len(data)] = np.frombuffer(data, np.uint8)
    try:
        where = layout(guarded[: len(data)])
    except BlobError:
        return
    for section in where.sections:
        assert section.end <= len(data)
        for array in section.arrays:
            assert array.offset + array.outer * array.inner * len(section.positions) <= section.end
