"""What a step prefills: within the budget, exactly to the cuts, and nobody waits for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lcpd.engine.batching import UNIT, Budget, Chunk, Prefill, plan

ALONE = Budget(items=2048, n_batch=2048, unit=512)
BESIDE = Budget(items=200, n_batch=2048, unit=32)


def test_alone_a_long_prompt_takes_the_whole_batch():
    assert plan([Prefill(1, 0, 0, 0, 9000)], ALONE) == [Chunk(1, 0, 2048)]


def test_beside_replies_a_chunk_is_a_multiple_of_the_unit():
    assert plan([Prefill(1, 0, 0, 7, 9000)], BESIDE) == [Chunk(1, 7, 7 + 192)]


def test_a_chunk_ends_exactly_at_the_cut():
    assert plan([Prefill(1, 0, 0, 100, 145)], BESIDE) == [Chunk(1, 100, 145)]


def test_short_prompts_share_a_step_and_each_costs_a_unit_at_least():
    waiting = [Prefill(r, 0, r, 0, 5) for r in range(9)]
    budget = Budget(items=50, n_batch=2048, unit=8)
    assert [c.request for c in plan(waiting, budget)] == [0, 1, 2, 3, 4, 5]


def test_what_a_short_prompt_leaves_is_used_by_the_next():
    chunks = plan([Prefill(1, 0, 0, 0, 50), Prefill(2, 0, 1, 0, 9000)], BESIDE)
    assert chunks == [Chunk(1, 0, 50), Chunk(2, 0, 128)]


def test_lower_priority_comes_first_and_equal_ones_take_turns():
    waiting = [Prefill(1, 1, 0, 0, 9000), Prefill(2, 0, 7, 0, 9000), Prefill(3, 0, 5, 0, 9000)]
    assert [c.request for c in plan(waiting, BESIDE)] == [3]


def test_one_unit_is_prefilled_however_small_the_budget():
    assert plan([Prefill(1, 0, 0, 0, 9000)], Budget(0, 2048, 32)) == [Chunk(1, 0, 32)]


def test_aligned_chunks_end_at_multiples_counted_from_the_first_item():
    budget = Budget(items=2048, n_batch=2048, unit=512, aligned=True)
    assert plan([Prefill(1, 0, 0, 100, 9000)], budget) == [Chunk(1, 100, 512)]
    assert plan([Prefill(1, 0, 0, 512, 9000)], budget) == [Chunk(1, 512, 2560)]
    assert plan([Prefill(1, 0, 0, 100, 300)], budget) == [Chunk(1, 100, 300)]


prefills = st.lists(
    st.builds(
        lambda priority, turn, begin, size: (priority, turn, begin, begin + size),
        st.integers(0, 1),
        st.integers(0, 50),
        st.integers(0, 5000),
        st.integers(1, 5000),
    ),
    max_size=8,
).map(lambda rows: [Prefill(i, *row) for i, row in enumerate(rows)])
budgets = st.builds(
    lambda items, unit, batches, aligned: Budget(items, unit * batches, unit, aligned),
    st.integers(0, 4000),
    st.sampled_from([16, 32, 512]),
    st.integers(1, 4),
    st.booleans(),
)


@given(prefills, budgets)
def test_a_step_never_exceeds_its_budget_by_more_than_the_unit_that_is_always_done(waiting, budget):
    chunks = plan(waiting, budget)
    charged = sum(max(c.end - c.begin, min(UNIT, budget.unit)) for c in chunks)
    assert charged <= max(budget.items, budget.unit)
    assert all(c.end - c.begin <= budget.n_batch for c in chunks)


@given(prefills, budgets)
def test_every_chunk_goes_on_where_its_sequence_stands_and_stops_at_its_cut_or_on_the_grid(waiting, budget):
    chunks = plan(waiting, budget)
    by_request = {w.request: w for w in waiting}
    assert bool(chunks) == bool(waiting)
    assert len({c.request for c in chunks}) == len(chunks)
    for chunk in chunks:
        want = by_request[chunk.request]
        assert want.begin == chunk.begin < chunk.end <= want.stop
        counted_from = 0 if budget.aligned else chunk.begin
        assert chunk.end == want.stop or (chunk.end - counted_from) % budget.unit == 0


@given(prefills, budgets)
def test_taking_turns_every_prompt_comes_to_its_end(waiting, budget):
    left = {w.request: w for w in waiting}
    most = sum(-(-(w.stop - w.begin) // budget.unit) + 1 for w in waiting)
    for turn in range(100, 101 + most):
        for i, chunk in enumerate(plan(list(left.values()), budget)):
            w = left[chunk.request]
            if chunk.end == w.stop:
                del left[chunk.request]
            else:
                left[chunk.request] = Prefill(w.request, w.priority, turn * 100 + i, chunk.end, w.stop)
    assert not left
