"""Cells of the KV cache, counted as a union."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lcpd.scheduler.cells import Run, exclusive, extended, front, resized, size, union

A = (Run(1, 100), Run(2, 20))


def test_what_two_slots_share_counts_once() -> None:
    sharing = extended(front(A, 100), 3, 130, [A])
    assert size(sharing) == 130
    assert union([A, sharing]) == 120 + 30


def test_a_slot_that_shares_a_part_of_a_run_and_goes_on_has_cells_of_its_own_from_there() -> None:
    sharing = extended(front(A, 60), 3, 90, [A])
    assert sharing == (Run(1, 60), Run(3, 30))
    assert exclusive(sharing, [A]) == 30
    assert exclusive(A, [sharing]) == 60


def test_clearing_the_slot_that_computed_a_run_frees_only_what_nobody_else_holds() -> None:
    sharing = front(A, 60)
    assert union([A, sharing]) - exclusive(A, [sharing]) == union([sharing]) == 60


def test_runs_that_nobody_else_holds_are_merged_when_a_slot_goes_on() -> None:
    assert extended(A, 9, 150, []) == (Run(9, 150),)
    assert extended(A, 9, 150, [(Run(1, 10),)]) == (Run(1, 100), Run(9, 50))


def test_a_running_request_grows_and_shrinks_its_own_last_run() -> None:
    assert resized(A, 125) == (Run(1, 100), Run(2, 25))
    assert resized(A, 105) == (Run(1, 100), Run(2, 5))
    assert resized(A, 50) == (Run(1, 50),)
    assert resized(A, 0) == ()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(1, 10)), max_size=12))
def test_any_history_of_sharing_counts_what_a_cell_by_cell_account_counts(steps: list[tuple[int, int, int]]) -> None:
    """Each step: a slot keeps a front part of another one (or of itself) and computes some more."""
    runs = [()] * 4
    cells: list[list[int]] = [[] for _ in range(4)]
    fresh = 0
    for number, (target, keep, more) in enumerate(steps):
        source = (target + keep) % 4
        kept = min(keep, len(cells[source]))
        others = [r for i, r in enumerate(runs) if i != target]
        runs[target] = extended(front(runs[source], kept), number, kept + more, others)
        cells[target] = cells[source][:kept] + list(range(fresh, fresh + more))
        fresh += more
        assert [size(r) for r in runs] == [len(c) for c in cells]
        assert union(runs) == len({cell for slot in cells for cell in slot})
        for i in range(4):
            rest = {cell for j, slot in enumerate(cells) if j != i for cell in slot}
            assert exclusive(runs[i], [r for j, r in enumerate(runs) if j != i]) == len(set(cells[i]) - rest)
