"""Contexts, caches, states and weights of the models of tests/model_shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcpd.config.settings import KvType
from lcpd.inspect.shape import TensorClass
from lcpd.planning.context import Wanted, resolve
from lcpd.planning.exported import checkpoint_bytes, segment_bytes, token_bytes
from lcpd.planning.kv import caches, refusal, types_that_work
from lcpd.planning.plan import MIB, Machine, make
from lcpd.planning.recurrent import state
from lcpd.planning.rows import row_bytes
from lcpd.planning.weights import offloaded, place, repacked
from model_shapes import NAMES, shape

WANTED = Wanted(ctx=131_072, slots=4, kv="q8_0")
HOST = Machine(gpu=False, device_bytes=None)


@pytest.mark.parametrize(
    ("kind", "nbytes"),
    [("f32", 4096), ("f16", 2048), ("bf16", 2048), ("q8_0", 1088), ("q5_1", 768), ("q5_0", 704), ("q4_1", 640)],
)
def test_a_row_of_1024_elements(kind: KvType, nbytes: int) -> None:
    assert row_bytes(kind, 1024) == nbytes


def test_a_row_that_is_no_whole_number_of_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="a row of 80 elements cannot be q4_0, whose blocks have 32"):
        row_bytes("q4_0", 80)


@pytest.mark.parametrize(
    ("name", "kv", "recurrent", "checkpoint", "kib", "gpu", "host"),
    [
        # KV of each cache, state of five sequences, a checkpoint: MiB; KiB of KV a token; MiB of weights
        ("qwen3.6-27b", ["4352.00"], "748.12", "149.626", 34.0, 16_104, 682),
        ("qwen3.6-35b-a3b", ["1360.00"], "314.06", "62.813", 10.625, 20_470, 273),
        ("gemma-3-27b", ["5440.00", "1215.50"], "0.00", "221.013", 42.5, 16_770, 1103),
        ("gemma-3-270m", ["204.00", "23.91"], "0.00", "3.991", 1.59375, 236, 170),
        ("gpt-oss-20b", ["1632.00", "15.94"], "0.00", "1.596", 12.75, 10_949, 587),
        ("granite-4.0-h-tiny", ["544.00"], "276.86", "55.372", 4.25, 4286, 121),
        ("granite-4.0-h-small", ["1088.00"], "737.40", "147.481", 8.5, 19_714, 322),
        ("falcon-h1-7b", ["2992.00"], "669.02", "133.806", 23.375, 4374, 214),
        ("lfm2-1.2b", ["816.00"], "0.78", "0.157", 6.375, 729, 105),
        ("mamba-codestral-7b", [], "1317.50", "263.501", 0.0, 7258, 136),
        ("llama-3.1-8b", ["8704.00"], "0.00", "0.000", 68.0, 4651, 282),
    ],
)
def test_131072_tokens_in_q8_0_with_four_slots(
    name: str, kv: list[str], recurrent: str, checkpoint: str, kib: float, gpu: int, host: int
) -> None:
    model = shape(name)
    context = resolve(model, WANTED)
    found = caches(model, context)
    assert [f"{cache.nbytes / MIB:.2f}" for cache in found] == kv
    assert f"{state(model, context).nbytes / MIB:.2f}" == recurrent
    assert f"{checkpoint_bytes(model, 131_072, 'q8_0') / MIB:.3f}" == checkpoint
    assert sum(cache.nbytes for cache in found if cache.name == "full") / 131_072 / 1024 == kib
    placed = place(model, None)
    assert (round(placed.gpu / MIB), round(placed.host / MIB)) == (gpu, host)


class TestContexts:
    def test_cells_are_a_multiple_of_256(self) -> None:
        assert resolve(shape("llama-3.1-8b"), Wanted(ctx=1000)).cells == 1024

    def test_without_a_wish_it_is_the_models_own_length_up_to_32768(self) -> None:
        assert resolve(shape("llama-3.1-8b"), Wanted()).ctx == 32_768
        assert resolve(shape("gemma-3-270m"), Wanted()).ctx == 32_768

    def test_one_sequence_more_than_slots_is_scratch(self) -> None:
        assert resolve(shape("llama-3.1-8b"), Wanted(slots=4)).sequences == 5

    def test_windows_of_all_sequences_and_a_batch_have_cells(self) -> None:
        context = resolve(shape("gemma-3-27b"), WANTED)
        assert context.window_cells == 1024 * 5 + 512

    def test_a_short_context_has_more_cells_where_the_windows_need_them(self) -> None:
        context = resolve(shape("gemma-3-270m"), Wanted(ctx=1024, slots=4, ubatch=128))
        assert (context.ctx, context.cells, context.window_cells) == (1024, 2816, 2816)

    def test_a_batch_is_no_longer_than_the_context(self) -> None:
        assert resolve(shape("llama-3.1-8b"), Wanted(ctx=256, ubatch=512)).ubatch == 256

    def test_drafts_cost_states_only_where_the_architecture_can_roll_back(self) -> None:
        assert resolve(shape("qwen3.6-27b"), Wanted(drafts=3)).snapshots == 3
        assert resolve(shape("falcon-h1-7b"), Wanted(drafts=3)).snapshots == 0
        assert resolve(shape("llama-3.1-8b"), Wanted(drafts=3)).snapshots == 0


class TestKvTypes:
    def test_quantised_ones_need_flash_attention(self) -> None:
        model = shape("llama-3.1-8b")
        assert types_that_work(model, flash_attn=False) == ("f32", "f16", "bf16")
        assert refusal(model, "q8_0", flash_attn=False) == "q8_0 needs flash attention (model.flash_attn)"

    def test_heads_must_consist_of_whole_blocks(self) -> None:
        model = shape("llama-3.1-8b")
        odd = replace(model, layers=tuple(replace(layer, head_k=80) for layer in model.layers))
        assert refusal(odd, "q4_0", flash_attn=True) == "q4_0 has blocks of 32, which heads of 80 do not consist of"
        assert types_that_work(odd, flash_attn=True) == ("f32", "f16", "bf16")

    def test_without_flash_attention_all_rows_of_v_are_as_wide_as_the_widest(self) -> None:
        model = shape("llama-3.1-8b")
        wider = replace(model, v_width_max=2 * model.v_width_max)
        without = replace(WANTED, kv="f16", flash_attn=False)
        (narrow,), (wide,) = (caches(each, resolve(each, without)) for each in (model, wider))
        assert (wide.k_bytes, wide.v_bytes) == (narrow.k_bytes, 2 * narrow.v_bytes)


class TestExported:
    def test_a_token_of_a_segment_has_its_position_beside_its_kv(self) -> None:
        assert token_bytes(shape("llama-3.1-8b"), "f16") == 32 * 2 * 1024 * 2 + 12

    def test_with_positions_of_several_axes_it_has_12_bytes_more(self) -> None:
        assert token_bytes(shape("qwen3.6-27b"), "q8_0") == 34 * 1024 + 24

    def test_a_model_without_attention_has_no_segments(self) -> None:
        assert segment_bytes(shape("mamba-codestral-7b"), 1000, "f16") == 0

    def test_a_checkpoint_of_a_window_grows_up_to_the_window(self) -> None:
        model = shape("gemma-3-270m")
        sizes = [checkpoint_bytes(model, tokens, "f16") for tokens in (256, 512, 100_000)]
        assert sizes[0] < sizes[1] == sizes[2]


class TestWeights:
    def test_all_layers_and_the_output_go_to_the_gpu_and_embeddings_stay(self) -> None:
        model = shape("llama-3.1-8b")
        placed = place(model, None)
        assert placed.host == model.weights.nbytes_of(TensorClass.EMBEDDING)
        assert placed.gpu + placed.host == model.weights.nbytes

    def test_a_tied_output_is_a_copy_of_the_embeddings(self) -> None:
        model = shape("gemma-3-27b")
        placed = place(model, None)
        embeddings = model.weights.nbytes_of(TensorClass.EMBEDDING)
        assert placed.gpu + placed.host == model.weights.nbytes + embeddings

    def test_the_output_is_the_first_to_go_then_the_last_layers(self) -> None:
        model = shape("llama-3.1-8b")
        assert offloaded(model, 1) == frozenset()
        assert offloaded(model, 3) == {30, 31}
        assert offloaded(model, None) == frozenset(range(32))
        assert place(model, 3).gpu - place(model, 1).gpu == sum(each.nbytes for each in model.weights.layers[30:])

    def test_no_layer_means_no_output_either(self) -> None:
        assert place(shape("llama-3.1-8b"), 0).gpu == 0

    def test_layers_to_draft_with_are_left_out_unless_they_are_used(self) -> None:
        model = shape("qwen3.6-27b")
        drafting, plain = place(model, None, draft_heads=True), place(model, None)
        assert drafting.gpu - plain.gpu == model.weights.nbytes_of(TensorClass.MTP)

    def test_the_cpu_copies_matrices_of_types_that_it_has_kernels_for(self) -> None:
        model = shape("llama-3.1-8b")
        q4_k = sum(share.nbytes for share in model.weights.shares if share.quant == "Q4_K")
        embeddings = sum(s.nbytes for s in model.weights.of(TensorClass.EMBEDDING) if s.quant == "Q4_K")
        assert repacked(model, frozenset({"avx2"})) == q4_k - embeddings
        assert repacked(model, frozenset()) == 0


class TestPlans:
    @pytest.mark.parametrize("name", NAMES)
    def test_the_sum_of_the_parts_is_the_same_however_many_layers_are_on_the_gpu(self, name: str) -> None:
        model = shape(name)
        exact = ("KV, full", "KV, window", "recurrent state")

        def total(gpu_layers: int) -> int:
            plan = make(model, replace(WANTED, gpu_layers=gpu_layers), Machine(gpu=True, device_bytes=None))
            return sum(part.device + part.host for part in plan.parts if part.name in exact)

        assert len({total(count) for count in (0, 1, 7, 20, 999)}) == 1

    def test_half_of_the_layers_on_the_gpu_means_their_kv_and_state_alone(self) -> None:
        model = shape("qwen3.6-27b")
        # Layers 49 to 64: four with attention, and that to draft with, which is not loaded.
        plan = make(model, replace(WANTED, gpu_layers=17), Machine(gpu=True, device_bytes=None))
        parts = {part.name: part for part in plan.parts}
        assert f"{parts['KV, full'].device / MIB:.2f}" == f"{4352 * 4 / 16:.2f}"
        assert f"{parts['recurrent state'].device / MIB:.3f}" == f"{5 * 149.625 * 11 / 48:.3f}"

    @given(
        name=st.sampled_from(NAMES),
        ctx=st.integers(256, 300_000),
        more=st.integers(0, 100_000),
        slots=st.integers(1, 63),
        drafts=st.integers(0, 3),
        ubatch=st.sampled_from([64, 512, 2048]),
        gpu=st.booleans(),
    )
    @settings(max_examples=60, deadline=None)
    def test_more_of_anything_never_takes_less(
        self, name: str, ctx: int, more: int, slots: int, drafts: int, ubatch: int, gpu: bool
    ) -> None:
        # The search for the largest setting that fits goes by that.
        base = Wanted(ctx=ctx, slots=slots, kv="q8_0", ubatch=ubatch, drafts=drafts)
        machine = Machine(gpu=gpu, device_bytes=None)

        def takes(**change: int) -> int:
            return make(shape(name), replace(base, **change), machine).device  # type: ignore[arg-type]

        assert takes(ctx=ctx + more) >= takes()
        assert takes(slots=slots + 1) >= takes()
        assert takes(drafts=drafts + 1) >= takes()

    def test_the_margin_stays_free(self) -> None:
        plan = make(shape("llama-3.1-8b"), WANTED, HOST)
        exactly = replace(HOST, device_bytes=plan.device + HOST.margin)
        assert make(shape("llama-3.1-8b"), WANTED, exactly).free == 0
        assert not make(shape("llama-3.1-8b"), WANTED, replace(exactly, margin=HOST.margin + 1)).fits

    def test_pages_of_weights_that_were_copied_may_go(self) -> None:
        model, host = shape("llama-3.1-8b"), replace(HOST, device_bytes=20 * 2**30, cpu_flags=frozenset({"avx2"}))
        mapped, read = (make(model, replace(WANTED, mmap=mmap), host) for mmap in (True, False))
        copies = repacked(model, host.cpu_flags)
        assert mapped.device - mapped.needed == copies > 0
        assert read.device == read.needed == mapped.needed
        assert mapped.free == read.free

    def test_without_a_known_limit_everything_fits(self) -> None:
        plan = make(shape("llama-3.1-8b"), WANTED, HOST)
        assert plan.free is None and plan.fits

    def test_the_prompt_cache_and_a_projector_are_parts(self) -> None:
        gpu = Machine(gpu=True, device_bytes=None)
        parts = {part.name: part for part in make(shape("llama-3.1-8b"), WANTED, gpu, projector=5, arena=7).parts}
        assert (parts["projector"].device, parts["prompt cache"].host) == (5, 7)
        parts = {part.name: part for part in make(shape("llama-3.1-8b"), WANTED, HOST, arena=7).parts}
        assert parts["prompt cache"].device == 7

    def test_a_measured_compute_buffer_is_no_estimate(self) -> None:
        from lcpd.planning.compute import Compute

        plan = make(shape("llama-3.1-8b"), WANTED, HOST, Compute(123, 0))
        assert next((part.device, part.estimated) for part in plan.parts if part.name == "compute") == (123, False)

    def test_a_card_needs_room_for_copies_of_a_quantised_cache_in_f16(self) -> None:
        from lcpd.planning.compute import estimate

        model = shape("llama-3.1-8b")
        q8_0, f16 = (resolve(model, replace(WANTED, kv=kind)) for kind in ("q8_0", "f16"))
        more = estimate(model, q8_0, gpu=True).device - estimate(model, f16, gpu=True).device
        # K and V of one layer; without them the end of the graph is larger than a layer.
        assert 0 < more <= 2 * 131_072 * 2048
        assert estimate(model, q8_0, gpu=False) == estimate(model, f16, gpu=False)
