"""The prompt cache over a small real arena: what is saved is found, held once, cut where paths part, never lost."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from synthetic_kv import CHECKPOINT_BYTES, SEGMENT_BYTES, Bench, exported, path, state

from lcpd.cache.arena import Arena
from lcpd.cache.cache import PromptCache

HEAD = path(*range(100, 112))
ROOMY = 1 << 16


def conversation(*rest: int) -> np.ndarray:
    return np.concatenate([HEAD, path(*rest)])


def test_nothing_is_known_at_first() -> None:
    cache = Bench(ROOMY).cache
    assert cache.covered(HEAD) == 0
    assert cache.checkpoints_on(HEAD) == []
    assert cache.checkpoint(HEAD, 5) is None
    assert cache.segments(HEAD, 0, 0) == []


def test_what_was_saved_is_found_with_its_bytes() -> None:
    bench = Bench(ROOMY)
    bench.save(HEAD)
    assert bench.cache.covered(conversation(1, 2)) == 12
    bench.restore(conversation(1, 2), 0, 12)
    bench.check()


def test_long_ranges_are_saved_in_chunks() -> None:
    bench = Bench(ROOMY, chunk=5)
    assert [(cut.begin, cut.end) for cut in bench.save(HEAD)] == [(0, 5), (5, 10), (10, 12)]


def test_only_what_is_not_there_is_saved() -> None:
    bench = Bench(ROOMY)
    bench.save(HEAD)
    assert [(cut.begin, cut.end) for cut in bench.save(conversation(1, 2, 3))] == [(12, 15)]
    assert bench.cache.plan_save(conversation(1, 2, 3), 13) == []
    bench.restore(conversation(1, 2, 3), 12, 15)


def test_ranges_end_at_checkpoints_and_where_other_paths_turn_off() -> None:
    bench = Bench(ROOMY, chunk=100)
    bench.take_checkpoint(conversation(1, 2))
    bench.take_checkpoint(HEAD[:4])
    cuts = bench.cache.plan_save(conversation(5, 6, 7), 15)
    assert [(cut.begin, cut.end) for cut in cuts] == [(0, 4), (4, 12), (12, 15)]


def test_asking_for_segments_beyond_what_is_covered_is_refused() -> None:
    bench = Bench(ROOMY)
    bench.save(HEAD)
    with pytest.raises(ValueError, match="up to 13 were asked for, but only 12"):
        bench.cache.segments(conversation(1), 0, 13)


def test_ten_conversations_with_one_head_hold_it_once() -> None:
    bench = Bench(ROOMY)
    for number in range(10):
        bench.save(conversation(number, number))
    stats = bench.cache.stats()
    assert stats.tokens == 12 + 10 * 2
    for number in range(10):
        bench.restore(conversation(number, number), 0, 14)
    bench.check()


def test_a_path_that_turns_off_within_a_segment_uses_its_front() -> None:
    bench = Bench(ROOMY, chunk=100)
    bench.save(HEAD)
    tokens = np.concatenate([HEAD[:7], path(1, 2)])
    assert bench.cache.covered(tokens) == 7
    assert [(s.begin, s.end) for s in bench.cache.segments(tokens, 3, 7)] == [(0, 12)]
    bench.restore(tokens, 0, 7)


def test_a_segment_is_cut_in_two_when_another_path_is_saved_from_within_it() -> None:
    bench = Bench(ROOMY, chunk=100)
    bench.save(HEAD)
    tokens = np.concatenate([HEAD[:7], path(1, 2)])
    bench.save(tokens)
    assert [(s.begin, s.end) for s in bench.cache.segments(tokens, 0, 9)] == [(0, 7), (7, 9)]
    assert [(s.begin, s.end) for s in bench.cache.segments(HEAD, 0, 12)] == [(0, 7), (7, 12)]
    bench.restore(tokens, 0, 9)
    bench.restore(HEAD, 0, 12)
    bench.check()


def test_a_checkpoint_within_a_segment_leaves_it_in_one_piece() -> None:
    bench = Bench(ROOMY, chunk=100)
    bench.save(HEAD)
    bench.take_checkpoint(HEAD[:5])
    assert [(s.begin, s.end) for s in bench.cache.segments(HEAD, 0, 12)] == [(0, 12)]
    bench.save(conversation(1))
    bench.restore(conversation(1), 0, 13)
    bench.check()


def test_where_a_segment_cannot_be_cut_nothing_is_saved_and_nothing_is_lost() -> None:
    bench = Bench(512, chunk=100)
    bench.save(HEAD)  # 320 of 512 bytes; its two halves would need 448 more
    tokens = np.concatenate([HEAD[:7], path(1, 2)])
    assert bench.save(tokens) == []
    assert bench.cache.covered(HEAD) == 12
    assert bench.cache.covered(tokens) == 7
    bench.check()


def test_a_segment_whose_bytes_changed_is_not_cut_but_dropped_with_what_builds_on_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(ROOMY, chunk=12)
    bench.save(conversation(1, 2))
    extent = bench.cache.segments(HEAD, 0, 12)[0].piece.extent
    bench.arena.view(extent)[60] ^= 1
    with caplog.at_level(logging.CRITICAL, "lcpd.cache.holdings"):
        assert bench.save(np.concatenate([HEAD[:7], path(1)])) == []
    assert bench.cache.covered(conversation(1, 2)) == 0
    assert bench.cache.stats().dropped == {"corrupt": 2}
    bench.check()


def test_checkpoints_are_found_on_their_own_path_only() -> None:
    bench = Bench(ROOMY)
    bench.take_checkpoint(HEAD)
    bench.take_checkpoint(conversation(1, 2))
    assert bench.cache.checkpoints_on(conversation(1, 2, 3)) == [12, 14]
    assert bench.cache.checkpoints_on(conversation(9, 2, 3)) == [12]
    assert bench.cache.checkpoints_on(HEAD[:11]) == []
    piece = bench.cache.checkpoint(conversation(1, 2, 3), 14)
    assert piece is not None
    assert bytes(bench.arena.view(piece.extent)) == state(conversation(1, 2))
    assert bench.cache.checkpoint(conversation(1, 3, 3), 14) is None


def test_a_second_checkpoint_for_a_path_is_given_back() -> None:
    bench = Bench(ROOMY)
    bench.take_checkpoint(HEAD)
    first = bench.cache.checkpoint(HEAD, 12)
    bench.take_checkpoint(HEAD)
    assert bench.cache.checkpoint(HEAD, 12) == first
    assert bench.cache.stats().checkpoints == 1
    bench.check()


def test_the_room_of_a_checkpoint_that_was_not_taken_is_given_back() -> None:
    bench = Bench(ROOMY)
    extent = bench.cache.reserve_checkpoint()
    assert extent is not None
    assert bench.cache.stats().reserved_bytes == CHECKPOINT_BYTES
    bench.cache.add_checkpoint(HEAD, extent, None)
    assert bench.arena.used == 0


def test_an_extent_that_is_not_reserved_is_not_taken_back() -> None:
    bench = Bench(ROOMY)
    extent = bench.cache.reserve_checkpoint()
    assert extent is not None
    bench.cache.give_back(extent)
    with pytest.raises(ValueError, match="not reserved"):
        bench.cache.give_back(extent)


def test_the_room_of_cuts_that_were_not_saved_is_given_back() -> None:
    bench = Bench(ROOMY, chunk=4)
    cuts = bench.cache.plan_save(HEAD, 12)
    bench.cache.add_segments(HEAD, cuts, bench.export(HEAD, cuts[:2]))
    assert bench.cache.covered(HEAD) == 8
    assert bench.cache.stats().reserved_bytes == 0
    bench.check()


def test_a_range_that_another_slot_saved_meanwhile_is_given_back() -> None:
    bench = Bench(ROOMY, chunk=4)
    cuts = bench.cache.plan_save(HEAD, 12)
    bench.save(HEAD)
    used = bench.cache.stats().segment_bytes
    bench.cache.add_segments(HEAD, cuts, bench.export(HEAD, cuts))
    assert bench.cache.stats().segment_bytes == used
    assert bench.cache.stats().reserved_bytes == 0
    bench.check()


def test_of_two_paths_saved_at_once_the_common_part_is_kept_once() -> None:
    bench = Bench(ROOMY, chunk=100)
    one, two = conversation(1, 2, 3), conversation(9, 8, 7)
    plans = [(tokens, bench.cache.plan_save(tokens, 15)) for tokens in (one, two)]
    for tokens, cuts in plans:
        bench.cache.add_segments(tokens, cuts, bench.export(tokens, cuts))
    assert bench.cache.stats().tokens == 12 + 3 + 3
    for tokens in (one, two):
        bench.restore(tokens, 0, 15)
    bench.check()


def test_room_for_the_rest_of_a_segment_does_not_come_from_what_it_follows_on() -> None:
    bench = Bench(1536, chunk=100)
    one, two = conversation(1, 2, 3), conversation(*range(20))
    plans = [(tokens, bench.cache.plan_save(tokens, len(tokens))) for tokens in (one, two)]
    for tokens, cuts in plans:
        bench.cache.add_segments(tokens, cuts, bench.export(tokens, cuts))
    assert bench.cache.covered(two) == 12
    assert bench.cache.covered(one) >= 12
    bench.check()


def test_what_a_save_in_flight_follows_on_is_not_evicted() -> None:
    bench = Bench(1280, chunk=12)
    bench.save(HEAD)
    cuts = bench.cache.plan_save(conversation(1, 2), 14)
    bench.now += 1e6
    for first in range(20):
        bench.save(path(first, 1, 2, 3, 4, 5))
    bench.cache.add_segments(conversation(1, 2), cuts, bench.export(conversation(1, 2), cuts))
    assert bench.cache.covered(conversation(1, 2)) == 14
    bench.restore(conversation(1, 2), 0, 14)
    bench.check()


def test_what_is_pinned_is_not_evicted() -> None:
    bench = Bench(1280)
    bench.save(HEAD)
    bench.take_checkpoint(HEAD)
    pin = bench.cache.pin(HEAD, 12)
    bench.now += 1e6
    for first in range(20):
        bench.save(path(first, 1, 2, 3, 4, 5))
        bench.take_checkpoint(path(first))
    assert bench.cache.covered(HEAD) == 12
    assert bench.cache.checkpoints_on(HEAD) == [12]
    bench.cache.unpin(pin)
    for first in range(20):
        bench.save(path(first, 7, 2, 3, 4, 5))
    assert bench.cache.covered(HEAD) == 0
    bench.check()


def test_a_pinned_segment_that_is_cut_keeps_its_old_bytes_until_it_is_unpinned() -> None:
    bench = Bench(ROOMY, chunk=100)
    bench.save(HEAD)
    pin = bench.cache.pin(HEAD, 12)
    old = bench.cache.segments(HEAD, 0, 12)[0].piece
    bench.save(np.concatenate([HEAD[:7], path(1, 2)]))
    assert bytes(bench.arena.view(old.extent)) == exported(HEAD, 0, 12)
    assert bench.cache.stats().lingering_bytes == old.extent.size
    bench.restore(HEAD, 0, 12)
    bench.cache.unpin(pin)
    bench.cache.unpin(pin)
    assert bench.cache.stats().lingering_bytes == 0
    bench.check()


def test_what_proved_unusable_is_offered_no_more_nor_what_builds_on_it() -> None:
    bench = Bench(ROOMY, chunk=12)
    bench.save(conversation(1, 2))
    bench.take_checkpoint(HEAD)
    bench.take_checkpoint(HEAD[:3])
    pin = bench.cache.pin(HEAD, 12)
    bench.cache.discard(pin)
    assert bench.cache.covered(conversation(1, 2)) == 0
    assert bench.cache.checkpoints_on(HEAD) == [3]
    bench.cache.unpin(pin)
    bench.check()
    assert bench.cache.stats().lingering_bytes == 0


def test_what_lies_before_the_unusable_part_is_kept() -> None:
    bench = Bench(ROOMY, chunk=4)
    bench.save(HEAD)
    pin = bench.cache.pin(HEAD, 12)
    bench.cache.discard(pin, 8)
    bench.cache.unpin(pin)
    assert bench.cache.covered(HEAD) == 8


def test_saving_more_than_the_arena_holds_keeps_what_fits_from_the_front() -> None:
    bench = Bench(1024)
    cuts = bench.save(path(*range(100)))
    assert [(cut.begin, cut.end) for cut in cuts] == [(0, 8), (8, 16), (16, 24), (24, 32)]
    assert bench.cache.covered(path(*range(100))) == 32


def test_saving_does_not_push_out_the_checkpoint_it_is_of_use_with() -> None:
    bench = Bench(1024)
    tokens = path(*range(100))
    bench.take_checkpoint(tokens)
    bench.now += 1e6
    bench.save(tokens)
    assert bench.cache.checkpoints_on(tokens) == [100]
    assert bench.cache.covered(tokens) > 0


def test_what_can_never_fit_evicts_nothing() -> None:
    bench = Bench(1024, chunk=8)
    bench.save(HEAD)
    bench.cache.configure(segment_bytes=SEGMENT_BYTES, checkpoint_bytes=1025)
    assert bench.cache.reserve_checkpoint() is None
    assert bench.cache.covered(HEAD) == 12


def test_nothing_is_reserved_before_the_bounds_are_known() -> None:
    cache = PromptCache(Arena(ROOMY))
    assert cache.plan_save(HEAD, 12) == []
    assert cache.reserve_checkpoint() is None


def test_where_a_checkpoint_is_all_of_the_state_it_is_enough() -> None:
    """As on purely recurrent models, whose segments have no bytes."""
    bench = Bench(ROOMY)
    assert bench.cache.needs_segments
    bench.cache.configure(segment_bytes=(0, 0), checkpoint_bytes=CHECKPOINT_BYTES)
    assert not bench.cache.needs_segments
    assert bench.save(HEAD) == []
    bench.take_checkpoint(HEAD[:4])
    bench.take_checkpoint(HEAD)
    assert bench.cache.covered(HEAD[:11]) == 4
    assert bench.cache.covered(conversation(1, 2)) == 12
    assert bench.cache.segments(conversation(1, 2), 0, 12) == []


def test_segments_are_needed_where_there_are_no_checkpoints_and_before_anything_is_known() -> None:
    cache = PromptCache(Arena(ROOMY))
    assert cache.needs_segments
    cache.configure(segment_bytes=SEGMENT_BYTES, checkpoint_bytes=0)
    assert cache.needs_segments


def test_without_an_arena_nothing_is_kept_and_nothing_fails() -> None:
    bench = Bench(0)
    assert bench.save(HEAD) == []
    assert not bench.take_checkpoint(HEAD)
    assert bench.cache.covered(HEAD) == 0
    bench.check()


def test_nodes_that_hold_nothing_are_forgotten() -> None:
    bench = Bench(2048)
    for number in range(200):
        bench.now += 1
        tokens = path(number, *range(20))
        bench.take_checkpoint(tokens[:10])
        bench.save(tokens)
        bench.check()
    stats = bench.cache.stats()
    assert stats.nodes <= 2 * (stats.segments + stats.checkpoints)


# ---- holding -----------------------------------------------------------------------------------------------


def test_what_is_held_is_never_given_up_for_want_of_room() -> None:
    bench = Bench(2048)
    bench.save(HEAD)
    bench.take_checkpoint(HEAD)
    number = bench.cache.hold(HEAD)
    bench.now = 1e6
    for other in range(20):
        bench.save(path(*range(other * 50, other * 50 + 12)))
    assert bench.cache.covered(HEAD) == 12
    assert bench.cache.checkpoints_on(HEAD) == [12]
    assert list(bench.cache.holds()) == [number]
    assert bench.cache.release(number)
    assert not bench.cache.release(number)
    bench.now = 2e6
    for other in range(20, 40):
        bench.save(path(*range(other * 50, other * 50 + 12)))
        bench.take_checkpoint(path(*range(other * 50, other * 50 + 12)))
    assert bench.cache.covered(HEAD) == 0
    bench.check()


def test_what_is_saved_later_on_a_path_that_is_held_is_held_too() -> None:
    bench = Bench(2048)
    bench.cache.hold(HEAD)
    bench.save(HEAD)
    bench.now = 1e6
    for other in range(20):
        bench.save(path(*range(other * 50, other * 50 + 12)))
    assert bench.cache.covered(HEAD) == 12


def test_too_much_that_is_held_leaves_room_for_nothing_else_and_fails_nothing() -> None:
    bench = Bench(1024, chunk=100)
    bench.cache.hold(HEAD)
    bench.save(HEAD)
    assert bench.save(path(*range(40))) == []
    assert bench.cache.reserve_checkpoint() is not None
    bench.check()


# ---- what there was ----------------------------------------------------------------------------------------


def test_what_the_arena_knows_is_part_of_the_past_even_if_nobody_remembers() -> None:
    bench = Bench(ROOMY)
    bench.save(conversation(1, 2))
    past = bench.cache.past(conversation(5))
    assert (past.length, past.went_on) == (12, (1, 2))


def test_damage_is_remembered() -> None:
    bench = Bench(ROOMY)
    bench.save(HEAD)
    bench.cache.remember(HEAD, 12)
    pin = bench.cache.pin(HEAD, 12)
    bench.cache.discard(pin)
    bench.cache.unpin(pin)
    assert [(loss.end, loss.reason) for loss in bench.cache.past(HEAD).losses] == [(12, "damaged")]


def test_room_is_never_made_by_dropping_what_goes_on_there() -> None:
    bench = Bench(ROOMY)
    bench.save(HEAD)
    assert bench.cache.reserve(HEAD, bench.arena.size - 64) is None
    assert bench.cache.covered(HEAD) == len(HEAD)
    bench.check()
