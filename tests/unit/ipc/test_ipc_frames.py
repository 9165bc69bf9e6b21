"""Frames: whatever the pieces in which a stream arrives, the payloads are the ones that were sent."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcpd.ipc import frames
from lcpd.ipc.frames import FrameError, FrameReader, frame


@given(st.lists(st.binary(max_size=40), max_size=8), st.data())
def test_payloads_come_out_as_they_went_in_under_any_split(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(frame, payloads))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    reader = FrameReader()
    received = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += reader.feed(stream[begin:end])
    assert received == payloads


def test_a_payload_is_delivered_as_soon_as_its_last_byte_has_come() -> None:
    reader = FrameReader()
    stream = frame(b"one") + frame(b"two")
    assert reader.feed(stream[:6]) == []
    assert reader.feed(stream[6:7]) == [b"one"]
    assert reader.feed(stream[7:]) == [b"two"]


def test_a_length_over_the_limit_is_refused_before_its_bytes_are_waited_for() -> None:
    with pytest.raises(FrameError, match="over the limit"):
        FrameReader().feed(struct.pack("<I", frames.MAX_FRAME + 1))


def test_a_frame_of_exactly_the_limit_passes_and_one_byte_more_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME", 10)
    assert FrameReader().feed(frame(b"x" * 10)) == [b"x" * 10]
    with pytest.raises(FrameError, match="11 bytes"):
        frame(b"x" * 11)
