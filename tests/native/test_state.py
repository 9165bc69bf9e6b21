"""What llama.cpp's sequence state really does: the call orders that lcpd relies on, and that wrong ones are noticed.

"Equal" means bit-equal logits: with the same batch cuts a sequence that was rolled back or resumed must be
indistinguishable from one that never was.
"""

from __future__ import annotations

import numpy as np
import pytest

from support import text_of

pytestmark = pytest.mark.native


with_checkpoints = pytest.mark.parametrize("kind", ["swa", "hybrid", "recurrent"], indirect=True)


def run(context, tokens, begin, seq=0, n_vocab=None):
    """Decode tokens[begin:] in one batch; returns the last logits."""
    part = tokens[begin:]
    logits = np.zeros(len(part), np.int8)
    logits[-1] = 1
    context.decode(part, np.arange(begin, len(tokens), dtype=np.int32), seq, logits)
    return context.logits(-1, n_vocab)


@pytest.fixture
def setup(kind, models, make_context):
    model = models(kind)
    tokens = model.tokenize(text_of(900), add_special=True, parse_special=False)
    return model, make_context(model, n_batch=1024, n_ubatch=1024), tokens


def test_models_are_told_apart_by_what_their_state_is_made_of(kind, models):
    assert models(kind).kind == kind


@with_checkpoints
def test_a_checkpoint_brings_a_sequence_back_to_exactly_where_it_was_taken(setup):
    model, context, tokens = setup
    prefix, unbroken, other = tokens[:400], tokens[:450], np.concatenate([tokens[:400], tokens[600:900]])
    run(context, prefix, 0, n_vocab=model.n_vocab)
    expected = run(context, unbroken, 400, n_vocab=model.n_vocab)
    context.clear(0)

    run(context, prefix, 0, n_vocab=model.n_vocab)
    checkpoint = context.take_checkpoint(0)
    run(context, other, 400, n_vocab=model.n_vocab)
    context.restore_checkpoint(0, checkpoint, 400)

    assert context.last_position(0) == 399
    assert np.array_equal(run(context, unbroken, 400, n_vocab=model.n_vocab), expected)


def test_truncating_pure_attention_is_as_good_as_never_having_gone_on(models, make_context):
    model = models("attention")
    context = make_context(model)
    tokens = model.tokenize(text_of(400), add_special=True, parse_special=False)
    run(context, tokens[:200], 0, n_vocab=model.n_vocab)
    expected = run(context, tokens[:250], 200, n_vocab=model.n_vocab)
    run(context, tokens[:300], 250, n_vocab=model.n_vocab)
    context.truncate(0, 200)
    assert np.array_equal(run(context, tokens[:250], 200, n_vocab=model.n_vocab), expected)


@with_checkpoints
def test_truncating_other_models_without_a_checkpoint_is_refused(setup):
    from lcpd.native.context import StateError

    model, context, tokens = setup
    run(context, tokens[:800], 0, n_vocab=model.n_vocab)
    with pytest.raises(StateError, match="checkpoint"):
        context.truncate(0, 400)


@with_checkpoints
def test_the_wrong_checkpoint_is_told_apart_by_its_logits(setup):
    """The negative control of the tests above: equality there is no accident."""
    model, context, tokens = setup
    run(context, tokens[:400], 0, n_vocab=model.n_vocab)
    expected = run(context, tokens[:401], 400, n_vocab=model.n_vocab)
    context.clear(0)
    other = tokens[::-1].copy()
    run(context, other[:400], 0, n_vocab=model.n_vocab)
    wrong = context.take_checkpoint(0)
    context.clear(0)
    run(context, tokens[:400], 0, n_vocab=model.n_vocab)
    context.restore_checkpoint(0, wrong, 400)
    got = run(context, tokens[:401], 400, n_vocab=model.n_vocab)
    assert np.abs(got - expected).max() > 0.5


@with_checkpoints
def test_a_checkpoint_that_the_sequence_cannot_take_is_an_error(setup):
    from lcpd.native.context import StateError

    model, context, tokens = setup
    run(context, tokens[:100], 0, n_vocab=model.n_vocab)
    checkpoint = context.take_checkpoint(0)
    with pytest.raises(StateError):
        context.restore_checkpoint(0, checkpoint[: len(checkpoint) // 2].copy(), 100)
    context.clear(0)
    assert context.last_position(0) == -1


def test_a_sequence_does_not_depend_on_what_other_sequences_hold(setup):
    model, context, tokens = setup
    alone = run(context, tokens[:300], 0, n_vocab=model.n_vocab)
    context.clear(0)
    run(context, tokens[300:700].copy(), 0, seq=1, n_vocab=model.n_vocab)
    assert np.allclose(run(context, tokens[:300], 0, n_vocab=model.n_vocab), alone, atol=1e-3)


def test_a_batch_larger_than_the_context_allows_is_an_error_not_an_abort(models, make_context):
    from lcpd.native.context import DecodeError

    model = models("hybrid")
    context = make_context(model, n_batch=64, n_ubatch=64)
    with pytest.raises(DecodeError, match="1 to 64"):
        context.decode(np.zeros(65, np.int32), np.arange(65, dtype=np.int32), 0, np.zeros(65, np.int8))


def test_a_full_cache_is_reported_and_leaves_the_sequence_as_it_was(models, make_context):
    from lcpd.native.context import CacheFull

    model = models("attention")
    context = make_context(model, n_ctx=256, n_batch=256, n_ubatch=256)
    tokens = model.tokenize(text_of(400), add_special=True, parse_special=False)
    run(context, tokens[:200], 0, n_vocab=model.n_vocab)
    with pytest.raises(CacheFull):
        run(context, tokens[:100], 0, seq=1, n_vocab=model.n_vocab)
    assert context.last_position(0) == 199
    assert context.last_position(1) == -1


def test_token_embeddings_as_input_give_the_same_logits_as_the_tokens(models, make_context):
    from gguf import GGUFReader, dequantize

    from support import model_path

    model = models("attention")
    tensor = next(t for t in GGUFReader(model_path("attention")).tensors if t.name == "token_embd.weight")
    table = dequantize(tensor.data, tensor.tensor_type)
    tokens = model.tokenize("Once upon a time there was a cache", add_special=True, parse_special=False)
    context = make_context(model)
    expected = run(context, tokens, 0, n_vocab=model.n_vocab)
    positions = np.arange(len(tokens), dtype=np.int32)
    context.decode_embeddings(table[tokens], positions, seq=1, last=True)
    assert np.allclose(context.logits(-1, model.n_vocab), expected, atol=1e-3)
