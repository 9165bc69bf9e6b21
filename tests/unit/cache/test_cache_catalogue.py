"""What is on disk: paths and files agree whatever comes and goes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_kv import path

from examples import examples
from lcpd.cache.catalogue import BLOCK, Catalogue, Entry, Found
from lcpd.cache.ranking import Ranking
from lcpd.cache.record import Record, encode
from lcpd.cache.retention import Economics, Kind
from lcpd.cache.stock import take_stock
from lcpd.cache.store import Listing, Row
from lcpd.engine.protocol import Tokens, pack

FINGERPRINT = {"model file": "m"}


def put(catalogue: Catalogue, tokens: Tokens, kind: Kind = "segment", used: float = 0.0, length: int = 100) -> str:
    """Add what brings a path to its end, as the tier would write it; returns the key, "": nothing was added."""
    covered = catalogue.reach(tokens)
    begin = covered if kind == "segment" else len(tokens) - 1
    parent = catalogue.parent_of(tokens[: begin + (kind == "checkpoint")])
    if begin >= len(tokens):
        return ""
    record = Record(FINGERPRINT, kind, parent.key if parent else "", begin, pack(tokens[begin:]), bytes(16))
    return record.key if catalogue.add(Found(record.key, record, length, length, used)) else ""


def entry(catalogue: Catalogue, key: str) -> Entry:
    return next(one for one in catalogue.entries if one.key == key)


def test_a_path_is_covered_by_the_files_along_it():
    catalogue = Catalogue()
    put(catalogue, path(1, 2, 3))
    put(catalogue, path(1, 2, 3, 4, 5))
    assert catalogue.reach(path(1, 2, 3, 4, 5, 6)) == 5
    assert catalogue.reach(path(1, 2, 3, 4, 9)) == 4
    assert catalogue.reach(path(2)) == 0
    assert len(catalogue) == 2


def test_where_a_path_turns_off_within_a_file_it_is_sliced_not_copied():
    catalogue = Catalogue()
    put(catalogue, path(1, 2, 3, 4))
    put(catalogue, path(1, 2, 8, 9))
    assert len(catalogue) == 2
    assert catalogue.reach(path(1, 2, 3, 4)) == catalogue.reach(path(1, 2, 8, 9)) == 4
    slices = [(piece.begin, piece.end, upto) for piece, upto in catalogue.chain(path(1, 2, 3, 4))]
    assert slices == [(0, 2, 2), (2, 4, 4)]
    catalogue.check_integrity()


def test_a_checkpoint_counts_only_where_segments_lead_to_it():
    catalogue = Catalogue()
    assert not put(catalogue, path(1, 2), "checkpoint")
    put(catalogue, path(1, 2, 3))
    assert put(catalogue, path(1, 2), "checkpoint")
    assert list(catalogue.checkpoints(path(1, 2, 3))) == [2]
    assert list(catalogue.checkpoints(path(1, 9))) == []


def test_without_segments_checkpoints_stand_alone():
    catalogue = Catalogue()
    catalogue.needs_segments = False
    record = Record(FINGERPRINT, "checkpoint", "", 0, pack(path(1, 2, 3)), bytes(16))
    assert catalogue.add(Found(record.key, record, 10, 10, 0.0))
    assert list(catalogue.checkpoints(path(1, 2, 3, 4))) == [3]


def test_a_file_without_its_parent_is_refused():
    catalogue = Catalogue()
    record = Record(FINGERPRINT, "segment", "ab" * 16, 3, pack(path(4)), bytes(16))
    assert not catalogue.add(Found(record.key, record, 10, 10, 0.0))


def test_what_builds_on_a_file_goes_with_it():
    catalogue = Catalogue()
    first = put(catalogue, path(1, 2, 3))
    put(catalogue, path(1, 2, 3, 4))
    put(catalogue, path(1, 7))
    put(catalogue, path(1, 2, 3, 4), "checkpoint")
    other = put(catalogue, path(5, 6))
    assert len(catalogue.remove(entry(catalogue, first))) == 4
    assert [one.key for one in catalogue.entries] == [other]
    catalogue.check_integrity()


def test_sizes_are_counted_in_blocks():
    catalogue = Catalogue()
    put(catalogue, path(1), length=1)
    put(catalogue, path(1, 2), length=BLOCK + 1)
    assert catalogue.size == 3 * BLOCK


def test_what_is_used_keeps_what_it_builds_on_from_expiring():
    catalogue = Catalogue()
    put(catalogue, path(1, 2), used=1.0)
    put(catalogue, path(1, 2, 3), used=2.0)
    other = put(catalogue, path(1, 2, 9), used=3.0)
    catalogue.used(path(1, 2, 3, 4), 50.0)
    assert [one.key for one in catalogue.expired(10.0)] == [other]


def first_to_go(catalogue: Catalogue, now: float):
    ranking = Ranking(catalogue, rolls_back=False)
    list(ranking.look(now, Economics()))
    return ranking.next((), now, Economics())


TOKENS = st.lists(st.integers(1, 3), min_size=1, max_size=8).map(lambda items: np.array(items, np.int32))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["segment", "checkpoint", "remove", "room"]), TOKENS), max_size=25))
def test_whatever_comes_and_goes_paths_and_files_agree(operations):
    catalogue = Catalogue()
    for time, (what, tokens) in enumerate(operations):
        if what == "remove":
            for one in catalogue.along(tokens)[-1:]:
                catalogue.remove(one)
        elif what == "room":
            if one := first_to_go(catalogue, float(time)):
                assert not one.children
                catalogue.remove(one)
        else:
            put(catalogue, tokens, what, used=time)
        catalogue.check_integrity()
        for one in catalogue.entries:
            assert catalogue.reach(one.path) >= (one.end if one.kind == "segment" else 1)
            assert one.parent is None or one.parent.last_used >= one.last_used


@pytest.mark.parametrize("seed", range(3))
def test_the_index_of_a_catalogue_gives_the_same_catalogue(seed):
    random = np.random.default_rng(seed)
    catalogue, rows = Catalogue(), []
    for _ in range(60):
        tokens = random.integers(1, 4, random.integers(1, 12)).astype(np.int32)
        kind: Kind = "segment" if random.random() < 0.6 else "checkpoint"
        if key := put(catalogue, tokens, kind):
            one = entry(catalogue, key)
            record = Record(
                FINGERPRINT, kind, one.parent.key if one.parent else "", one.begin, pack(one.tokens), bytes(16)
            )
            header = encode(record, 7)
            rows.append(Row(key, header, len(header) + 7, 0.0, 0.0))
    random.shuffle(rows)
    stock = take_stock(Listing(rows), FINGERPRINT, needs_segments=True)
    assert not stock.refused
    stock.catalogue.check_integrity()
    assert {one.key for one in stock.catalogue.entries} == {one.key for one in catalogue.entries}
    for one in catalogue.entries:
        assert stock.catalogue.reach(one.path) == catalogue.reach(one.path)
        assert list(stock.catalogue.checkpoints(one.path)) == list(catalogue.checkpoints(one.path))
