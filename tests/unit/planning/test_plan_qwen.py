"""Qwen3.6-27B UD-Q4_K_XL as llama.cpp logged it, from the model's metadata.

llama_kv_cache: size = 4352.00 MiB (131072 cells, 16 layers, ...), K (q8_0): 2176.00 MiB, V (q8_0): 2176.00 MiB
llama_memory_recurrent: size = 598.50 MiB (4 cells, 64 layers, 4 seqs), R (f32): 22.50 MiB, S (f32): 576.00 MiB
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lcpd.inspect.shape import ModelShape
from lcpd.planning.context import Wanted, resolve
from lcpd.planning.drafts import choices
from lcpd.planning.exported import checkpoint_bytes
from lcpd.planning.kv import caches, token_bytes
from lcpd.planning.paging import unify
from lcpd.planning.plan import MIB, Machine, MemoryPlan, make
from lcpd.planning.recurrent import sequence_bytes, state
from lcpd.planning.remedies import remedies
from lcpd.planning.solve import Planner, solve
from lcpd.planning.versus import layers_of, versus
from model_shapes import shape as model_shape

WANTED = Wanted(ctx=131_072, slots=4, kv="q8_0")
CARD = Machine(gpu=True, device_bytes=24 * 2**30)


@pytest.fixture(scope="module")
def shape() -> ModelShape:
    return model_shape("qwen3.6-27b")


@pytest.fixture(scope="module")
def planner(shape: ModelShape) -> Planner:
    def plan(wanted: Wanted) -> MemoryPlan:
        return make(shape, wanted, CARD)

    return plan


def mib(size: int) -> str:
    return f"{size / MIB:.2f}"


def test_the_kv_cache_line(shape: ModelShape) -> None:
    (cache,) = caches(shape, resolve(shape, WANTED))
    assert (mib(cache.nbytes), cache.cells, cache.layers) == ("4352.00", 131_072, 16)
    assert (mib(cache.k_bytes), mib(cache.v_bytes)) == ("2176.00", "2176.00")


def test_34_kib_of_kv_a_token(shape: ModelShape) -> None:
    assert token_bytes(shape, "q8_0") == 34 * 1024
    assert token_bytes(shape, "f16") == 64 * 1024


def test_the_recurrent_line_of_four_sequences(shape: ModelShape) -> None:
    # Three slots and the scratch sequence.
    found = state(shape, resolve(shape, replace(WANTED, slots=3)))
    assert (mib(found.nbytes), found.rows) == ("598.50", 4)
    assert (mib(found.r_bytes), mib(found.s_bytes)) == ("22.50", "576.00")


def test_a_checkpoint_is_the_state_of_one_sequence(shape: ModelShape) -> None:
    assert sequence_bytes(shape) / MIB == 149.625
    # magic and sequence, one cell, its position, what R and S of 48 layers begin with
    assert checkpoint_bytes(shape, 100_000, "q8_0") == int(149.625 * MIB) + 8 + 4 + 8 + 8 + 48 * 24


def test_three_drafts_quadruple_the_state_of_five_sequences(shape: ModelShape) -> None:
    found = state(shape, resolve(shape, replace(WANTED, drafts=3)))
    assert (mib(found.nbytes), found.rows) == ("2992.50", 20)


def test_a_card_of_24_gib_holds_131072_tokens_in_q8_0(planner: Planner) -> None:
    plan = planner(WANTED)
    assert plan.fits
    weights = next(part for part in plan.parts if part.name == "weights")
    assert (round(weights.device / MIB), round(weights.host / MIB)) == (16_104, 682)


def test_at_262144_tokens_it_says_what_must_give(planner: Planner) -> None:
    plan = planner(replace(WANTED, ctx=262_144))
    assert not plan.fits
    found = remedies(plan, planner)
    assert len(found) == 3
    shorter = next(remedy for remedy in found if remedy.tokens)
    assert shorter.suffices and planner(shorter.wanted).fits
    assert 131_072 < shorter.wanted.ctx == 262_144 - shorter.tokens
    assert all(remedy.gain == plan.device - planner(remedy.wanted).device > 0 for remedy in found)


def test_three_drafts_leave_nothing_on_that_card_for_four_slots(planner: Planner) -> None:
    plan = planner(replace(WANTED, drafts=3))
    assert not plan.fits
    assert remedies(plan, planner)[0].wanted.drafts == 0


def test_so_it_offers_numbers_of_slots_and_drafts_that_fit_together(shape: ModelShape, planner: Planner) -> None:
    found = choices(shape, WANTED, planner)
    assert [choice.drafts for choice in found] == [0, 1, 2, 3, 4]
    assert [mib(choice.state_bytes) for choice in found] == ["748.12", "1496.25", "2244.38", "2992.50", "3740.62"]
    for choice in found:
        if choice.slots:
            assert planner(replace(WANTED, drafts=choice.drafts, slots=choice.slots)).fits
        assert not planner(replace(WANTED, drafts=choice.drafts, slots=choice.slots + 1)).fits
        assert choice.ctx == 0 or planner(replace(WANTED, drafts=choice.drafts, ctx=choice.ctx)).fits
    slots = [choice.slots for choice in found]
    assert slots == sorted(slots, reverse=True) and slots[0] >= 4 > slots[3]


def test_solving_for_the_context_finds_the_last_one_that_fits(shape: ModelShape, planner: Planner) -> None:
    solved = solve("ctx", shape, WANTED, planner)
    assert solved is not None and solved.ctx > 131_072
    assert planner(solved).fits and not planner(replace(solved, ctx=solved.ctx + 256)).fits


def test_solving_for_slots_finds_the_last_number_that_fits(shape: ModelShape, planner: Planner) -> None:
    solved = solve("slots", shape, WANTED, planner)
    assert solved is not None
    assert planner(solved).fits and not planner(replace(solved, slots=solved.slots + 1)).fits


def test_solving_for_the_kv_type_finds_the_most_exact_one_that_fits(shape: ModelShape, planner: Planner) -> None:
    assert solve("kv", shape, replace(WANTED, ctx=32_768), planner) == replace(WANTED, ctx=32_768, kv="f16")
    assert solve("kv", shape, WANTED, planner) == WANTED
    assert solve("kv", shape, replace(WANTED, ctx=4_000_000), planner) is None


def test_the_paged_allocator_gets_the_layers_of_this_model(shape: ModelShape) -> None:
    layers = layers_of(shape, drafts=3)
    assert (layers.attention, layers.recurrent) == (17, 48)
    assert (layers.token_bytes, layers.state_bytes) == (2048, 3_268_608)


def test_side_by_side_drafts_and_requests_cost_the_paged_allocator_most(planner: Planner) -> None:
    found = versus(planner(WANTED))
    assert found is not None
    assert [other.drafts for other in found.paged] == [0, 3]
    assert [other.paging.block_tokens for other in found.paged] == [1568, 1600]
    alone, four = found.sides
    assert (alone.requests, four.requests) == (1, 4)
    # A single request without drafts: its KV has 1 byte an element instead of 34/32, and there is no scratch sequence.
    assert alone.paged[0] > alone.ours > alone.paged[1]
    assert four.ours > four.paged[0] > four.paged[1]


def test_but_room_for_drafts_is_taken_here_for_all_sequences_at_all_times(planner: Planner) -> None:
    found = versus(planner(replace(WANTED, drafts=3)))
    assert found is not None
    assert found.sides[0].ours < found.sides[0].paged[0]


def test_in_the_memory_of_the_vllm_log_there_is_room_for_67_thousand_tokens(shape: ModelShape) -> None:
    available = int(2.47 * 2**30)
    ours = (available - 2 * sequence_bytes(shape)) // token_bytes(shape, "q8_0")
    assert ours == 67_163
    assert unify(layers_of(shape, 3), 3).longest(available) == 51_200
