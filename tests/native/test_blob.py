"""Cut segments are as good as whole ones: restoring both halves gives bit-equal logits on every kind of model."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from lcpd.cache.blob import layout, split, split_sizes
from support import text_of

pytestmark = pytest.mark.native
LENGTH = 600
"""Tokens of the segment; longer than the sliding window of 512."""
SCRATCH = 1
KINDS = ["attention", "swa", "hybrid"]
SETTINGS = [("f16", "on"), ("q8_0", "on"), ("f16", "off")]


class State:
    """The call orders of a context's sequence state, on raw libllama."""

    def __init__(self, model, context):
        import llama_cpp.llama_cpp as llama

        self.llama, self.model, self.context = llama, model, context
        self.memory = llama.llama_get_memory(context.handle)

    def get(self, seq, partial=False):
        flags = self.llama.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY if partial else 0
        data = np.empty(self.llama.llama_state_seq_get_size_ext(self.context.handle, seq, flags), np.uint8)
        written = self.llama.llama_state_seq_get_data_ext(self.context.handle, pointer(data), len(data), seq, flags)
        assert written == len(data)
        return data

    def set(self, seq, data, partial=False):
        flags = self.llama.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY if partial else 0
        read = self.llama.llama_state_seq_set_data_ext(self.context.handle, pointer(data), len(data), seq, flags)
        assert read == len(data)

    def export(self, begin, end):
        """The KV of sequence 0's positions [begin, end), without a recurrent state."""
        without_state = self.get(SCRATCH, partial=True)
        self.llama.llama_memory_seq_cp(self.memory, 0, SCRATCH, begin, end)
        if self.model.kind == "hybrid":
            self.set(SCRATCH, without_state, partial=True)
        data = self.get(SCRATCH)
        self.context.clear(SCRATCH)
        return data

    def restore(self, segments, checkpoint):
        """Make sequence 0 of these segments, in this order, and of a checkpoint."""
        self.context.clear(0)
        for segment in segments:
            self.set(SCRATCH, segment)
            self.llama.llama_memory_seq_cp(self.memory, SCRATCH, 0, -1, -1)
            self.context.clear(SCRATCH)
        if checkpoint is not None:
            self.set(0, checkpoint, partial=True)
        assert self.context.last_position(0) == LENGTH - 1

    def prefill(self, tokens):
        self.context.clear(0)
        self.context.decode(tokens[:LENGTH], np.arange(LENGTH, dtype=np.int32), 0, 0)

    def next_logits(self, tokens):
        """Of the 8 tokens that follow the segment."""
        rows = []
        for position in range(LENGTH, LENGTH + 8):
            self.context.decode(tokens[position : position + 1], [position], 0, 1)
            rows.append(self.context.logits(-1, self.model.n_vocab))
        return np.stack(rows)


def pointer(data):
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def halves(blob, k):
    where = layout(blob)
    front, back = (np.empty(size, np.uint8) for size in split_sizes(where, k))
    split(blob, where, k, front, back)
    return front, back


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module", params=SETTINGS, ids="-".join)
def setup(kind, request, models, log):
    """The state of a context; its tokens, their exported segment and checkpoint, and the segment of other tokens."""
    from lcpd.native.context import Context, ContextSettings

    kv_type, flash_attn = request.param
    settings = ContextSettings(
        n_ctx=1536, n_seq=SCRATCH + 1, n_batch=1024, n_ubatch=1024, threads=1, kv_type=kv_type, flash_attn=flash_attn
    )
    model = models(kind)
    context = Context(model, settings, log)
    state = State(model, context)
    tokens, other = (model.tokenize(text_of(700, seed), add_special=True, parse_special=False) for seed in (0, 1))
    state.prefill(other)
    other_segment = state.export(0, LENGTH)
    state.prefill(tokens)
    checkpoint = None if kind == "attention" else state.get(0, partial=True)
    yield state, tokens, state.export(0, LENGTH), checkpoint, other_segment
    context.close()


def test_both_halves_of_a_segment_restore_to_the_very_state_of_the_whole(setup):
    state, tokens, segment, checkpoint, _ = setup
    state.restore([segment], checkpoint)
    expected = state.next_logits(tokens)
    for k in (1, 60, 450, 599):
        state.restore(halves(segment, k), checkpoint)
        assert np.array_equal(state.next_logits(tokens), expected), f"cut at {k}"


def test_a_half_can_be_cut_again(setup):
    state, tokens, segment, checkpoint, _ = setup
    state.restore([segment], checkpoint)
    expected = state.next_logits(tokens)
    front, back = halves(segment, 500)
    state.restore([*halves(front, 200), *halves(back, 99)], checkpoint)
    assert np.array_equal(state.next_logits(tokens), expected)


def test_a_cut_segment_is_what_exporting_its_parts_gives(setup):
    state, _, segment, checkpoint, _ = setup
    state.restore([segment], checkpoint)
    front, back = halves(segment, 450)
    # Of a sliding window the segment holds what its end needs, an export up to 450 what that position needs.
    assert state.model.kind == "swa" or np.array_equal(front, state.export(0, 450))
    assert np.array_equal(back, state.export(450, LENGTH))


def test_the_half_of_another_segment_is_told_apart_by_its_logits(setup):
    """The negative control: equality above is no accident."""
    state, tokens, segment, checkpoint, other = setup
    state.restore([segment], checkpoint)
    expected = state.next_logits(tokens)
    state.restore([halves(other, 450)[0], halves(segment, 450)[1]], checkpoint)
    assert np.abs(state.next_logits(tokens) - expected).max() > 0.5


def test_a_segment_whose_cells_lie_in_another_order_in_the_cache_is_cut_by_position(setup):
    state, _, segment, checkpoint, _ = setup
    front, back = halves(segment, 450)
    state.restore([back, front], checkpoint)
    exported = state.export(0, LENGTH)
    assert not np.array_equal(exported, segment)
    again = halves(exported, 450)
    assert np.array_equal(again[0], front)
    assert np.array_equal(again[1], back)
