"""The decode loop on real models: what it computes, what it reuses, and what it does when cells run out."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lcpd.engine import protocol as p

pytestmark = pytest.mark.native
KINDS = ["attention", "swa", "hybrid"]


class Engine:
    """A decode loop and what it said."""

    def __init__(self, model, context):
        from lcpd.engine.loop import DecodeLoop
        from lcpd.native import bridge

        self.model = model
        self.said = []
        self.loop = DecodeLoop(model, context, bridge.Params("--jinja"), self.said.append)

    def start(
        self, request, tokens, *, seq=0, begin=0, restore=-1, checkpoints=None, max_tokens=16, embeddings=(), **fields
    ):
        self.loop.start(
            p.Start(
                model="m",
                request=request,
                seq=seq,
                tokens=p.pack(tokens),
                begin=begin,
                restore=restore,
                checkpoints=checkpoints or {},
                fields=json.dumps({"temperature": 0, "ignore_eos": True, **fields}).encode(),
                max_tokens=max_tokens,
                embeddings=list(embeddings),
            )
        )

    def run(self, steps=10_000):
        for _ in range(steps):
            if not self.loop.running:
                return self
            self.loop.step()
        raise AssertionError("the loop does not come to an end")

    def of(self, kind, request=None):
        found = [m for m in self.said if isinstance(m, kind)]
        return found if request is None else [m for m in found if m.request == request]

    def tokens(self, request):
        return [t for step in self.of(p.Step) for o in step.outputs if o.request == request for t in o.tokens]

    def text(self, request):
        parts = [o.text for step in self.of(p.Step) for o in step.outputs if o.request == request]
        return "".join(parts) + self.of(p.Finished, request)[0].text

    def prefill_cuts(self, request):
        return [m.done for m in self.of(p.Prefilled, request)]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def engine(kind, models, make_context):
    model = models(kind)
    return Engine(model, make_context(model, n_batch=128, n_ubatch=128, n_ctx=2048))


def prompt_for(engine, length=200, seed=0):
    """A prompt of `length` tokens whose continuation is beyond doubt: counting on.

    Where the cells of a sequence lie changes the order of sums and so the last bits of logits; in a text without ties
    that changes no token.
    """
    numbers = ", ".join(str(100 * seed + i) for i in range(length))
    return engine.model.tokenize(numbers, add_special=True, parse_special=False)[:length]


def test_a_prompt_is_prefilled_in_batches_and_answered(engine):
    tokens = prompt_for(engine)
    engine.start(1, tokens)
    engine.run()
    assert engine.prefill_cuts(1) == [*range(128, len(tokens), 128), len(tokens)]
    finished = engine.of(p.Finished)[0]
    assert (finished.reason, finished.generated) == ("length", 16)
    assert list(p.unpack(finished.held)) == engine.tokens(1)[:-1]


def test_a_request_gives_the_same_tokens_whoever_prefills_beside_it(engine):
    """Its prefill cuts are its own; only the batch of the decode step is shared."""
    tokens = prompt_for(engine)
    engine.start(1, tokens, max_tokens=1)
    engine.run()
    engine.start(2, prompt_for(engine, seed=1), seq=1, max_tokens=8)
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
    engine.start(2, following, begin=len(held))
    engine.run()
    assert engine.of(p.Started, 2)[0].begin == len(held)

    # The same prompt with the same batches on an empty sequence says the same.
    cuts = dict.fromkeys([*engine.prefill_cuts(1), len(held)], 9)
    engine.start(3, following, seq=1, checkpoints={at: 100 + i for i, at in enumerate(cuts)})
    engine.run()
    if engine.model.kind != "hybrid":  # there, decoding token by token is another way to compute than prefill
        assert engine.tokens(3) == engine.tokens(2)


def test_a_rolled_back_sequence_answers_as_if_it_had_never_gone_on(engine, kind):
    tokens, other = prompt_for(engine, seed=0), prompt_for(engine, 30, seed=7)
    half = 100
    engine.start(1, tokens, checkpoints={half: 77})
    engine.run()
    edited = np.concatenate([tokens[:half], other])
    engine.start(2, edited, begin=half, restore=-1 if kind == "attention" else 77)
    engine.run()
    assert engine.of(p.Started, 2)[0].begin == half
    engine.start(3, edited, seq=1, checkpoints={half: 78})
    engine.run()
    assert engine.tokens(2) == engine.tokens(3)


def test_a_checkpoint_is_taken_exactly_where_it_was_asked_for(engine):
    tokens = prompt_for(engine)
    engine.start(1, tokens, checkpoints={50: 5, 101: 6})
    engine.run()
    assert [(c.checkpoint, c.position) for c in engine.of(p.Checkpointed)] == [(5, 50), (6, 101)]
    assert {50, 101} <= set(engine.prefill_cuts(1))


def test_a_sequence_that_cannot_be_resumed_is_computed_from_the_beginning(engine):
    tokens = prompt_for(engine)
    engine.start(1, tokens)
    engine.run()
    engine.start(2, tokens, begin=60, restore=12345)
    engine.run()
    assert engine.of(p.Started, 2)[0].begin == 0
    assert engine.tokens(2) == engine.tokens(1)


def test_a_sequence_that_begins_earlier_than_asked_takes_the_checkpoints_on_its_way(engine):
    tokens = prompt_for(engine)
    engine.start(1, tokens, begin=100, restore=12345, checkpoints={50: 5, 150: 6})
    engine.run()
    assert [c.position for c in engine.of(p.Checkpointed)] == [50, 150]


def test_a_dropped_checkpoint_is_no_resume_point_any_more(engine):
    tokens = prompt_for(engine)
    engine.start(1, tokens, checkpoints={60: 5})
    engine.run()
    engine.loop.drop([5])
    engine.start(2, tokens, begin=60, restore=5)
    assert engine.of(p.Started, 2)[0].begin == 0


def test_a_cancelled_request_ends_at_once_and_its_sequence_is_usable(engine):
    tokens = prompt_for(engine)
    engine.start(1, tokens)
    engine.loop.step()
    engine.loop.cancel(1)
    assert engine.of(p.Finished)[0].reason == "cancelled"
    done = engine.prefill_cuts(1)[-1]
    engine.start(2, tokens, begin=done)
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


def test_an_idle_sequence_gives_way_when_cells_run_out(models, make_context):
    model = models("attention")
    engine = Engine(model, make_context(model, n_ctx=512, n_batch=128, n_ubatch=128))
    first, second = prompt_for(engine, 300), prompt_for(engine, 300, seed=2)
    engine.start(1, first, seq=0, max_tokens=4)
    engine.run()
    engine.start(2, second, seq=1, max_tokens=4)
    engine.run()
    assert [m.seq for m in engine.of(p.Evicted)] == [0]
    assert len(engine.tokens(2)) == 4


def test_a_running_reply_is_cut_short_when_nothing_else_can_give_way(models, make_context):
    model = models("attention")
    engine = Engine(model, make_context(model, n_ctx=256, n_batch=128, n_ubatch=128))
    engine.start(1, prompt_for(engine, 110), seq=0, max_tokens=100)
    engine.start(2, prompt_for(engine, 100, seed=3), seq=1, max_tokens=100)
    engine.run()
    assert {m.reason for m in engine.of(p.Finished)} == {"length"}
    assert sum(len(engine.tokens(r)) for r in (1, 2)) < 200


def test_two_prompts_that_fit_only_one_after_the_other_are_both_computed(models, make_context):
    model = models("attention")
    engine = Engine(model, make_context(model, n_ctx=512, n_batch=64, n_ubatch=64))
    first, second = prompt_for(engine, 400), prompt_for(engine, 380, seed=4)
    engine.start(1, first, seq=0, max_tokens=3)
    engine.loop.step()
    engine.start(2, second, seq=1, max_tokens=3)
    engine.run(steps=200)
    assert len(engine.tokens(1)) == len(engine.tokens(2)) == 3
    assert engine.of(p.Started, 2)[-1].begin == 0


def test_a_reply_under_way_is_not_cut_short_for_a_prompt(models, make_context):
    model = models("attention")
    engine = Engine(model, make_context(model, n_ctx=512, n_batch=64, n_ubatch=64))
    engine.start(1, prompt_for(engine, 100), seq=0, max_tokens=150)
    engine.loop.step()
    engine.loop.step()
    engine.start(2, prompt_for(engine, 380, seed=4), seq=1, max_tokens=3)
    engine.run()
    assert len(engine.tokens(1)) == 150
    assert len(engine.tokens(2)) == 3


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
    [({"begin": 9999}, "begin 9999"), ({"begin": -1}, "begin -1"), ({"grammar": "root ::= ("}, "grammar")],
)
def test_a_request_that_cannot_be_run_fails_alone(models, make_context, change, message):
    model = models("hybrid")
    engine = Engine(model, make_context(model))
    tokens = prompt_for(engine, 10)
    engine.start(1, tokens, max_tokens=3)
    engine.start(2, tokens, seq=1, **change)
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
    engine.start(1, tokens, checkpoints={20: 1, 50: 2})
    engine.run()
    masked = tokens.copy()
    masked[20:50] = -1
    vectors = p.Embeddings(begin=20, count=30, data=table[tokens[20:50]].astype("<f4").tobytes())
    engine.start(2, masked, seq=1, embeddings=[vectors])
    engine.run()
    assert engine.prefill_cuts(2) == [20, 50, 90]
    assert engine.tokens(2) == engine.tokens(1)
