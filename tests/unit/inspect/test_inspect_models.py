"""What is read from the headers of real models (tests/model_shapes), against figures known from elsewhere."""

from __future__ import annotations

import pytest

from lcpd.inspect.layers import Kind
from lcpd.inspect.shape import ModelShape, TensorClass
from model_shapes import NAMES, shape

MIB = 1 << 20


def q8_0(elements: int) -> int:
    """Bytes of a row in q8_0: 34 for each 32."""
    return elements // 32 * 34


class TestQwen36:
    """Figures of the log in issue 8, to its last digit."""

    @pytest.fixture
    def model(self) -> ModelShape:
        return shape("qwen3.6-27b")

    def test_only_16_of_its_64_layers_are_attention(self, model: ModelShape) -> None:
        assert (model.n_layer, len(model.attention_layers), len(model.recurrent_layers)) == (64, 16, 48)
        assert [layer.index for layer in model.attention_layers] == list(range(3, 64, 4))
        assert not model.window_layers

    def test_the_layer_for_multi_token_prediction_is_attention_that_the_main_context_does_not_keep(
        self, model: ModelShape
    ) -> None:
        (layer,) = model.mtp_layers
        assert (layer.index, layer.kind, layer.cached) == (64, Kind.ATTENTION, False)
        assert (layer.k_width, layer.v_width) == (1024, 1024)

    def test_kv_of_131072_cells_in_q8_0(self, model: ModelShape) -> None:
        k = sum(q8_0(layer.k_width) for layer in model.attention_layers)
        v = sum(q8_0(layer.v_width) for layer in model.attention_layers)
        assert k + v == 34 * 1024  # 34 KiB a token
        assert (k * 131072 / MIB, v * 131072 / MIB) == (2176.0, 2176.0)

    def test_recurrent_state(self, model: ModelShape) -> None:
        assert (4 * model.r_bytes / MIB, 4 * model.s_bytes / MIB) == (22.5, 576.0)
        assert (model.r_bytes + model.s_bytes) / MIB == 149.625
        assert model.recurrent is not None
        assert (model.recurrent.family, model.recurrent.conv_channels) == ("gated delta net", 10240)

    def test_it_has_the_tensors_that_a_loader_lists_for_real_files(self, model: ModelShape) -> None:
        """ik_llama.cpp issue 1790: 360 F32 tensors, and 8 + 497 + 1 others."""
        shares = model.weights.shares
        assert sum(share.tensors for share in shares if share.quant == "F32") == 360
        assert sum(share.tensors for share in shares) == 360 + 506

    def test_without_embedding_and_mtp_it_has_the_16104_mib_of_the_log(self, model: ModelShape) -> None:
        weights = model.weights
        on_gpu = weights.nbytes - weights.nbytes_of(TensorClass.EMBEDDING) - weights.nbytes_of(TensorClass.MTP)
        assert round(on_gpu / MIB) == 16104

    def test_cells_hold_positions_of_several_axes(self, model: ModelShape) -> None:
        assert model.rope.multi and not shape("llama-3.1-8b").rope.multi


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("qwen3.6-35b-a3b", 35.51),
        ("gemma-3-27b", 27.01),
        ("gemma-3-270m", 0.27),
        ("gpt-oss-20b", 20.91),  # as llama.cpp prints it
        ("granite-4.0-h-tiny", 6.94),  # as llama.cpp prints it
        ("granite-4.0-h-small", 32.21),
        ("falcon-h1-7b", 7.59),
        ("lfm2-1.2b", 1.17),
        ("mamba-codestral-7b", 7.29),
        ("llama-3.1-8b", 8.03),
    ],
)
def test_parameters_are_those_that_the_models_are_known_to_have(name: str, billions: float) -> None:
    assert round(shape(name).weights.elements / 1e9, 2) == billions


@pytest.mark.parametrize(
    ("name", "attention", "window", "recurrent", "none"),
    [
        ("qwen3.6-35b-a3b", 10, 0, 30, 0),
        ("gemma-3-27b", 10, 52, 0, 0),
        ("gemma-3-270m", 3, 15, 0, 0),
        ("gpt-oss-20b", 12, 12, 0, 0),
        ("granite-4.0-h-tiny", 4, 0, 36, 0),
        ("granite-4.0-h-small", 4, 0, 36, 0),
        ("falcon-h1-7b", 44, 0, 44, 0),
        ("lfm2-1.2b", 6, 0, 10, 0),
        ("mamba-codestral-7b", 0, 0, 64, 0),
        ("llama-3.1-8b", 32, 0, 0, 0),
    ],
)
def test_layers_are_counted_by_kind(name: str, attention: int, window: int, recurrent: int, none: int) -> None:
    model = shape(name)
    counted = len(model.attention_layers), len(model.window_layers), len(model.recurrent_layers)
    assert counted == (attention, window, recurrent)
    assert sum(layer.kind is Kind.NONE for layer in model.layers) == none


@pytest.mark.parametrize(("name", "window"), [("gemma-3-27b", 1024), ("gemma-3-270m", 512), ("gpt-oss-20b", 128)])
def test_windows_are_known_in_tokens(name: str, window: int) -> None:
    assert {layer.window for layer in shape(name).window_layers} == {window}
    assert {layer.window for layer in shape(name).attention_layers} == {0}


def test_gemma_has_windows_in_five_of_six_layers_and_gpt_oss_in_every_other() -> None:
    assert [layer.index for layer in shape("gemma-3-27b").attention_layers] == list(range(5, 62, 6))
    assert [layer.index for layer in shape("gpt-oss-20b").attention_layers] == list(range(1, 24, 2))


def test_falcon_h1_has_attention_and_state_in_each_layer() -> None:
    model = shape("falcon-h1-7b")
    assert {layer.kind for layer in model.layers} == {Kind.BOTH}
    assert model.hybrid


def test_the_state_of_mamba_codestral_is_as_its_port_to_llama_cpp_measured_it() -> None:
    """llama.cpp pull 9126: 263.5 MiB a sequence."""
    model = shape("mamba-codestral-7b")
    assert (model.r_bytes + model.s_bytes) / MIB == 263.5
    assert not model.hybrid


def test_a_short_convolution_keeps_two_tokens_and_no_state() -> None:
    model = shape("lfm2-1.2b")
    assert model.recurrent is not None
    assert (model.recurrent.r_width, model.recurrent.s_width) == (2 * 2048, 0)


def test_gpt_oss_was_extended_from_4096_tokens() -> None:
    rope = shape("gpt-oss-20b").rope
    assert (rope.scaling, rope.factor, rope.original_context) == ("yarn", 32.0, 4096)


def test_experts_are_told_from_the_rest() -> None:
    model = shape("qwen3.6-35b-a3b")
    assert model.experts is not None
    assert (model.experts.count, model.experts.used) == (256, 8)
    weights = model.weights
    # 256 experts of 3 matrices of 2048 x 512 in each layer of the trunk
    assert weights.elements_of(TensorClass.EXPERTS) == 40 * 256 * 3 * 2048 * 512
    assert sum(layer.experts for layer in weights.layers[:40]) == weights.nbytes_of(TensorClass.EXPERTS)


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_belongs_to_a_layer_or_to_none_and_all_are_counted_once(name: str) -> None:
    model = shape(name)
    weights = model.weights
    assert weights.nbytes == sum(weights.nbytes_of(cls) for cls in TensorClass)
    outside = (TensorClass.EMBEDDING, TensorClass.OUTPUT, TensorClass.OTHER)
    inside = weights.nbytes - sum(weights.nbytes_of(cls) for cls in outside)
    # What is left besides the layers is the norm before the output.
    assert inside - sum(layer.nbytes for layer in weights.layers) == 4 * model.n_embd


@pytest.mark.parametrize(("name", "tied"), [("gemma-3-27b", True), ("lfm2-1.2b", True), ("llama-3.1-8b", False)])
def test_tied_embeddings_are_recognised(name: str, tied: bool) -> None:
    assert shape(name).tied_embeddings is tied
    assert (TensorClass.OUTPUT in shape(name).weights.classes) is not tied
