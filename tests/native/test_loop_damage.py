"""Damaged bytes: large segments are checked while they are copied, so nothing of a damaged one may have any effect.

That there is something to fear is shown as well: what is no number spoils the logits of others, even from free cells.
"""

from __future__ import annotations

import numpy as np
import pytest
from loops import Engine, prompt_for

from lcpd.cache import arena, blob
from lcpd.engine import damage, state
from lcpd.engine import protocol as p

pytestmark = pytest.mark.native
KINDS = ["attention", "swa", "hybrid"]
TOKENS = 120


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(params=["before", "beside"])
def moment(request, monkeypatch):
    """When the checksum is computed: small pieces before they are copied, large ones meanwhile."""
    monkeypatch.setattr(damage, "_BESIDE", 0 if request.param == "beside" else 1 << 40)


class Stored:
    """A segment of a prompt in the arena, and a checkpoint at its end; the sequences are empty."""

    def __init__(self, engine):
        self.engine = engine
        engine.start(1, prompt_for(engine, TOKENS), checkpoints=[TOKENS], max_tokens=0)
        engine.run()
        self.segment = engine.save(0, (0, TOKENS)).segments[0]
        self.checkpoint = None if engine.model.kind == "attention" else engine.checkpoint_at(TOKENS)
        self.bytes = np.frombuffer(engine.arena.view(self.segment.piece.extent), np.uint8)
        self.layout = blob.layout(self.bytes)
        self.mover = state.StateMover(engine.context, engine.loop._mover._arena)
        engine.forget()

    def bring(self, seq=0):
        """Bring a sequence to the end of the segment; raises what the mover raises."""
        command = p.Start(
            model="m",
            request=2,
            seq=seq,
            tokens=p.pack(prompt_for(self.engine, TOKENS + 1)),
            begin=TOKENS,
            max_tokens=1,
            segments=[self.segment],
            restore=self.checkpoint,
        )
        for _ in self.mover.bring(command, Job(), state.Stopwatch(), lambda: False):
            pass

    def spoil(self):
        """Make all values of the segment such that they are no numbers."""
        for array in self.layout.sections[0].arrays[1:]:
            self.bytes[array.offset : array.offset + array.outer * TOKENS * array.inner] = 0xFF


class Job:
    """A text prompt's positions."""

    def end_position(self, items):
        return items


@pytest.fixture
def stored(kind, models, make_context):
    model = models(kind)
    return Stored(Engine(model, make_context(model, n_ctx=512, n_batch=256, n_ubatch=256), max_stall=100.0))


def interesting_bytes(layout):
    """All that a segment says about itself, around where one part ends, and some of its values."""
    section = layout.sections[0]
    first = section.arrays[0]
    cells_end = first.offset + TOKENS * first.inner
    chosen = {*range(first.offset + 2 * first.inner), *range(cells_end - first.inner, cells_end + 8)}
    for array in section.arrays[1:3] + section.arrays[-1:]:
        chosen.update(range(array.offset - 12, array.offset + 2))
    chosen.update(range(max(section.end - 2, 0), min(section.end + 28, layout.size)))
    chosen.update(np.random.default_rng(3).integers(0, layout.size, 40).tolist())
    return sorted(at for at in chosen if at < layout.size)


def test_no_bit_of_a_segment_can_be_wrong_unnoticed(stored, moment):
    context = stored.engine.context
    for at in interesting_bytes(stored.layout):
        for bit in (0, 7):
            stored.bytes[at] ^= 1 << bit
            with pytest.raises(damage.DamagedPiece):
                stored.bring(seq=1)
            stored.bytes[at] ^= 1 << bit
            assert [context.last_position(seq) for seq in range(4)] == [-1] * 4, f"byte {at}"
    stored.bring(seq=1)
    assert context.last_position(1) == TOKENS - 1


def test_all_cells_are_free_after_damage(stored, moment):
    """The whole context can be filled afterwards."""
    engine = stored.engine
    stored.bytes[stored.layout.size // 2] ^= 1
    with pytest.raises(damage.DamagedPiece):
        stored.bring()
    engine.start(3, np.full(engine.context.n_ctx - 1, 100, np.int32), max_tokens=0)
    engine.run()
    assert not engine.of(p.Starved)


@pytest.fixture
def checked(monkeypatch):
    """The sizes of what checksums are computed of to compare them."""
    sizes = []

    def counted(data):
        sizes.append(len(data))
        return arena.checksum(data)

    monkeypatch.setattr(damage, "checksum", counted)
    return sizes


def forgetting(stored):
    """Bring the segment back, and empty the sequence again."""
    stored.bring()
    stored.engine.context.clear(0)


def test_pieces_are_checked_each_time(stored, moment, checked):
    forgetting(stored)
    once = len(checked)
    forgetting(stored)
    assert once > 0
    assert len(checked) == 2 * once


def test_or_if_so_wanted_until_they_were_found_right(stored, moment, checked):
    stored.mover = state.StateMover(stored.engine.context, stored.engine.loop._mover._arena, verify_once=True)
    stored.bytes[stored.layout.size // 2] ^= 1
    for _ in range(2):
        with pytest.raises(damage.DamagedPiece):
            stored.bring()
    stored.bytes[stored.layout.size // 2] ^= 1
    forgetting(stored)
    checked.clear()
    forgetting(stored)
    assert not checked


def test_a_piece_that_turns_out_to_be_wrong_after_that_is_called_damaged(stored, moment):
    stored.mover = state.StateMover(stored.engine.context, stored.engine.loop._mover._arena, verify_once=True)
    forgetting(stored)
    array = stored.layout.sections[0].arrays[0]
    noticed = 0
    for at in (*range(4), *range(8, 12), *range(array.offset, array.offset + array.inner), stored.layout.size - 1):
        stored.bytes[at] ^= 64
        try:
            stored.bring()  # what is in its values is not noticed
        except damage.DamagedPiece:
            noticed += 1
        stored.engine.context.clear(0)
        stored.bytes[at] ^= 64
    assert noticed > 4
    forgetting(stored)


def test_what_is_written_in_the_place_of_a_piece_is_checked_again(stored, moment, checked):
    stored.mover = state.StateMover(stored.engine.context, stored.engine.loop._mover._arena, verify_once=True)
    stored.bring()
    cut = p.Cut(0, TOKENS, stored.segment.piece.extent)
    list(stored.mover.save(p.Save("m", 0, [cut]), lambda: True))
    stored.engine.context.clear(0)
    checked.clear()
    forgetting(stored)
    assert len(checked) == 1


def logits_beside_damage(stored):
    """Those of a prompt that is computed where a segment was read that is no numbers at all."""
    engine = stored.engine
    stored.spoil()
    with pytest.raises(damage.DamagedPiece):
        stored.bring()
    return engine.first_logits(4, prompt_for(engine, 40, seed=2), seq=2)


def test_nothing_of_damaged_values_stays_in_free_cells(stored, moment):
    expected = stored.engine.first_logits(3, prompt_for(stored.engine, 40, seed=2), seq=2)
    stored.engine.forget()
    assert np.array_equal(logits_beside_damage(stored), expected)


def test_values_that_are_no_numbers_would_spoil_others_from_free_cells(stored, monkeypatch):
    """The negative control."""
    monkeypatch.setattr(state, "overwrite_free_cells", lambda context, seq, segment: None)
    assert np.isnan(logits_beside_damage(stored)).any()


def test_a_running_reply_does_not_notice_damage(stored, moment):
    engine = stored.engine
    alone = engine.reply(5, prompt_for(engine, 50, seed=3), seq=2, max_tokens=30)
    engine.forget()
    engine.start(6, prompt_for(engine, 50, seed=3), seq=2, max_tokens=30)
    while len(engine.tokens(6)) < 10:
        engine.loop.step()
    stored.spoil()
    with pytest.raises(damage.DamagedPiece):
        stored.bring(seq=1)
    assert engine.reply_of_running(6) == alone
