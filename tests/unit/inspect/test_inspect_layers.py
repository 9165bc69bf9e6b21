"""The rules of architectures that no fixture of a real model covers, on small made-up headers."""

from __future__ import annotations

import pytest

from lcpd.inspect.header import Array, Tensor, Value
from lcpd.inspect.layers import Kind
from lcpd.inspect.shape import ModelShape, ShapeError, shape_of


def made(architecture: str, *tensors: str, **keys: Value | list[int]) -> ModelShape:
    """A model of 8 layers and 4 heads of 16 unless `keys` (with _ for .) say otherwise."""
    values: dict[str, Value] = {
        "general.architecture": architecture,
        f"{architecture}.context_length": 1024,
        f"{architecture}.embedding_length": 64,
        f"{architecture}.block_count": 8,
        f"{architecture}.attention.head_count": 4,
    }
    for key, value in keys.items():
        group, _, name = key.partition("__")
        full = f"{architecture}.{group}.{name}" if name else f"{architecture}.{group}"
        if isinstance(value, list):
            value = Array("INT32", len(value), tuple(value))
        values[full] = value
    return shape_of(values, [Tensor(name, (64,), "F32", 64, 256) for name in tensors])


def kinds(model: ModelShape) -> str:
    """A letter for each layer."""
    letters = {Kind.ATTENTION: "a", Kind.WINDOW: "w", Kind.RECURRENT: "r", Kind.BOTH: "b", Kind.NONE: "-"}
    return "".join(letters[layer.kind] for layer in model.layers)


def test_an_architecture_that_is_not_known_is_plain_attention() -> None:
    model = made("brand-new", attention__head_count_kv=2)
    assert kinds(model) == "aaaaaaaa"
    assert {(layer.k_width, layer.v_width) for layer in model.layers} == {(32, 32)}


def test_without_kv_heads_all_heads_have_their_own() -> None:
    assert {layer.n_head_kv for layer in made("llama").layers} == {4}


def test_head_sizes_can_differ_from_the_embedding_and_between_k_and_v() -> None:
    model = made("llama", attention__key_length=24, attention__value_length=8)
    assert {(layer.k_width, layer.v_width) for layer in model.layers} == {(96, 32)}


def test_an_array_of_recurrent_layers_beats_the_interval() -> None:
    flags = [1, 1, 0, 0, 1, 1, 1, 0]
    model = made("qwen3next", attention__recurrent_layers=flags, full_attention_interval=4, ssm__conv_kernel=4)
    assert kinds(model) == "rraarrra"


def test_the_interval_counts_the_trunk_only() -> None:
    assert kinds(made("qwen35", nextn_predict_layers=1, full_attention_interval=2)) == "rararara"[:7] + "a"


def test_full_attention_is_every_fourth_layer_where_nothing_is_said() -> None:
    assert kinds(made("qwen3next")) == "rrrarrra"


def test_layers_without_kv_heads_are_recurrent_in_jamba() -> None:
    assert kinds(made("jamba", attention__head_count_kv=[0, 0, 0, 2, 0, 0, 0, 2])) == "rrrarrra"


def test_nemotron_has_layers_that_mix_nothing() -> None:
    model = made(
        "nemotron_h",
        attention__head_count_kv=[0, 0, 2, 0, 0, 0, 2, 0],
        feed_forward_length=[0, 128, 0, 128, 0, 128, 0, 128],
    )
    assert kinds(model) == "r-a-r-a-"


def test_llama_layers_without_kv_heads_keep_nothing() -> None:
    model = made("deci", attention__head_count_kv=[2, 0, 2, 0, 2, 0, 2, 0])
    assert kinds(model) == "a-a-a-a-"
    assert len(model.attention_layers) == 4


def test_windows_by_a_pattern_that_begins_with_full_attention() -> None:
    assert kinds(made("cohere2moe", attention__sliding_window=64)) == "awwwawww"


def test_a_pattern_in_the_file_beats_the_default() -> None:
    assert kinds(made("gemma3", attention__sliding_window=64, attention__sliding_window_pattern=2)) == "wawawawa"
    flags = [1, 1, 0, 1, 1, 0, 1, 1]
    assert kinds(made("gemma3", attention__sliding_window=64, attention__sliding_window_pattern=flags)) == "wwawwaww"


@pytest.mark.parametrize("keys", [{}, {"attention__sliding_window": 0}])
def test_without_a_window_there_are_no_windows(keys: dict[str, Value]) -> None:
    model = made("gemma3", **keys)
    assert kinds(model) == "aaaaaaaa"
    assert model.window_kind == ""


def test_phi3_has_no_windows_whatever_it_says() -> None:
    assert kinds(made("phi3", attention__sliding_window=64)) == "aaaaaaaa"


def test_llama_4_attends_in_chunks() -> None:
    model = made("llama4")
    assert kinds(model) == "wwwawwwa"
    assert (model.window_kind, model.window_layers[0].window) == ("chunked", 8192)


def test_gemma_4_gives_the_window_its_own_head_size_and_shares_kv_at_the_end() -> None:
    model = made(
        "gemma4",
        attention__sliding_window=64,
        attention__sliding_window_pattern=[1, 1, 1, 0, 1, 1, 1, 0],
        attention__shared_kv_layers=4,
        attention__key_length=32,
        attention__value_length=32,
        attention__key_length_swa=16,
        attention__value_length_swa=16,
    )
    assert kinds(model) == "wwwa----"
    assert [layer.k_width for layer in model.layers] == [64, 64, 64, 128, 0, 0, 0, 0]


def test_latent_attention_keeps_k_alone() -> None:
    model = made(
        "deepseek2",
        attention__head_count_kv=1,
        attention__key_length=576,
        attention__value_length=512,
        attention__key_length_mla=192,
        attention__value_length_mla=128,
    )
    assert {(layer.k_width, layer.v_width) for layer in model.layers} == {(576, 0)}


def test_rwkv_keeps_two_shifted_tokens_and_a_matrix_for_each_head() -> None:
    model = made("rwkv7", attention__head_count=0, wkv__head_size=16)
    assert kinds(model) == "rrrrrrrr"
    assert model.recurrent is not None
    assert (model.recurrent.r_width, model.recurrent.s_width) == (2 * 64, 64 * 16)


def test_kimi_delta_attention_keeps_three_convolutions_and_a_matrix_for_each_head() -> None:
    model = made("kimi-linear", attention__head_count_kv=[0, 0, 0, 1] * 2, kda__head_dim=16, ssm__conv_kernel=4)
    assert kinds(model) == "rrrarrra"
    assert model.recurrent is not None
    assert (model.recurrent.r_width, model.recurrent.s_width) == (3 * 3 * 64, 16 * 16 * 4)


def test_an_encoder_keeps_nothing() -> None:
    model = made("bert")
    assert kinds(model) == "aaaaaaaa"
    assert not model.attention_layers


def test_what_is_not_modelled_is_said() -> None:
    assert "indexer" in made("deepseek32").unmodelled
    assert made("llama").unmodelled == ""


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"block_count": 0}, "block_count must be from 1 to 512"),
        ({"block_count": 513}, "block_count must be from 1 to 512"),
        ({"block_count": "8"}, "block_count must be a whole number"),
        ({"block_count": True}, "block_count must be a whole number"),
        ({"embedding_length": -1}, "embedding_length must be a whole number"),
        ({"nextn_predict_layers": 9}, "nextn_predict_layers is 9, of 8 layers"),
        ({"attention__head_count": [4, 4]}, "head_count has 2 values for 8 layers"),
        ({"rope__freq_base": float("nan")}, "freq_base must be a finite number"),
    ],
)
def test_a_header_that_describes_no_model_is_refused_by_key(keys: dict[str, Value], reason: str) -> None:
    with pytest.raises(ShapeError, match=reason):
        made("llama", **keys)


def test_an_interval_of_zero_is_refused() -> None:
    with pytest.raises(ShapeError, match="full_attention_interval must not be 0"):
        made("qwen35", full_attention_interval=0)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ShapeError, match=r"llama\.block_count is missing"):
        shape_of({"general.architecture": "llama"}, [])


def test_a_projector_is_no_model() -> None:
    with pytest.raises(ShapeError, match="projector"):
        shape_of({"general.architecture": "clip"}, [])
