"""Sharing, saving and restoring through the decode loop, on one real model for each kind of state.

Logits are compared bit for bit: a sequence that was brought to its place from shared cells or from bytes must be
indistinguishable from one that computed everything itself, with the same cuts.  That holds where the cells come to lie
in the same order and gaps; elsewhere sums are taken in another order, which moves the logits of small quantised models
by up to 1, and texts without near-ties are compared.
"""

from __future__ import annotations

import numpy as np
import pytest
from loops import Engine, prompt_for, ranges

from lcpd.engine import protocol as p

pytestmark = pytest.mark.native
HALF = {"attention": 120, "swa": 400, "hybrid": 120, "recurrent": 120}
PREFIX = {"attention": 200, "swa": 608, "hybrid": 200, "recurrent": 200}
"""Items; on the sliding-window model more than its window of 512, by a multiple of 32: a window that is restored begins
in other cells, and without flash attention its sums are the same only where those are as many whole blocks further."""


with_segments = pytest.mark.parametrize("kind", ["attention", "swa", "hybrid"], indirect=True)
"""On recurrent models a checkpoint is all of the state."""
with_checkpoints = pytest.mark.parametrize("kind", ["swa", "hybrid", "recurrent"], indirect=True)
CACHE_TYPES = [("f16", "off"), ("f16", "on"), ("q8_0", "on"), ("q4_0", "on")]
"""With and without flash attention, without which values cannot be quantised."""


def restore_at(engine, position):
    """The checkpoint at a position; pure attention needs none."""
    return None if engine.model.kind == "attention" else engine.checkpoint_at(position)


def with_tail(engine, tokens, at, seed):
    """Tokens that go on differently from `at`."""
    return np.concatenate([tokens[:at], prompt_for(engine, 90, seed=seed)])


def saved_prefix(engine, tokens, **more):
    """Compute a prompt cold, export its prefix in two segments, and forget all; (its logits, segments, checkpoint)."""
    half, prefix = HALF[engine.model.kind], PREFIX[engine.model.kind]
    logits = engine.first_logits(1, tokens, checkpoints=[half, prefix], **more)
    saved = engine.save(0, *ranges(engine, half, prefix))
    assert saved.problem == ""
    engine.forget()
    return logits, saved.segments, restore_at(engine, prefix)


# ---- sharing live cells ------------------------------------------------------------------------------------


def test_a_shared_prefix_is_as_good_as_a_computed_one(engine, kind):
    prefix = PREFIX[kind]
    head = prompt_for(engine, prefix)
    other = with_tail(engine, head, prefix, seed=5)
    expected = engine.first_logits(1, other, checkpoints=[prefix])
    engine.forget()

    engine.start(2, head, max_tokens=1, checkpoints=[prefix])
    engine.run()
    got = engine.first_logits(
        3, other, seq=1, begin=prefix, source=0, shared=prefix, restore=restore_at(engine, prefix)
    )
    assert engine.problem_of(3) == ""
    assert np.array_equal(got, expected)


def test_a_prefix_is_shared_with_a_sequence_that_is_running(engine, kind):
    prefix = PREFIX[kind]
    head = prompt_for(engine, prefix + 50)
    other = with_tail(engine, head, prefix, seed=5)
    alone = engine.reply(1, other, seq=2, checkpoints=[prefix])
    leader = engine.reply(2, head, checkpoints=[prefix], max_tokens=40)
    engine.forget()

    engine.start(3, head, checkpoints=[prefix], max_tokens=40)
    while not engine.of(p.Step) or not engine.tokens(3):
        engine.loop.step()
    engine.start(4, other, seq=1, begin=prefix, source=0, shared=prefix, restore=restore_at(engine, prefix))
    assert engine.reply_of_running(3) == leader
    assert engine.begin_of(4) == prefix
    assert engine.tokens(4) == alone


def test_several_replies_go_on_from_the_end_of_one_prompt(engine):
    """As for n > 1: everything that the source holds is shared, so no checkpoint is needed."""
    tokens = prompt_for(engine)
    engine.start(1, tokens, max_tokens=1)
    engine.run()
    following = np.concatenate([tokens, engine.tokens(1), prompt_for(engine, 20, seed=9)])
    for request, seq in ((2, 1), (3, 2)):
        engine.start(request, following, seq=seq, begin=len(tokens), source=0, shared=len(tokens), max_tokens=20)
    engine.start(4, following, begin=len(tokens), source=0, shared=len(tokens), max_tokens=20)
    engine.run()
    assert [engine.problem_of(r) for r in (2, 3, 4)] == ["", "", ""]
    engine.forget()
    alone = engine.reply(5, following, checkpoints=[len(tokens)], max_tokens=20)
    assert engine.tokens(2) == engine.tokens(3) == engine.tokens(4) == alone


def test_a_window_shared_at_the_end_of_a_prompt_does_not_block_its_cells(models, make_context):
    """Window cells that two sequences hold could never be used again, and the longer reply would starve."""
    model = models("swa")
    engine = Engine(model, make_context(model, n_seq=3, n_batch=256, n_ubatch=256))
    tokens = prompt_for(engine, 1500)
    engine.start(1, tokens, max_tokens=1)
    engine.run()
    for request, seq in ((2, 1), (3, 0)):
        more = np.concatenate([tokens, prompt_for(engine, 900, seed=request)])
        engine.start(request, more, seq=seq, begin=1500, source=0, shared=1500, max_tokens=2)
    engine.run()
    assert not engine.of(p.Starved)
    assert len(engine.of(p.Finished)) == 3


# ---- saving and restoring ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "kv_type", "flash_attn"),
    [
        *((kind, *types) for kind in ("attention", "swa", "hybrid") for types in CACHE_TYPES),
        ("recurrent", "f16", "off"),
    ],
    indirect=["kind"],
)
def test_a_restored_sequence_computes_the_very_same_logits(kind, models, make_context, kv_type, flash_attn):
    model = models(kind)
    context = make_context(model, n_batch=256, n_ubatch=256, kv_type=kv_type, flash_attn=flash_attn)
    engine = Engine(model, context)
    prefix = PREFIX[kind]
    tokens = prompt_for(engine, prefix + 60)
    expected, segments, checkpoint = saved_prefix(engine, tokens)
    got = engine.first_logits(2, tokens, seq=1, begin=prefix, segments=segments, restore=checkpoint)
    assert (engine.begin_of(2), engine.problem_of(2)) == (prefix, "")
    assert np.array_equal(got, expected)
    assert context.last_position(context.scratch) == -1


@with_segments
def test_what_is_restored_can_be_saved_and_restored_again(engine, kind):
    prefix = PREFIX[kind]
    tokens = prompt_for(engine, prefix + 60)
    _, segments, checkpoint = saved_prefix(engine, tokens)
    expected = engine.first_logits(2, tokens, seq=1, begin=prefix, segments=segments, restore=checkpoint)
    again = engine.save(1, (0, prefix))
    engine.forget()
    got = engine.first_logits(3, tokens, seq=2, begin=prefix, segments=again.segments, restore=checkpoint)
    assert np.array_equal(got, expected)


@with_segments
def test_segments_are_restored_on_top_of_a_shared_prefix(engine, kind):
    """The first segment overlaps what is shared, by which nothing is held twice."""
    prefix, shared = PREFIX[kind], HALF[kind] // 2
    tokens = prompt_for(engine, prefix + 60)
    _, segments, checkpoint = saved_prefix(engine, tokens)
    alone = engine.reply(2, tokens, checkpoints=[prefix])
    engine.forget()
    engine.start(3, tokens[:shared], max_tokens=1)
    engine.run()
    reply = engine.reply(4, tokens, seq=1, begin=prefix, source=0, shared=shared, segments=segments, restore=checkpoint)
    assert engine.problem_of(4) == ""
    assert reply == alone
    assert [s.end - s.begin for s in engine.save(1, (0, prefix)).segments] == [prefix]


@with_segments
def test_a_sequence_is_extended_by_segments_in_place(engine, kind):
    prefix, half = PREFIX[kind], HALF[kind]
    tokens = prompt_for(engine, prefix + 60)
    _, segments, checkpoint = saved_prefix(engine, tokens)
    expected = engine.first_logits(2, tokens, begin=prefix, segments=segments, restore=checkpoint)
    engine.forget()
    engine.start(3, with_tail(engine, tokens, half, seed=4), checkpoints=[half], max_tokens=1)
    engine.run()
    got = engine.first_logits(4, tokens, begin=prefix, source=0, shared=half, segments=segments[1:], restore=checkpoint)
    assert engine.problem_of(4) == ""
    assert np.array_equal(got, expected)


def test_a_window_that_was_recycled_comes_back_with_its_checkpoint(models, make_context):
    model = models("swa")
    engine = Engine(model, make_context(model, n_seq=2, n_batch=256, n_ubatch=256))
    tokens = prompt_for(engine, 1600)
    expected = engine.first_logits(1, tokens[:760], checkpoints=[700])
    engine.forget()
    engine.start(2, tokens, checkpoints=[700], max_tokens=1)
    engine.run()
    saved = engine.save(0, (0, 400), (400, 700))
    got = engine.first_logits(3, tokens[:760], begin=700, source=0, shared=700, restore=engine.checkpoint_at(700))
    assert np.array_equal(got, expected)
    engine.forget()
    got = engine.first_logits(4, tokens[:760], begin=700, segments=saved.segments, restore=engine.checkpoint_at(700))
    assert np.array_equal(got, expected)


@with_checkpoints
def test_another_texts_checkpoint_shows_in_the_logits(engine, kind):
    """The negative control: the equalities of this file are no accident."""
    prefix = PREFIX[kind]
    tokens = prompt_for(engine, prefix + 60)
    expected, segments, _ = saved_prefix(engine, tokens)
    engine.start(2, prompt_for(engine, prefix + 60, seed=8), checkpoints=[prefix], max_tokens=1)
    engine.run()
    wrong = engine.checkpoint_at(prefix)
    engine.forget()
    got = engine.first_logits(3, tokens, begin=prefix, segments=segments, restore=wrong)
    assert engine.problem_of(3) == ""
    assert np.abs(got - expected).max() > 0.1


@with_segments
def test_another_texts_segment_shows_in_the_logits(engine, kind):
    prefix = PREFIX[kind]
    tokens = prompt_for(engine, prefix + 60)
    expected, segments, checkpoint = saved_prefix(engine, tokens)
    engine.start(2, prompt_for(engine, prefix + 60, seed=8), max_tokens=1)
    engine.run()
    wrong = engine.save(0, (0, HALF[kind])).segments
    engine.forget()
    got = engine.first_logits(3, tokens, begin=prefix, segments=[*wrong, segments[1]], restore=checkpoint)
    assert np.abs(got - expected).max() > 0.05


@pytest.mark.parametrize(
    ("kind", "damaged"),
    [
        *((kind, "segment") for kind in ("attention", "swa", "hybrid")),
        *((kind, "checkpoint") for kind in ("swa", "hybrid", "recurrent")),
    ],
    indirect=["kind"],
)
def test_damaged_bytes_are_never_used(engine, kind, damaged):
    prefix = PREFIX[kind]
    tokens = prompt_for(engine, prefix + 60)
    expected, segments, checkpoint = saved_prefix(engine, tokens)
    piece = segments[1].piece if damaged == "segment" else checkpoint
    engine.arena.view(piece.extent)[piece.extent.size // 2] ^= 1
    got = engine.first_logits(
        2, tokens, begin=prefix, segments=segments, restore=checkpoint, checkpoints=[HALF[kind], prefix]
    )
    assert engine.begin_of(2) == 0
    assert "damaged" in engine.problem_of(2)
    assert engine.damage_seen(2)
    assert np.array_equal(got, expected)
    assert engine.context.last_position(engine.context.scratch) == -1


@pytest.mark.parametrize("kind", ["hybrid"], indirect=True)
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"restore": None}, "no checkpoint at 200"),
        ({"begin": 210}, "200 items are given where 210"),
        ({"segments": "second"}, r"leaves a gap after 0"),
        ({"source": 1, "shared": 120, "segments": "second"}, "ends at position -1"),
        ({"source": 9, "shared": 120, "segments": "second"}, "source 9"),
        ({"segments": "mislabelled"}, "holds 120 tokens"),
        ({"segments": "outside"}, "not within the arena"),
        ({"segments": "short"}, "describe another one"),
    ],
)
def test_a_start_that_does_not_add_up_is_computed_from_the_beginning(engine, change, problem):
    from lcpd.cache.arena import checksum

    tokens = prompt_for(engine, 260)
    _, (first, second), checkpoint = saved_prefix(engine, tokens)
    small = p.Extent(first.piece.extent.offset, first.piece.extent.size // 2)
    variants = {
        "second": [second],
        "mislabelled": [p.Segment(0, 130, first.piece), second],
        "outside": [p.Segment(0, 120, p.Piece(p.Extent(1 << 40, 10), b"")), second],
        "short": [p.Segment(0, 120, p.Piece(small, checksum(engine.arena.view(small)))), second],
    }
    given = {"begin": 200, "segments": [first, second], "restore": checkpoint, **change}
    if isinstance(given["segments"], str):
        given["segments"] = variants[given["segments"]]
    reply = engine.reply(2, tokens, **given)
    assert engine.begin_of(2) == 0
    assert problem in engine.problem_of(2)
    assert not engine.damage_seen(2)
    engine.forget()
    assert reply == engine.reply(3, tokens)


@with_segments
def test_an_export_leaves_the_running_sequence_as_it_is(engine):
    tokens = prompt_for(engine)
    expected = engine.reply(1, tokens, max_tokens=30)
    engine.forget()
    engine.start(2, tokens, max_tokens=30)
    while len(engine.tokens(2)) < 5:
        engine.loop.step()
    saved = engine.save(0, (0, 100), (100, 150))
    assert (saved.problem, [(s.begin, s.end) for s in saved.segments]) == ("", [(0, 100), (100, 150)])
    engine.run()
    assert engine.tokens(2) == expected


@with_segments
def test_a_segment_holds_its_tokens_kv_and_nothing_else(engine, kind):
    """On hybrids not the recurrent state, with sliding windows not the window; and never more than was announced."""
    from lcpd.engine.probe import measure

    measured = measure(engine.model, engine.context)
    a, b = measured.segment_bytes
    engine.start(1, prompt_for(engine, 700), checkpoints=[650], max_tokens=1)
    engine.run()
    sizes = [s.piece.extent.size for s in engine.save(0, (0, 300), (300, 700)).segments]
    assert sizes == [a + 300 * b, a + 400 * b]
    if kind == "attention":
        assert measured.checkpoint_bytes == 0
    else:
        assert 0 < engine.checkpoint_at(650).extent.size <= measured.checkpoint_bytes


@pytest.mark.parametrize("kind", ["recurrent"], indirect=True)
def test_a_recurrent_models_state_is_its_checkpoint_and_nothing_else(engine):
    from lcpd.engine.probe import measure

    measured = measure(engine.model, engine.context)
    tokens = prompt_for(engine, 260)
    engine.start(1, tokens, checkpoints=[200], max_tokens=1)
    engine.run()
    assert measured.segment_bytes == (0, 0)
    assert engine.checkpoint_at(200).extent.size == measured.checkpoint_bytes
    saved = engine.save(0, (0, 200))
    assert (saved.segments, "holds 0 tokens" in saved.problem) == ([], True)
    engine.forget()
    engine.start(2, tokens, begin=200, max_tokens=1)
    engine.run()
    assert engine.begin_of(2) == 0
    assert "no checkpoint at 200" in engine.problem_of(2)


def test_what_does_not_fit_is_not_written(models, make_context):
    model = models("hybrid")
    engine = Engine(model, make_context(model))
    engine.start(1, prompt_for(engine, 100), max_tokens=1)
    engine.run()
    first, second, guard = (engine.arena.allocate(n) for n in (60 << 10, 1000, 1000))
    engine.arena.view(second)[:] = b"." * 1000
    engine.arena.view(guard)[:] = b"." * 1000
    saved = engine.save_into(0, [p.Cut(0, 50, first), p.Cut(50, 100, second)], guard)
    assert [s.end for s in saved.segments] == [50]
    assert "1000 are given" in saved.problem
    assert saved.checkpoint is None
    assert bytes(engine.arena.view(second)) == bytes(engine.arena.view(guard)) == b"." * 1000


@with_segments
def test_more_than_a_sequence_holds_cannot_be_saved(engine):
    engine.start(1, prompt_for(engine, 100), max_tokens=1)
    engine.run()
    saved = engine.save(0, (0, 60), (60, 120))
    assert len(saved.segments) == 1
    assert "holds 40 tokens" in saved.problem


@with_checkpoints
def test_the_end_of_an_idle_sequence_is_saved_with_its_checkpoint(engine):
    tokens = prompt_for(engine)
    engine.start(1, tokens, max_tokens=10)
    engine.run()
    held = np.concatenate([tokens, p.unpack(engine.of(p.Finished, 1)[0].held)])
    following = np.concatenate([held, engine.tokens(1)[-1:], prompt_for(engine, 10, seed=5)])
    saved = engine.save(0, *ranges(engine, len(held)), checkpoint=True)
    expected = engine.first_logits(2, following, begin=len(held), source=0, shared=len(held))
    engine.forget()
    got = engine.first_logits(3, following, seq=1, begin=len(held), segments=saved.segments, restore=saved.checkpoint)
    assert engine.problem_of(3) == ""
    assert np.array_equal(got, expected)


# ---- order and pieces --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["hybrid"], indirect=True)
def test_beside_a_running_reply_a_step_does_one_piece_and_commands_keep_their_order(engine):
    tokens = prompt_for(engine, 260)
    _, segments, checkpoint = saved_prefix(engine, tokens)
    engine.start(2, prompt_for(engine, 50, seed=3), seq=1, max_tokens=200)
    while not engine.tokens(2):
        engine.loop.step()
    engine.start(3, tokens, begin=200, segments=segments, restore=checkpoint, max_tokens=1)
    engine.loop.save(p.Save("m", 1, [p.Cut(0, 50, engine.arena.allocate(1 << 20))]))
    engine.loop.clear(2)
    steps = []
    for _ in range(5):
        engine.loop.step()
        steps.append((len(engine.of(p.Started, 3)), len(engine.of(p.Saved))))
    assert steps == [(0, 1), (0, 1), (1, 1), (1, 2), (1, 2)]
    engine.run()
    assert engine.problem_of(3) == ""


@pytest.mark.parametrize("kind", ["hybrid"], indirect=True)
def test_a_request_cancelled_while_it_is_restored_ends_with_an_empty_sequence(engine):
    tokens = prompt_for(engine, 260)
    _, segments, checkpoint = saved_prefix(engine, tokens)
    engine.start(2, prompt_for(engine, 50, seed=3), seq=1, max_tokens=50)
    while not engine.tokens(2):
        engine.loop.step()
    engine.start(3, tokens, begin=200, segments=segments, restore=checkpoint)
    engine.loop.step()
    engine.loop.cancel(3)
    engine.run()
    assert engine.begin_of(3) == 0
    assert [m.reason for m in engine.of(p.Finished, 3)] == ["cancelled"]
    assert engine.context.last_position(0) == -1


@pytest.mark.parametrize("kind", ["hybrid"], indirect=True)
def test_a_request_parked_while_it_is_restored_holds_what_it_asked_for(engine):
    tokens = prompt_for(engine, 260)
    _, segments, checkpoint = saved_prefix(engine, tokens)
    engine.start(2, tokens, begin=200, segments=segments, restore=checkpoint)
    engine.loop.park(2)
    engine.run()
    assert [(m.seq, m.done) for m in engine.of(p.Parked)] == [(0, 200)]
    assert engine.context.last_position(0) == 199


# ---- prefill alone -----------------------------------------------------------------------------------------


def test_a_request_for_no_token_computes_the_prompt_and_is_over(engine, kind):
    """What it leaves is as good as what a reply would have begun from."""
    tokens, prefix = prompt_for(engine, PREFIX[kind] + 60), PREFIX[kind]
    expected = engine.first_logits(1, tokens, checkpoints=[prefix])
    engine.forget()
    engine.start(2, tokens[:prefix], max_tokens=0, checkpoints=[prefix])
    engine.run()
    assert [(m.reason, m.generated, m.held, m.decode_seconds) for m in engine.of(p.Finished, 2)] == [
        ("length", 0, b"", 0.0)
    ]
    assert engine.prefill_cuts(2)[-1] == engine.context.last_position(0) + 1 == prefix
    assert engine.tokens(2) == []
    assert engine.checkpoint_at(prefix) is not None or kind == "attention"
    got = engine.first_logits(3, tokens, begin=prefix, source=0, shared=prefix)
    assert (engine.begin_of(3), engine.problem_of(3)) == (prefix, "")
    assert np.array_equal(got, expected)


def test_a_request_for_no_token_of_which_all_is_stored_only_restores_it(engine, kind):
    """What it leaves is as good as what was computed."""
    tokens, prefix = prompt_for(engine, PREFIX[kind] + 60), PREFIX[kind]
    engine.start(1, tokens[:prefix], max_tokens=0, checkpoints=[prefix])
    engine.run()
    expected = engine.first_logits(2, tokens, begin=prefix, source=0, shared=prefix)
    segments = [] if kind == "recurrent" else engine.save(0, (0, prefix)).segments
    engine.forget()
    restore = engine.checkpoint_at(prefix)
    engine.start(3, tokens[:prefix], begin=prefix, segments=segments, restore=restore, max_tokens=0)
    engine.run()
    assert (engine.begin_of(3), engine.problem_of(3)) == (prefix, "")
    assert engine.prefill_cuts(3) == []
    assert [(m.reason, m.generated, m.held) for m in engine.of(p.Finished, 3)] == [("length", 0, b"")]
    got = engine.first_logits(4, tokens, begin=prefix, source=0, shared=prefix)
    assert (engine.begin_of(4), engine.problem_of(4)) == (prefix, "")
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("kind", ["hybrid"], indirect=True)
def test_a_request_for_no_token_leaves_running_replies_alone(engine):
    engine.start(1, prompt_for(engine), max_tokens=40)
    while not engine.tokens(1):
        engine.loop.step()
    engine.start(2, prompt_for(engine, 300, seed=3), seq=1, max_tokens=0)
    engine.run()
    assert [(m.request, m.generated) for m in engine.of(p.Finished)] == [(2, 0), (1, 40)]


# ---- runs of cells -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["hybrid"], indirect=True)
def test_copies_tell_in_how_many_runs_of_cells_tokens_lie(engine):
    """A prompt alone is one run; replies that are decoded side by side lie in runs of one cell."""
    tokens = prompt_for(engine, 600)
    engine.start(1, tokens, checkpoints=[600], max_tokens=1)
    engine.run()
    saved = engine.save(0, (0, 600))
    assert saved.runs == 1
    engine.start(2, prompt_for(engine, 100, seed=2), seq=1, max_tokens=21)
    engine.start(3, prompt_for(engine, 100, seed=3), seq=2, max_tokens=21)
    engine.run()
    assert engine.save(1, (0, 100)).runs == 1
    assert 18 <= engine.save(1, (0, 50), (50, 120)).runs <= 24
    engine.forget()
    engine.start(4, tokens, begin=600 - 1, segments=saved.segments, max_tokens=1)
    engine.run()
    assert engine.of(p.Started, 4)[0].runs == 0, "there is no checkpoint, so nothing was restored"
    more = np.concatenate([tokens, tokens[:9]])
    engine.start(5, more, begin=600, segments=saved.segments, restore=engine.checkpoint_at(600), max_tokens=1, seq=1)
    engine.run()
    assert engine.of(p.Started, 5)[0].runs == 1
