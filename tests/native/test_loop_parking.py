"""Requests that give up their slot and go on later, on one real model for each kind of state: nobody can tell."""

from __future__ import annotations

import numpy as np
import pytest
from loops import prompt_for, ranges

from lcpd.engine import protocol as p

pytestmark = pytest.mark.native


GREEDY = {"temperature": 0}
SEEDED = {"temperature": 0.9, "seed": 7, "top_k": 40}


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("where", ["live", "restored"])
def test_a_reply_that_was_parked_goes_on_as_if_nothing_had_happened(engine, kind, sampling, where):
    tokens = prompt_for(engine)
    expected = engine.reply(1, tokens, max_tokens=30, **sampling)
    engine.forget()
    engine.start(2, tokens, max_tokens=30, **sampling)
    while len(engine.tokens(2)) < 12:
        engine.loop.step()
    engine.loop.park(2)
    parked = engine.of(p.Parked)[0]
    assert (parked.seq, parked.done, list(p.unpack(parked.generated))) == (0, len(tokens), engine.tokens(2))
    held = len(tokens) + len(p.unpack(parked.held))
    assert list(p.unpack(parked.held)) == engine.tokens(2)[:-1]
    if where == "live":
        engine.start(2, tokens, begin=held, source=0, shared=held, max_tokens=30, **sampling)
    else:
        saved = engine.save(0, *ranges(engine, held), checkpoint=kind != "attention")
        engine.forget()
        engine.start(
            2, tokens, begin=held, segments=saved.segments, restore=saved.checkpoint, max_tokens=30, **sampling
        )
    engine.run()
    assert engine.problem_of(2) == ""
    assert engine.tokens(2) == expected
    finished = engine.of(p.Finished, 2)
    assert [m.generated for m in finished] == [30]
    assert list(p.unpack(finished[0].held)) == expected[:-1]
    assert engine.text(2) == engine.text(1)


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_prompt_that_was_parked_on_its_way_goes_on(engine, sampling):
    tokens = prompt_for(engine, 600)
    expected = engine.reply(1, tokens, **sampling)
    engine.forget()
    engine.start(2, tokens, **sampling)
    engine.loop.step()
    engine.loop.park(2)
    parked = engine.of(p.Parked)[0]
    assert (parked.done, parked.held, parked.generated) == (256, b"", b"")
    engine.start(3, prompt_for(engine, 50, seed=3), seq=1)
    engine.run()
    engine.start(2, tokens, begin=256, source=0, shared=256, **sampling)
    engine.run()
    assert engine.tokens(2) == expected


def test_a_parked_reply_whose_state_was_lost_is_computed_again_but_not_sent_again(engine):
    tokens = prompt_for(engine)
    expected = engine.reply(1, tokens, max_tokens=30)
    engine.forget()
    engine.start(2, tokens, max_tokens=30)
    while len(engine.tokens(2)) < 12:
        engine.loop.step()
    engine.loop.park(2)
    engine.forget()
    engine.start(2, tokens, max_tokens=30, seq=1)
    engine.run()
    assert engine.tokens(2) == expected
    assert engine.text(2) == engine.text(1)


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_reply_goes_on_from_the_tokens_that_another_worker_sent(engine, sampling):
    tokens = prompt_for(engine)
    expected = engine.reply(1, tokens, **{**sampling, "max_tokens": 30})
    engine.forget()
    begun = p.pack(np.array(expected[:12], np.int32))
    engine.start(2, tokens, **{**sampling, "max_tokens": 30}, reply=begun)
    engine.run()
    assert engine.tokens(2) == expected[12:]
    assert engine.text(1).endswith(engine.text(2))
    assert engine.of(p.Finished, 2)[0].generated == 30
    assert engine.of(p.Prefilled, 2)[-1].done == len(tokens) + 11, "all but the last token that was sent"


@pytest.mark.parametrize("kind", ["attention"], indirect=True)
def test_a_reply_that_was_complete_is_only_finished(engine):
    tokens = prompt_for(engine)
    expected = engine.reply(1, tokens, max_tokens=12)
    engine.start(2, tokens, seq=1, max_tokens=12, reply=p.pack(np.array(expected, np.int32)))
    engine.run()
    assert engine.tokens(2) == []
    assert [(m.reason, m.generated) for m in engine.of(p.Finished, 2)] == [("length", 12)]


@pytest.mark.parametrize("kind", ["attention"], indirect=True)
def test_a_parked_request_that_is_cancelled_is_over(engine):
    engine.start(1, prompt_for(engine))
    while len(engine.tokens(1)) < 3:
        engine.loop.step()
    engine.loop.park(1)
    engine.loop.park(1)
    engine.loop.cancel(1)
    engine.loop.cancel(1)
    assert len(engine.of(p.Parked)) == 1
    assert [(m.reason, m.held, m.generated) for m in engine.of(p.Finished)] == [("cancelled", b"", 3)]
