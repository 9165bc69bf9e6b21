"""The derivation of one vLLM log from the model's figures alone.

Qwen3.6-27B with three drafts and an fp8 KV cache on a 24 GB card logged: 2.47 GiB available for the KV cache, an
attention block of 1600 tokens, 0.25 % padding of the recurrent pages, 3 padding layers that may waste at most 6.25 %,
a KV cache of 42,780 tokens and a concurrency of 1.31x at 32,768 tokens a request.

The article that shows this log is off in one place: its prose says 16 KiB of KV a token.  The llama.cpp log that it
shows beside says 34 KiB (4352 MiB for 131072 cells of q8_0), and so does the arithmetic: 16 layers, 4 heads of 256,
K and V, 34/32 bytes each.  At one byte an element and with the draft head's layer, vLLM needs as much: 17 layers.
"""

from __future__ import annotations

import pytest

from lcpd.planning.paging import Layers, Paging, state_bytes, unify

AVAILABLE = int(2.47 * 2**30)
HEADS, HEAD_SIZE = 4, 256
DRAFTS = 3


def qwen36_27b() -> Layers:
    return Layers(
        attention=16 + 1,
        token_bytes=HEADS * HEAD_SIZE * 2 * 1,
        recurrent=48,
        state_bytes=state_bytes(heads=48, key=128, value=128, convolution=4, channels=10_240, drafts=DRAFTS),
    )


@pytest.fixture
def paging() -> Paging:
    return unify(qwen36_27b(), DRAFTS)


def test_the_recurrent_state_of_a_layer_has_3_268_608_bytes() -> None:
    assert qwen36_27b().state_bytes == 48 * 128 * 128 * 4 + (4 - 1 + 3) * 10_240 * 2 == 3_268_608


def test_an_attention_page_is_1600_tokens_and_just_larger_than_that(paging: Paging) -> None:
    assert paging.block_tokens == 1600
    assert paging.page_bytes == 1600 * 4 * 256 * 2 * 1 == 3_276_800
    assert f"{paging.state_padding:.2%}" == "0.25%"


def test_17_attention_and_48_recurrent_layers_make_4_groups_of_17_with_3_padding_layers(paging: Paging) -> None:
    assert (paging.groups, paging.attention_groups, paging.recurrent_groups) == (4, 1, 3)
    assert (paging.group_size, paging.padding_layers) == (17, 3)
    assert f"{paging.padding_share:.2%}" == "6.25%"


def test_the_available_memory_is_47_blocks(paging: Paging) -> None:
    assert paging.block_bytes == 17 * 3_276_800
    assert paging.blocks(AVAILABLE) == 47


def test_a_request_of_32768_tokens_takes_36_blocks(paging: Paging) -> None:
    assert paging.blocks_of(32_768) == 21 + 3 * (2 + 3) == 36


def test_so_the_log_says_1_31x_and_42780_tokens(paging: Paging) -> None:
    assert f"{paging.concurrency(AVAILABLE, 32_768):.4f}" == "1.3056"
    assert f"{paging.concurrency(AVAILABLE, 32_768):.2f}" == "1.31"
    assert paging.capacity(AVAILABLE, 32_768) == 42_780


def test_one_request_can_have_what_the_blocks_leave_beside_its_state(paging: Paging) -> None:
    assert paging.longest(AVAILABLE) == (47 - 15) * 1600 == 51_200
    assert paging.blocks_of(51_200) == 47


def test_without_prefix_caching_a_request_keeps_one_state_and_one_per_draft() -> None:
    assert unify(qwen36_27b(), DRAFTS, prefix_caching=False).blocks_of(32_768) == 21 + 3 * (1 + 3)


def test_kinds_of_nearly_as_many_layers_share_the_larger_size() -> None:
    paging = unify(Layers(attention=12, token_bytes=2048, recurrent=13, state_bytes=2048 * 64), drafts=0)
    assert (paging.group_size, paging.groups, paging.padding_layers) == (13, 2, 1)


def test_a_model_without_recurrent_layers_has_one_group_and_small_pages() -> None:
    paging = unify(Layers(attention=32, token_bytes=4096, recurrent=0, state_bytes=0), drafts=3)
    assert (paging.block_tokens, paging.groups, paging.padding_layers, paging.state_blocks) == (16, 1, 0, 0)
    assert paging.longest(2**30) == 2**30 // (32 * 16 * 4096) * 16
