"""The oracle itself: it passes replies that were computed otherwise but rightly, and fails those of wrong states."""

from __future__ import annotations

import numpy as np
import pytest

from oracle.replay import Replay
from oracle.tables import table

pytestmark = pytest.mark.native
LENGTH = 16
FAR = 3.0
"""A wrong state's gap over delta."""


class Bench:
    """A replay, two prompts of equal length with their greedy replies, and delta."""

    def __init__(self, model, context):
        self.replay = Replay(context, model.n_vocab)
        texts = [model.tokenize(table(seed), add_special=True, parse_special=False) for seed in range(3)]
        # Equal lengths, so that a state of one fits to another; taken from the end, where the repetition stands.
        length = min(map(len, texts))
        *self.prompts, self.other = [text[-length:].tolist() for text in texts]
        self.replies = [self.replay.greedy(prompt, LENGTH) for prompt in self.prompts]
        self.delta = self.replay.delta(self.other, LENGTH)

    def worst_gap(self, replies):
        """Of the prompts' replies."""
        return max(self.replay.gaps(*pair).max() for pair in zip(self.prompts, replies, strict=True))


@pytest.fixture(scope="module", params=["attention", "hybrid"])
def bench(request, models, log):
    from lcpd.native.context import Context, ContextSettings

    model = models(request.param)
    settings = ContextSettings(n_ctx=1024, n_seq=4, n_batch=1024, n_ubatch=512, threads=1, flash_attn="off")
    context = Context(model, settings, log)
    yield Bench(model, context)
    context.close()


with_checkpoints = pytest.mark.parametrize("bench", ["hybrid"], indirect=True)


def test_a_reply_that_was_decoded_token_by_token_passes(bench):
    assert bench.worst_gap(bench.replies) < bench.delta


def test_a_reply_whose_prompt_was_cut_anyhow_passes(bench):
    cut = [bench.replay.greedy(prompt, LENGTH, cuts=(5, 6, 40, 77)) for prompt in bench.prompts]
    assert bench.worst_gap(cut) < bench.delta


def test_a_reply_that_was_decoded_beside_others_passes(bench):
    for prompt, reply in zip(bench.prompts, bench.replies, strict=True):
        alone, beside = bench.replay.rows(prompt, reply), bench.replay.beside(prompt, reply)
        sampled = alone[np.arange(LENGTH), beside.argmax(axis=1)]
        assert (alone.max(axis=1) - sampled).max() < bench.delta


def test_replies_to_other_prompts_miss_by_far(bench):
    """As when two slots were mixed up."""
    assert bench.worst_gap(bench.replies[1:] + bench.replies[:1]) > FAR * bench.delta


def test_a_single_wrong_token_misses_by_far(bench):
    prompt, reply = bench.prompts[0], list(bench.replies[0])
    reply[LENGTH // 2] = int(bench.replay.rows(prompt, reply)[LENGTH // 2].argsort()[-100])
    assert bench.replay.gaps(prompt, reply).max() > FAR * bench.delta


def test_replies_from_a_swapped_segment_miss_by_far(bench):
    """The attention KV of [16, 64) is that of another prompt."""
    assert bench.worst_gap(_from_segments(bench, bench.other)) > FAR * bench.delta


def test_replies_from_the_right_segments_pass(bench):
    """The positive control of the test above."""
    assert bench.worst_gap(_from_segments(bench)) < bench.delta


@with_checkpoints
def test_replies_from_a_wrong_checkpoint_miss_by_far(bench):
    assert bench.worst_gap(_from_checkpoints(bench, lambda prompt: bench.other)) > FAR * bench.delta


@with_checkpoints
def test_replies_from_a_checkpoint_of_another_position_miss_by_far(bench):
    """The recurrent state is a few tokens behind."""
    assert bench.worst_gap(_from_checkpoints(bench, lambda prompt: np.roll(prompt, 4))) > FAR * bench.delta


@with_checkpoints
def test_replies_from_the_right_checkpoint_pass(bench):
    """The positive control of the two above."""
    assert bench.worst_gap(_from_checkpoints(bench, lambda prompt: prompt)) < bench.delta


def _from_segments(bench, swapped=None):
    """Replies that go on from exported segments; [16, 64) is that of the prompt `swapped` where there is one."""
    replay, at = bench.replay, len(bench.prompts[0]) - 8
    context = replay.context
    replies = []
    for prompt in bench.prompts:
        replay.go_on(prompt[:at], [0], 0, seq=1)
        replay.go_on((swapped or prompt)[:at], [0], 0, seq=2)
        for seq, begin, end in ((1, 0, 16), (2, 16, 64), (1, 64, at)):
            context.share(seq, context.scratch, begin, end)
            context.drop_rolling(context.scratch, end)
            segment = np.empty(context.state_size(context.scratch, partial=False), np.uint8)
            context.write_state(context.scratch, segment, partial=False)
            context.read_state(context.scratch, segment, partial=False)
            context.share(context.scratch, 0, begin, end)
            context.clear(context.scratch)
        if not context.rolls_back:
            context.restore_checkpoint(0, context.take_checkpoint(1), at)
        context.clear(1)
        context.clear(2)
        replies.append(replay.greedy(prompt, LENGTH, begin=at))
    return replies


def _from_checkpoints(bench, source):
    """Replies that go on from a checkpoint shortly before the prompt's end, taken on `source(prompt)`."""
    replay, at = bench.replay, len(bench.prompts[0]) - 8
    replies = []
    for prompt in bench.prompts:
        replay.go_on(source(prompt)[:at], [0], 0)
        checkpoint = replay.context.take_checkpoint(0)
        replay.context.clear(0)
        replay.go_on(prompt[:at], [0], 0)
        replay.context.restore_checkpoint(0, checkpoint, at)
        replies.append(replay.greedy(prompt, LENGTH, begin=at))
    return replies
