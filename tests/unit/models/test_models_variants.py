"""Which files of a repository are one model, and which one a QUANT means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcpd.models.variants import QuantError, Variant, choose, variants

PATHS = [
    "README.md",
    "M-8B-Q4_K_M.gguf",
    "M-8B-Q4_K_S.gguf",
    "M-8B-UD-Q4_K_M.gguf",
    "M-8B-IQ2_XXS.gguf",
    "mmproj-M-8B-F16.gguf",
    "M-8B.imatrix.gguf",
    "BF16/M-8B-BF16-00001-of-00002.gguf",
    "BF16/M-8B-BF16-00002-of-00002.gguf",
    "F32/M-8B-F32-00001-of-00002.gguf",
]


@pytest.mark.parametrize(
    ("path", "quant"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("smol.Q8_0.gguf", "Q8_0"),
        ("g-UD-IQ1_S.gguf", "UD-IQ1_S"),
        ("model_q4_0.gguf", "q4_0"),
        ("gpt-oss-20b-mxfp4.gguf", "mxfp4"),
        ("x/M-BF16.gguf", "BF16"),
        ("M-fp16.gguf", "fp16"),
        ("M-Q4_K_M-v2.gguf", "Q4_K_M"),
        ("plain.gguf", "plain"),
    ],
)
def test_the_quantisation_is_read_from_the_name(path: str, quant: str) -> None:
    assert variants([path]) == (Variant(quant, (path,)),)


def test_projectors_matrices_and_incomplete_models_are_no_variants() -> None:
    assert [each.quant for each in variants(PATHS)] == ["BF16", "IQ2_XXS", "Q4_K_M", "Q4_K_S", "UD-Q4_K_M"]


def test_a_split_model_is_one_variant_with_its_parts_in_order() -> None:
    assert choose(PATHS[::-1], "bf16").files == (
        "BF16/M-8B-BF16-00001-of-00002.gguf",
        "BF16/M-8B-BF16-00002-of-00002.gguf",
    )


def test_the_exact_quantisation_beats_names_that_contain_it() -> None:
    assert choose(PATHS, "q4_k_m").files == ("M-8B-Q4_K_M.gguf",)


def test_a_part_of_the_name_is_enough_if_only_one_has_it() -> None:
    assert choose(PATHS, "iq2").files == ("M-8B-IQ2_XXS.gguf",)


def test_a_quant_that_fits_several_lists_them() -> None:
    with pytest.raises(QuantError, match="'Q4' fits several of its models: Q4_K_M, Q4_K_S, UD-Q4_K_M"):
        choose(PATHS, "Q4")


def test_a_quant_that_fits_none_lists_all() -> None:
    with pytest.raises(QuantError, match="no model 'Q6_K'; there are: BF16, IQ2_XXS, Q4_K_M, Q4_K_S, UD-Q4_K_M"):
        choose(PATHS, "Q6_K")


def test_no_quant_means_the_only_model() -> None:
    assert choose(["README.md", "a.gguf"], None).files == ("a.gguf",)
    with pytest.raises(QuantError, match="add one of these as :QUANT: BF16, IQ2_XXS"):
        choose(PATHS, None)


def test_a_repository_without_a_model_says_so() -> None:
    with pytest.raises(QuantError, match="no complete GGUF model"):
        choose(["README.md", "mmproj-F16.gguf"], "Q4_0")


def test_models_of_one_quantisation_are_offered_by_their_names() -> None:
    paths = ["small-Q8_0.gguf", "large-Q8_0.gguf"]
    with pytest.raises(QuantError, match="large-Q8_0, small-Q8_0"):
        choose(paths, "Q8_0")
    assert choose(paths, "large-Q8_0").files == ("large-Q8_0.gguf",)


@given(st.lists(st.sampled_from(PATHS), unique=True), st.none() | st.sampled_from(["Q4_K_M", "Q4", "bf16", "x"]))
def test_the_choice_does_not_depend_on_the_order_of_the_listing(paths: list[str], quant: str | None) -> None:
    def outcome(listing: list[str]) -> object:
        try:
            return choose(listing, quant)
        except QuantError as error:
            return str(error)

    assert outcome(paths) == outcome(paths[::-1])
