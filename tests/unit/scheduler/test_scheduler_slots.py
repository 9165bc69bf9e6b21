"""From where a prompt can go on: pure decisions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.vocab import tokens
from lcpd.cache.trie import common_prefix
from lcpd.scheduler.slots import COLD, Known, Resume, Slot, Tokens, resumes

_TEXT = st.text("ab", max_size=12).map(tokens)
_PROMPT = st.text("ab", min_size=1, max_size=12).map(tokens)
_KNOWN = st.builds(
    lambda covered, positions: Known(covered, tuple(sorted(positions))),
    st.integers(0, 12),
    st.sets(st.integers(1, 12), max_size=4),
)


@given(_TEXT, _TEXT)
def test_the_common_prefix_is_shared_and_cannot_be_longer(a: Tokens, b: Tokens) -> None:
    size = common_prefix(a, b)
    assert a[:size].tolist() == b[:size].tolist()
    assert size == min(len(a), len(b)) or a[size] != b[size]


@given(_TEXT, _PROMPT, st.booleans(), _KNOWN, st.booleans())
def test_wherever_a_prompt_goes_on_it_is_its_own_prefix_and_a_token_is_left_to_compute(
    held: Tokens, prompt: Tokens, own: bool, known: Known, rolls_back: bool
) -> None:
    for resume in resumes(prompt, Slot(3, held), own, known, rolls_back):
        assert 0 <= resume.shared <= resume.begin <= len(prompt) - 1
        assert resume.shared <= common_prefix(held, prompt)
        assert (resume.source == -1) == (resume.shared == 0)
        if resume.restored:
            assert resume.begin <= known.covered


@given(_TEXT, _PROMPT, st.booleans(), _KNOWN)
def test_a_model_that_rolls_back_goes_on_where_slot_or_ram_end_and_needs_no_checkpoint(
    held: Tokens, prompt: Tokens, own: bool, known: Known
) -> None:
    (resume,) = resumes(prompt, Slot(3, held), own, known, rolls_back=True)
    assert resume.begin == min(max(common_prefix(held, prompt), known.covered), len(prompt) - 1)
    assert not resume.restore


@given(_TEXT, _PROMPT, st.booleans(), _KNOWN)
def test_other_models_go_on_only_at_their_own_live_end_or_at_a_checkpoint(
    held: Tokens, prompt: Tokens, own: bool, known: Known
) -> None:
    for resume in resumes(prompt, Slot(3, held), own, known, rolls_back=False):
        if resume.restore:
            assert resume.begin in known.checkpoints
        else:
            assert own
            assert resume.begin == resume.shared == len(held)


@pytest.mark.parametrize("rolls_back", [True, False])
def test_without_a_slot_and_without_ram_all_is_computed(rolls_back: bool) -> None:
    assert list(resumes(tokens("abc"), None, False, Known(), rolls_back)) == [COLD]


@pytest.mark.parametrize(
    ("held", "own", "covered", "at", "prompt", "expected"),
    [
        pytest.param("abc", True, 0, (), "abcd", [Resume(3, 0, 3)], id="the live end, one token more"),
        pytest.param("abc", True, 0, (), "abc", [], id="the same prompt again without a checkpoint"),
        pytest.param("abc", True, 0, (2,), "abc", [Resume(2, 0, 2, True)], id="and with one"),
        pytest.param("abcd", True, 0, (1, 3), "abxx", [Resume(1, 0, 1, True)], id="only a checkpoint before"),
        pytest.param("abcd", True, 4, (3,), "abcxx", [Resume(3, 0, 3, True)], id="rolled back to a checkpoint"),
        pytest.param("ab", True, 5, (1, 4), "abcdef", [Resume(2, 0, 2), Resume(4, 0, 2, True)], id="RAM goes on"),
        pytest.param("abx", True, 5, (4,), "abcdef", [Resume(4, 0, 2, True)], id="RAM goes on where they part"),
        pytest.param("abx", False, 5, (4,), "abcdef", [Resume(4, 0, 2, True)], id="from another slot as well"),
        pytest.param("abc", False, 0, (), "abcd", [], id="another slot's live end is no resume point"),
        pytest.param("abc", False, 0, (3,), "abcd", [Resume(3, 0, 3, True)], id="unless there is a checkpoint"),
    ],
)
def test_resume_points_of_a_model_that_cannot_roll_back(
    held: str, own: bool, covered: int, at: tuple[int, ...], prompt: str, expected: list[Resume]
) -> None:
    assert list(resumes(tokens(prompt), Slot(0, tokens(held)), own, Known(covered, at), rolls_back=False)) == expected


@pytest.mark.parametrize("rolls_back", [True, False])
def test_where_nothing_is_sampled_all_of_a_prompt_can_be_restored(rolls_back: bool) -> None:
    known = Known(3, () if rolls_back else (3,))
    (resume,) = resumes(tokens("abc"), None, False, known, rolls_back, samples=False)
    assert (resume.begin, resume.restore) == (3, not rolls_back)


def test_ram_goes_on_where_a_slot_that_rolls_back_ends() -> None:
    (resume,) = resumes(tokens("abcdef"), Slot(0, tokens("abx")), True, Known(covered=5), rolls_back=True)
    assert resume == Resume(5, 0, 2)
    assert resume.restored == 3


@pytest.mark.parametrize(
    ("held", "segments", "begin", "peak"),
    [
        pytest.param("", ((0, 4), (4, 8)), 7, 8, id="the last segment is read to its end"),
        pytest.param("abc", ((0, 5), (5, 7)), 7, 8, id="the first one beside what it overlaps"),
        pytest.param("abcdefg", ((0, 5), (5, 7)), 7, 0, id="none is needed"),
    ],
)
def test_the_cells_that_reading_whole_segments_takes_for_a_while_are_known(
    held: str, segments: tuple[tuple[int, int], ...], begin: int, peak: int
) -> None:
    (resume,) = resumes(tokens("abcdefgh"), Slot(0, tokens(held)), True, Known(7, (), segments), rolls_back=True)
    assert (resume.begin, resume.peak) == (begin, peak)
