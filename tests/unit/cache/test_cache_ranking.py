"""In which order files go: those worth least first, none before what builds on it, none that is needed now."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from synthetic_kv import path
from test_cache_catalogue import entry, put

from lcpd.cache.catalogue import Catalogue, Entry
from lcpd.cache.ranking import Ranking, with_all_below
from lcpd.cache.retention import Economics

ECONOMICS = Economics()


def ranked(catalogue: Catalogue, now: float, rolls_back: bool = True) -> Ranking:
    ranking = Ranking(catalogue, rolls_back)
    list(ranking.look(now, ECONOMICS))
    return ranking


def order(ranking: Ranking, now: float, stays: Collection[Entry] = ()) -> list[str]:
    """All that goes, one after the other."""
    keys = []
    while (one := ranking.next(stays, now, ECONOMICS)) is not None:
        assert not one.children
        ranking.catalogue.remove(one)
        keys.append(one.key)
    return keys


def test_children_go_before_their_parents() -> None:
    catalogue = Catalogue()
    keys = [put(catalogue, np.arange(1, n, dtype=np.int32), used=n) for n in (4, 7, 9)]
    assert order(ranked(catalogue, 100.0), 100.0) == keys[::-1]


def test_what_was_used_long_ago_goes_first() -> None:
    catalogue = Catalogue()
    keys = [put(catalogue, path(n, 2, 3), used=n * 1000.0) for n in (1, 2, 3)]
    assert order(ranked(catalogue, 3000.0), 3000.0) == keys


def test_what_was_used_since_the_last_look_goes_later() -> None:
    catalogue = Catalogue()
    first, second = (put(catalogue, path(n, 2, 3), used=n * 1000.0) for n in (1, 2))
    ranking = ranked(catalogue, 3000.0)
    catalogue.used(path(1, 2, 3), 3000.0)
    assert order(ranking, 3000.0) == [second, first]


def test_segments_without_a_checkpoint_go_first_where_one_is_needed() -> None:
    catalogue = Catalogue()
    put(catalogue, path(1, 2, 3), used=0.0)
    put(catalogue, path(1, 2, 3), "checkpoint", used=0.0)
    useless = put(catalogue, path(4, 5, 6), used=1e6)
    assert order(ranked(catalogue, 1e6, rolls_back=False), 1e6)[0] == useless


def test_what_stays_stays_with_all_that_it_builds_on_and_goes_when_it_need_not_stay_any_more() -> None:
    catalogue = Catalogue()
    below = put(catalogue, path(1, 2))
    last = put(catalogue, path(1, 2, 3))
    other = put(catalogue, path(1, 9))
    ranking = ranked(catalogue, 0.0)
    assert order(ranking, 0.0, with_all_below([entry(catalogue, last)])) == [other]
    assert order(ranking, 0.0) == [last, below]


def test_what_went_or_is_built_upon_since_the_last_look_is_not_named() -> None:
    catalogue = Catalogue()
    gone, parent = put(catalogue, path(7)), put(catalogue, path(1, 2))
    ranking = ranked(catalogue, 0.0)
    catalogue.remove(entry(catalogue, gone))
    put(catalogue, path(1, 2, 3))
    assert order(ranking, 0.0) == []
    assert entry(catalogue, parent).children


def test_the_catalogue_may_change_while_it_is_looked_at() -> None:
    catalogue = Catalogue()
    keys = [put(catalogue, path(n, 1), used=n) for n in range(1, 601)]
    ranking = Ranking(catalogue, rolls_back=True)
    steps = ranking.look(1000.0, ECONOMICS)
    next(steps)
    for key in keys[500:]:
        catalogue.remove(entry(catalogue, key))
    assert len(list(steps)) == 2
    assert order(ranking, 1000.0) == keys[:500]
