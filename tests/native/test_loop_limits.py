"""The decode loop when cells run out, when requests are cancelled at any point, and what it reports about tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
from loops import Engine, prompt_for

from lcpd.engine import protocol as p
from lcpd.engine.batching import UNIT

pytestmark = pytest.mark.native


@pytest.fixture
def small(models, make_context):
    """A hybrid with 512 cells."""
    model = models("hybrid")
    return Engine(model, make_context(model, n_ctx=512, n_batch=128, n_ubatch=128))


def test_a_prompt_without_free_cells_waits_and_goes_on_when_some_are_freed(small):
    expected = small.reply(1, prompt_for(small, 300, seed=2))
    small.forget()
    small.start(2, prompt_for(small, 300), max_tokens=1)
    small.run()
    small.start(3, prompt_for(small, 300, seed=2), seq=1)
    small.run()  # until the loop has nothing to do
    assert [m.cells for m in small.of(p.Starved)] == [128]
    assert (small.loop.running, small.loop.busy) == (0, False)
    small.loop.clear(0)
    small.run()
    assert small.tokens(3) == expected
    assert len(small.of(p.Starved)) == 1


def test_replies_without_free_cells_wait_until_one_of_them_is_parked_away(small):
    for request in (1, 2):
        small.start(request, prompt_for(small, 200, seed=request), seq=request - 1, max_tokens=150)
    small.run()
    assert [m.cells for m in small.of(p.Starved)] == [2]
    before = {r: small.tokens(r) for r in (1, 2)}
    assert all(len(t) < 150 for t in before.values())
    small.loop.park(2)
    held = small.of(p.Parked)[0]
    saved = small.save(1, (0, held.done + len(p.unpack(held.held))), checkpoint=True)
    small.loop.clear(1)
    small.run()
    assert len(small.tokens(1)) == 150

    small.loop.clear(0)
    end = saved.segments[-1].end
    prompt = prompt_for(small, 200, seed=2)
    small.start(2, prompt, seq=1, begin=end, segments=saved.segments, restore=saved.checkpoint, max_tokens=150)
    small.run()
    assert len(small.tokens(2)) == 150
    assert small.tokens(2)[: len(before[2])] == before[2]


def test_a_prompt_that_took_the_last_cells_gives_them_to_a_reply_when_it_is_parked_away(small):
    small.start(1, prompt_for(small, 100), max_tokens=150)
    while not small.tokens(1):
        small.loop.step()
    small.start(2, prompt_for(small, 420, seed=4), seq=1, max_tokens=3)
    small.run()
    assert len(small.of(p.Starved)) == 2  # the prompt first, then the reply
    assert len(small.tokens(1)) < 150
    small.loop.park(2)
    small.loop.clear(1)
    small.run()
    assert len(small.tokens(1)) == 150
    small.loop.clear(0)
    small.start(2, prompt_for(small, 420, seed=4), seq=1, max_tokens=3)
    small.run()
    assert len(small.tokens(2)) == 3


def test_a_request_that_can_never_have_its_cells_waits_without_a_sound(small):
    small.start(1, prompt_for(small, 600), max_tokens=1)
    small.run()
    assert len(small.of(p.Starved)) == 1
    assert not small.loop.busy
    small.loop.cancel(1)
    assert [m.reason for m in small.of(p.Finished)] == ["cancelled"]


def test_nothing_is_said_of_cells_while_commands_wait_that_may_free_them(small):
    small.start(1, prompt_for(small, 300), max_tokens=1)
    small.run()
    small.start(2, prompt_for(small, 60, seed=3), seq=2, max_tokens=100)
    while not small.tokens(2):
        small.loop.step()
    small.start(3, prompt_for(small, 300, seed=2), seq=1)
    cuts = [p.Cut(at, at + 50, small.arena.allocate(1 << 20)) for at in range(0, 300, 50)]
    small.loop.save(p.Save("m", 0, cuts))
    small.loop.clear(0)
    small.run()
    assert not small.of(p.Starved)
    assert len(small.tokens(3)) == 16


@pytest.mark.parametrize("kind", ["attention", "swa", "hybrid"])
def test_a_request_cancelled_at_any_point_leaves_its_sequence_usable(models, make_context, kind):
    model = models(kind)
    engine = Engine(model, make_context(model, n_batch=64, n_ubatch=64))
    tokens = prompt_for(engine, 150)
    other = prompt_for(engine, 60, seed=5)
    alone = engine.reply(1, other, seq=1, max_tokens=40)
    engine.forget()
    engine.start(2, other, seq=1, max_tokens=40)
    for request, steps in enumerate(range(0, 12, 2), start=10):
        engine.start(request, tokens, source=-1, max_tokens=6)
        for _ in range(steps):
            engine.loop.step()
        engine.loop.cancel(request)
        engine.loop.cancel(request)
        assert len(engine.of(p.Finished, request)) == 1
        done = max(engine.prefill_cuts(request), default=0)
        held = np.concatenate([tokens[:done], p.unpack(engine.of(p.Finished, request)[0].held)])
        assert engine.context.last_position(0) == len(held) - 1
        following = np.concatenate([held, tokens[:5]])
        engine.start(request + 50, following, begin=len(held), source=0, shared=len(held), max_tokens=1)
        engine.loop.step()
        engine.loop.step()
        engine.loop.cancel(request + 50)
        assert engine.problem_of(request + 50) == ""
    engine.run()
    assert engine.tokens(2) == alone


# ---- what is told about tokens -----------------------------------------------------------------------------


@pytest.fixture
def engine(models, make_context):
    model = models("attention")
    return Engine(model, make_context(model))


def test_the_probabilities_of_tokens_are_those_of_the_model_before_sampling(engine):
    tokens = prompt_for(engine, 60)
    engine.start(1, tokens, max_tokens=1, n_probs=4, temperature=0.7, top_k=1)
    engine.run()
    (output,) = engine.outputs(1)
    (probs,) = output.probs
    logits = engine.logits().astype(np.float64)
    expected = logits - logits.max() - math.log(np.exp(logits - logits.max()).sum())
    best = np.argsort(-expected)[:4]
    assert [i for i, _, _ in probs.top] == best.tolist()
    assert np.allclose([value for _, value, _ in probs.top], expected[best], atol=1e-3)
    assert (probs.token, probs.piece) == (output.tokens[0], engine.model.piece(output.tokens[0], True))
    assert probs.logprob == pytest.approx(expected[output.tokens[0]], abs=1e-3)


def test_only_those_who_ask_get_probabilities(engine):
    engine.start(1, prompt_for(engine, 60), max_tokens=5, n_probs=2)
    engine.start(2, prompt_for(engine, 60, seed=1), seq=1, max_tokens=5)
    engine.run()
    assert [len(o.probs) == len(o.tokens) for o in engine.outputs(1)] == [True] * len(engine.outputs(1))
    assert all(len(t.top) == 2 for o in engine.outputs(1) for t in o.probs)
    assert not any(o.probs for o in engine.outputs(2))


def test_a_reply_ends_no_earlier_than_min_tokens(engine):
    end = min(engine.model.end_tokens)
    bias = [[end, 100.0]]  # the model is made to end its reply at once
    tokens = prompt_for(engine, 40)
    engine.start(1, tokens, max_tokens=30, ignore_eos=False, logit_bias=bias)
    engine.start(2, tokens, seq=1, max_tokens=30, min_tokens=7, ignore_eos=False, logit_bias=bias, n_probs=1)
    engine.run()
    assert engine.tokens(1) == [end]
    assert [m.reason for m in engine.of(p.Finished)] == ["stop", "stop"]
    assert len(engine.tokens(2)) == 8
    assert engine.tokens(2)[-1] == end
    assert not set(engine.tokens(2)[:-1]) & engine.model.end_tokens


# ---- fairness ----------------------------------------------------------------------------------------------


def test_the_prompt_of_lower_priority_number_is_prefilled_first(engine):
    engine.start(1, prompt_for(engine, 1200), priority=1, max_tokens=2)
    engine.start(2, prompt_for(engine, 1200, seed=2), seq=1, max_tokens=2)
    engine.loop.step()
    engine.loop.step()
    assert engine.prefill_cuts(1) == []
    engine.run()
    assert [m.request for m in engine.of(p.Finished)] == [2, 1]


def test_beside_a_reply_a_prompt_is_prefilled_in_batches_as_small_as_max_stall_asks(models, make_context):
    model = models("hybrid")
    engine = Engine(model, make_context(model), max_stall=0.0)
    engine.start(1, prompt_for(engine, 40), max_tokens=400)
    while not engine.tokens(1):
        engine.loop.step()
    engine.start(2, prompt_for(engine, 500, seed=2), seq=1, max_tokens=2)
    before = len(engine.tokens(1))
    for _ in range(3):
        engine.loop.step()
    assert engine.prefill_cuts(2) == [UNIT, 2 * UNIT, 3 * UNIT]
    assert len(engine.tokens(1)) == before + 3
    engine.loop.cancel(1)
    engine.run()
    assert engine.prefill_cuts(2) == [UNIT, 2 * UNIT, 3 * UNIT, 500]


# ---- what is measured at load ------------------------------------------------------------------------------


@pytest.mark.parametrize("flash_attn", ["off", "on"])
@pytest.mark.parametrize("kind", ["attention", "swa", "hybrid"])
def test_cuts_move_logits_no_more_than_single_tokens_do_so_none_is_aligned(models, make_context, kind, flash_attn):
    from lcpd.engine.probe import measure

    model = models(kind)
    context = make_context(model, n_batch=128, n_ubatch=128, flash_attn=flash_attn)
    assert measure(model, context).alignment == 1
    assert [context.last_position(seq) for seq in range(4)] == [-1] * 4


def test_prompts_are_cut_at_micro_batches_where_cuts_would_move_logits_much(models, make_context, monkeypatch):
    from lcpd.engine import probe

    model = models("hybrid")
    context = make_context(model, n_batch=256, n_ubatch=128)
    real = probe._last_logits

    def drifting(model, context, ends):
        """As a backend would that computes rows another way after a cut off the grid, but not for short batches."""
        off_grid = len(ends) == 2 and ends[0] % 128
        return real(model, context, ends) + (5.0 if off_grid else 0.0)

    monkeypatch.setattr(probe, "_last_logits", drifting)
    assert probe.measure(model, context).alignment == 128
    engine = Engine(model, context, alignment=128)
    engine.start(1, prompt_for(engine, 700), checkpoints=[150], max_tokens=1)
    engine.run()
    assert engine.prefill_cuts(1) == [128, 150, 256, 512, 700]
