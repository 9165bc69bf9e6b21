"""A stored piece says what it is, and any change of a byte of that is noticed."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcpd.cache.record import BadFile, Record, check, decode, encode
from lcpd.engine.protocol import pack

RECORD = Record(
    fingerprint={"model file": "m", "kv type": "f16"},
    kind="segment",
    parent="ab" * 16,
    begin=8,
    tokens=pack(np.arange(5, dtype=np.int32)),
    checksum=b"c" * 16,
)


def test_a_header_reads_back():
    header = encode(RECORD, 100)
    found = decode(header + b"state")
    assert (found.record, found.length, found.state) == (RECORD, len(header), 100)
    assert found.record.end == 13


@given(st.data())
def test_any_changed_bit_of_a_header_is_noticed(data):
    header = bytearray(encode(RECORD, 100))
    at = data.draw(st.integers(0, len(header) * 8 - 1))
    header[at // 8] ^= 1 << at % 8
    with pytest.raises(BadFile):
        decode(bytes(header))


@given(st.integers(0, len(encode(RECORD, 100)) - 1))
def test_a_header_that_was_cut_off_is_truncated(length):
    with pytest.raises(BadFile) as error:
        decode(encode(RECORD, 100)[:length])
    assert error.value.problem == "truncated"


def test_the_key_depends_on_everything_but_the_state():
    changed = [
        msgspec.structs.replace(RECORD, **{name: value})
        for name, value in {
            "fingerprint": {"model file": "n", "kv type": "f16"},
            "kind": "checkpoint",
            "parent": "",
            "begin": 9,
            "tokens": pack(np.arange(1, 6, dtype=np.int32)),
        }.items()
    ]
    assert len({RECORD.key, *(record.key for record in changed)}) == 6
    assert msgspec.structs.replace(RECORD, checksum=b"d" * 16).key == RECORD.key


@pytest.mark.parametrize(
    ("change", "size", "problem"),
    [
        ({"fingerprint": {"model file": "m", "kv type": "q8_0"}}, 0, "fingerprint"),
        ({"tokens": pack(np.array([0, 1, 2, 3, 5], np.int32))}, 0, "swapped"),
        ({"parent": "cd" * 16}, 0, "swapped"),
        ({"checksum": b"x" * 16}, 0, "swapped"),
        ({}, -1, "truncated"),
        ({}, 1, "truncated"),
    ],
)
def test_a_file_that_is_not_the_expected_one_is_told_by_reason(change, size, problem):
    header = encode(msgspec.structs.replace(RECORD, **change), 100)
    with pytest.raises(BadFile) as error:
        check(decode(header), RECORD, 100, len(header) + 100 + size)
    assert error.value.problem == problem
