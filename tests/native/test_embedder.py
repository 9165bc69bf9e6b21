"""Vectors of real models: what their pieces and what runs beside them must not change, and a reranker's scores."""

from __future__ import annotations

import numpy as np
import pytest
from loops import Engine, prompt_for

from lcpd.engine import protocol as p
from lcpd.paths import dirs
from support import text_of
from tiny_variants import reranker_model

pytestmark = pytest.mark.native
KINDS = ["attention", "swa", "hybrid", "recurrent"]


@pytest.fixture
def make_embedder(log):
    """Embedders with a context of their own; what they say is in `said`."""
    from lcpd.engine.embedder import Embedder
    from lcpd.native.context import Context, ContextSettings

    made = []

    def make(model, pooling="mean", batch=64, longest=512, max_stall=0.2, send=None):
        said = []
        settings = ContextSettings(
            n_ctx=longest,
            n_seq=1,
            n_batch=batch,
            n_ubatch=batch,
            threads=1,
            flash_attn="off",
            output="score" if pooling == "rank" else "vectors",
        )
        embedder = Embedder(lambda: Context(model, settings, log), send or said.append, pooling, longest, max_stall)
        embedder.said = said
        made.append(embedder)
        return embedder

    yield make
    for embedder in made:
        embedder.close()


def embed(embedder, *texts, request=1):
    """The vectors of texts."""
    embedder.add(p.Embed("m", request, [p.pack(text) for text in texts]))
    before = len(embedder.said)
    while embedder.busy:
        embedder.step(replies_run=False, spent=0.0)
    said = [message for message in embedder.said[before:] if message.request == request]
    assert [(message.text, message.problem) for message in said] == [(number, "") for number in range(len(texts))]
    return [np.frombuffer(message.vector, "<f4") for message in said]


def tokens_of(model, words=60, seed=0):
    return model.tokenize(text_of(words, seed), add_special=True, parse_special=True)


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_has_one_vector_however_it_is_cut(kind, pooling, models, make_embedder):
    model = models(kind)
    text = tokens_of(model)
    (whole,), (pieces,) = (embed(make_embedder(model, pooling, batch), text) for batch in (256, 16))
    assert cosine(whole, pieces) > 0.9999
    (other,) = embed(make_embedder(model, pooling, 256), tokens_of(model, seed=1)[1:])
    assert cosine(whole, other) < 0.9999


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_leaves_nothing_behind_for_the_next(kind, models, make_embedder):
    model = models(kind)
    first, second = tokens_of(model), tokens_of(model, seed=1)
    alone = embed(make_embedder(model), first)[0]
    assert (embed(make_embedder(model), second, first, second)[1] == alone).all()


@pytest.mark.parametrize("kind", ["attention", "hybrid"])
def test_requests_and_texts_do_not_change_each_other(kind, models, make_context, make_embedder):
    model = models(kind)
    text = tokens_of(model)
    alone = embed(make_embedder(model), text)[0]

    def reply(embeds):
        context = make_context(model, n_batch=128, n_ubatch=128, n_ctx=2048)
        engine = Engine(model, context)
        engine.loop._embedder = make_embedder(model, send=engine.said.append) if embeds else None
        engine.start(1, prompt_for(engine, 150), max_tokens=24)
        while not engine.of(p.Step):
            engine.loop.step()
        if embeds:
            engine.loop.embed(p.Embed("m", 1, [p.pack(text)] * 2))
        engine.run()
        return engine

    engine = reply(embeds=True)
    assert engine.tokens(1) == reply(embeds=False).tokens(1)
    vectors = [np.frombuffer(message.vector, "<f4") for message in engine.of(p.Embedded)]
    assert len(vectors) == 2
    assert all(cosine(vector, alone) > 0.9999 for vector in vectors)  # the pieces are smaller beside a reply


def test_prefill_and_texts_take_turns_and_what_is_urgent_goes_first(models, make_context, make_embedder):
    model = models("attention")
    engine = Engine(model, make_context(model, n_batch=16, n_ubatch=16, n_ctx=2048))
    engine.loop._embedder = make_embedder(model, batch=16, send=engine.said.append)
    text = p.pack(tokens_of(model)[:16])
    engine.start(1, prompt_for(engine, 100), max_tokens=1)
    engine.loop.embed(p.Embed("m", 1, [text] * 3))
    engine.run()
    kinds = [type(message) for message in engine.said if isinstance(message, p.Prefilled | p.Embedded)]
    assert kinds[:6] == [p.Embedded, p.Prefilled] * 3
    engine.said.clear()
    engine.start(2, prompt_for(engine, 100, seed=1), seq=1, max_tokens=1)
    engine.loop.embed(p.Embed("m", 2, [text], priority=1))
    engine.run()
    assert isinstance([m for m in engine.said if isinstance(m, p.Prefilled | p.Embedded)][-1], p.Embedded)
    engine.said.clear()
    engine.start(3, prompt_for(engine, 100, seed=2), seq=2, max_tokens=1, priority=2)
    engine.loop.embed(p.Embed("m", 3, [text] * 3, priority=1))
    engine.run()
    kinds = [type(message) for message in engine.said if isinstance(message, p.Prefilled | p.Embedded)]
    assert kinds[:4] == [p.Embedded] * 3 + [p.Prefilled]


def test_requests_take_turns_text_by_text_and_one_that_is_dropped_is_silent(models, make_embedder):
    model = models("attention")
    embedder = make_embedder(model, batch=16)
    text = p.pack(tokens_of(model))
    for request in (1, 2, 3):
        embedder.add(p.Embed("m", request, [text] * 2))
    embedder.step(replies_run=False, spent=0.0)
    embedder.drop(1)  # in the middle of its first text
    while embedder.busy:
        embedder.step(replies_run=False, spent=0.0)
    assert [(message.request, message.text) for message in embedder.said] == [(2, 0), (3, 0), (2, 1), (3, 1)]


@pytest.mark.parametrize("length", [0, 513])
def test_a_text_that_cannot_be_is_a_problem_and_the_next_one_is_not(length, models, make_embedder):
    model = models("attention")
    embedder = make_embedder(model)
    embedder.add(p.Embed("m", 1, [p.pack(np.zeros(length, np.int32)), p.pack(tokens_of(model))]))
    while embedder.busy:
        embedder.step(replies_run=False, spent=0.0)
    (told,) = embedder.said
    assert "1 to 512" in told.problem
    embed(embedder, tokens_of(model), request=2)


def test_the_longest_text_fits(models, make_embedder):
    model = models("attention")
    embed(make_embedder(model, longest=300), np.resize(tokens_of(model), 300))


def test_where_memory_lacks_the_text_has_a_problem_and_the_next_one_tries_again(models, make_embedder):
    from lcpd.native.model import ModelError

    model = models("attention")
    embedder = make_embedder(model)
    make = embedder._make_context

    def fail():
        raise ModelError("no context of 512 cells could be made")

    embedder._make_context = fail
    embedder.add(p.Embed("m", 1, [p.pack(tokens_of(model))]))
    embedder.step(replies_run=False, spent=0.0)
    assert "no memory" in embedder.said[0].problem
    embedder._make_context = make
    embed(embedder, tokens_of(model), request=2)


def test_the_context_is_freed_when_it_has_not_been_used_for_long(models, make_embedder):
    from lcpd.engine.embedder import IDLE_SECONDS

    model = models("attention")
    embedder = make_embedder(model)
    first = embed(embedder, tokens_of(model))[0]
    embedder.rest(embedder._used + IDLE_SECONDS)
    assert embedder._context is not None
    embedder.rest(embedder._used + IDLE_SECONDS + 1)
    assert embedder._context is None
    assert (embed(embedder, tokens_of(model), request=2)[0] == first).all()


def test_a_rerankers_score_is_a_probability_however_the_pair_is_cut(log, make_embedder):
    from lcpd.native.model import Model, ModelSettings

    model = Model(reranker_model(dirs().cache / "tests", template=True), log, ModelSettings())
    try:
        assert model.pooling == "rank"
        texts = [tokens_of(model, seed=seed) for seed in range(4)]
        wholes, pieces = ([v[0] for v in embed(make_embedder(model, "rank", b), *texts)] for b in (256, 16))
        assert wholes == pytest.approx(pieces, abs=1e-4)
        assert all(0 < score < 1 for score in wholes)
        assert len({round(float(score), 4) for score in wholes}) == 4
    finally:
        model.close()
