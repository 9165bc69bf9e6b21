"""The decode loop on real models: what it computes, shares, saves and restores, and what it does without free cells.

Logits are compared bit for bit where the cells of both runs lie in the same order; where they do not, the last bits
differ, and texts without near-ties (counting) are compared instead.
"""

from __future__ import annotations

import numpy as np
import pytest
from loops import Engine, prompt_for

from lcpd.engine import protocol as p

pytestmark = pytest.mark.native
KINDS = ["attention", "swa", "hybrid"]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def engine(kind, models, make_context):
    model = models(kind)
    return Engine(model, make_context(model, n_batch=128, n_ubatch=128, n_ctx=2048))


def restore_at(engine, position):
    """The checkpoint at a position; pure attention needs none."""
    return None if engine.model.kind == "attention" else engine.checkpoint_at(position)


def test_a_prompt_is_prefilled_in_batches_and_answered(engine):
    tokens = prompt_for(engine)
    engine.start(1, tokens)
    engine.run()
    assert engine.prefill_cuts(1) == [*range(128, len(tokens), 128), len(tokens)]
    finished = engine.of(p.Finished)[0]
    assert (finished.reason, finished.generated) == ("length", 16)
    assert list(p.unpack(finished.held)) == engine.tokens(1)[:-1]


def test_a_request_gives_the_same_tokens_whoever_prefills_beside_it(engine):
    """Its prefill cuts are its own, and no batch holds two sequences' prompts."""
    tokens = prompt_for(engine)
    engine.start(1, tokens, max_tokens=1)
    engine.run()
    engine.start(2, prompt_for(engine, 900, seed=1), seq=1, max_tokens=1)
    engine.loop.step()
    engine.start(3, tokens, seq=2, max_tokens=1)
    engine.run()
    assert engine.tokens(3) == engine.tokens(1)
    assert engine.prefill_cuts(3) == engine.prefill_cuts(1)


def test_several_requests_run_at_once_and_each_ends_once(engine):
    for request in range(3):
        engine.start(request, prompt_for(engine, seed=request), seq=request, max_tokens=20 + request)
    engine.run()
    assert sorted(m.request for m in engine.of(p.Finished)) == [0, 1, 2]
    assert [len(engine.tokens(r)) for r in range(3)] == [20, 21, 22]
    assert any(len(step.outputs) == 3 for step in engine.of(p.Step))


def test_the_next_turn_goes_on_from_the_live_end_of_its_sequence(engine):
    tokens = prompt_for(engine)
    engine.start(1, tokens)
    engine.run()
    held = np.concatenate([tokens, p.unpack(engine.of(p.Finished)[0].held)])
    following = np.concatenate([held, engine.tokens(1)[-1:], prompt_for(engine, 10, seed=5)]).astype(np.int32)
    engine.start(2, following, begin=len(held), source=0, shared=len(held))
    engine.run()
    assert engine.of(p.Started, 2)[0].begin == len(held)

    # The same prompt with the same batches on an empty sequence says the same.
    engine.start(3, following, seq=1, checkpoints=[*engine.prefill_cuts(1), len(held)])
    engine.run()
    if engine.model.kind != "hybrid":  # there, decoding token by token is another way to compute than prefill
        assert engine.tokens(3) == engine.tokens(2)


def test_a_rolled_back_sequence_answers_as_if_it_had_never_gone_on(engine, kind):
    tokens, other = prompt_for(engine, seed=0), prompt_for(engine, 30, seed=7)
    half = 100
    engine.start(1, tokens, checkpoints=[half])
    engine.run()
    edited = np.concatenate([tokens[:half], other])
    engine.start(2, edited, begin=half, source=0, shared=half, restore=restore_at(engine, half))
    engine.run()
    assert engine.begin_of(2) == half
    engine.start(3, edited, seq=1, checkpoints=[half])
    engine.run()
    assert engine.tokens(2) == engine.tokens(3)


def test_a_checkpoint_is_taken_exactly_where_it_was_asked_for(engine):
    tokens = prompt_for(engine)
    engine.start(1, tokens, checkpoints=[50, 101])
    engine.run()
    assert [c.position for c in engine.of(p.Checkpointed)] == [50, 101]
    assert {50, 101} <= set(engine.prefill_cuts(1))


def test_a_checkpoint_that_does_not_fit_its_extent_is_left_out(models, make_context):
    model = models("hybrid")
    engine = Engine(model, make_context(model))
    small = engine.arena.allocate(1000)
    engine.start(1, prompt_for(engine, 50))
    engine.loop.mark(p.Mark("m", 1, 20, small))
    engine.run()
    assert engine.of(p.Checkpointed) == [p.Checkpointed(1, 20, small, None)]
    assert len(engine.tokens(1)) == 16


def test_a_mark_takes_a_checkpoint_ahead_and_none_behind(engine):
    engine.start(1, prompt_for(engine))
    engine.loop.step()
    engine.loop.mark(p.Mark("m", 1, 100, engine.arena.allocate(9 << 20)))
    engine.loop.mark(p.Mark("m", 1, 150, engine.arena.allocate(9 << 20)))
    engine.run()
    assert [c.position for c in engine.of(p.Checkpointed)] == [150]


def test_a_sequence_that_holds_less_than_expected_is_computed_from_the_beginning(engine):
    tokens = prompt_for(engine)
    engine.start(1, tokens)
    engine.run()
    engine.forget()
    engine.start(2, tokens, begin=60, source=0, shared=60)
    engine.run()
    assert engine.begin_of(2) == 0
    assert engine.problem_of(2)
    assert engine.tokens(2) == engine.tokens(1)


def test_a_sequence_that_begins_earlier_than_asked_takes_the_checkpoints_on_its_way(engine):
    tokens = prompt_for(engine)
    engine.start(1, tokens, begin=100, source=1, shared=100, checkpoints=[50, 150])
    engine.run()
    assert [c.position for c in engine.of(p.Checkpointed)] == [50, 150]


def test_a_cancelled_request_ends_at_once_and_its_sequence_is_usable(engine):
    tokens = prompt_for(engine)
    engine.start(1, tokens)
    engine.loop.step()
    engine.loop.cancel(1)
    assert engine.of(p.Finished)[0].reason == "cancelled"
    done = engine.prefill_cuts(1)[-1]
    engine.start(2, tokens, begin=done, source=0, shared=done)
    engine.run()
    assert engine.of(p.Started, 2)[0].begin == done
    engine.start(3, tokens, seq=1)
    engine.run()
    assert engine.tokens(2) == engine.tokens(3)


def test_a_stop_string_ends_the_reply_before_it(engine):
    tokens = prompt_for(engine)
    engine.start(1, tokens)
    engine.run()
    text = engine.text(1)
    stop = text[len(text) // 2 :][:3]
    engine.start(2, tokens, seq=1, stop=[stop])
    engine.run()
    finished = engine.of(p.Finished, 2)[0]
    assert (finished.reason, finished.stop) == ("stop-string", stop)
    assert engine.text(2) == text[: text.index(stop)]


def test_prompts_take_turns_and_a_short_one_does_not_wait_for_a_long_one(engine):
    engine.start(1, prompt_for(engine, 900), seq=0, max_tokens=2)
    engine.start(2, prompt_for(engine, 20, seed=2), seq=1, max_tokens=2)
    engine.run()
    assert [m.request for m in engine.of(p.Finished)] == [2, 1]


def test_a_sampler_that_fails_ends_its_request_alone(models, make_context):
    model = models("hybrid")
    engine = Engine(model, make_context(model))
    engine.start(1, prompt_for(engine, 50), seq=0, max_tokens=30)
    engine.start(2, prompt_for(engine, 50, seed=1), seq=1, grammar='root ::= "ab"', max_tokens=30)
    engine.run()
    assert [(m.request, m.code) for m in engine.of(p.Failed)] == [(2, "invalid")]
    assert len(engine.tokens(1)) == 30


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"begin": 9999}, "begin 9999"),
        ({"begin": -1}, "begin -1"),
        ({"seq": 99}, "no sequence 99"),
        ({"grammar": "root ::= ("}, "grammar"),
    ],
)
def test_a_request_that_cannot_be_run_fails_alone(models, make_context, change, message):
    model = models("hybrid")
    engine = Engine(model, make_context(model))
    tokens = prompt_for(engine, 10)
    engine.start(1, tokens, max_tokens=3)
    engine.start(2, tokens, **{"seq": 1, **change})
    engine.start(3, tokens, seq=0)
    engine.run()
    failed = {m.request: m for m in engine.of(p.Failed)}
    assert failed[2].code == "invalid"
    assert message in failed[2].message
    assert "busy" in failed[3].message
    assert len(engine.tokens(1)) == 3


def test_embeddings_in_a_prompt_stand_for_their_tokens(models, make_context):
    from gguf import GGUFReader, dequantize

    from support import model_path

    model = models("attention")
    engine = Engine(model, make_context(model, n_batch=128, n_ubatch=128))
    tensor = next(t for t in GGUFReader(model_path("attention")).tensors if t.name == "token_embd.weight")
    table = dequantize(tensor.data, tensor.tensor_type)
    tokens = prompt_for(engine, 90)
    engine.start(1, tokens, checkpoints=[20, 50])
    engine.run()
    masked = tokens.copy()
    masked[20:50] = -1
    vectors = p.Embeddings(begin=20, count=30, data=table[tokens[20:50]].astype("<f4").tobytes())
    engine.start(2, masked, seq=1, embeddings=[vectors])
    engine.run()
    assert engine.prefill_cuts(2) == [20, 50, 90]
    assert engine.tokens(2) == engine.tokens(1)
