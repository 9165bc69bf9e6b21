"""What a daemon makes of its settings before it loads the model, and of the load afterwards."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from lcpd.build.record import Build
from lcpd.config.settings import CacheSettings, ModelSettings, Settings
from lcpd.engine import protocol as p
from lcpd.inspect.shape import ModelShape, ShapeError
from lcpd.metrics import Metrics
from lcpd.planning import at_load, devices
from lcpd.planning.at_load import DoesNotFit, Unreadable, plan_load
from lcpd.planning.automatic import LEAST, chooser
from lcpd.planning.compute import Compute
from lcpd.planning.context import Wanted
from lcpd.planning.devices import arena_on, machine_for
from lcpd.planning.dry_run import DryRunFailed
from lcpd.planning.libllama import Libllama
from lcpd.planning.loaded import LoadedMemory
from lcpd.planning.plan import MIB, Machine, MemoryPlan, make
from lcpd.planning.solve import Planner
from lcpd.room import SPARE
from model_shapes import shape, write, write_header

GIB = 2**30
BUILD = Build("key", Path("build"), "cuda", "a commit", 1, "native", (), "2026-01-01")


def planner_for(name: str, gib: float) -> Planner:
    machine = Machine(gpu=True, device_bytes=int(gib * GIB))

    def plan(wanted: Wanted) -> MemoryPlan:
        return make(shape(name), wanted, machine)

    return plan


class TestChoices:
    """Qwen3.6-27B on cards of several sizes."""

    def chosen(self, gib: float, ctx: bool, kv: bool, **wanted: object) -> Wanted | None:
        start = Wanted(**{"ctx": LEAST, "kv": "f16", **wanted})  # type: ignore[arg-type]
        return chooser(shape("qwen3.6-27b"), start, ctx, kv)(planner_for("qwen3.6-27b", gib))

    def test_a_large_card_gets_the_whole_context_in_f16(self) -> None:
        assert self.chosen(48, ctx=True, kv=True) == Wanted(ctx=262_144, kv="f16")

    def test_a_smaller_one_gets_q8_0_and_what_fits(self) -> None:
        found = self.chosen(24, ctx=True, kv=True)
        assert found is not None and found.kv == "q8_0" and 131_072 < found.ctx < 262_144
        assert planner_for("qwen3.6-27b", 24)(found).fits

    def test_a_fixed_type_is_kept(self) -> None:
        found = self.chosen(24, ctx=True, kv=False)
        assert found is not None and found.kv == "f16" and found.ctx < 131_072

    def test_a_fixed_context_gets_the_most_exact_type(self) -> None:
        for tokens, kind in ((32_768, "f16"), (131_072, "q8_0")):
            found = chooser(shape("qwen3.6-27b"), Wanted(ctx=tokens), False, True)(planner_for("qwen3.6-27b", 24))
            assert found == Wanted(ctx=tokens, kv=kind)  # type: ignore[arg-type]

    def test_less_than_2048_tokens_are_not_worth_loading_for(self) -> None:
        assert self.chosen(17.5, ctx=True, kv=True) is None


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A host with 8 GiB free, and a libllama that cannot be asked."""
    machine = Machine(gpu=False, device_bytes=8 * GIB)

    def fail(self: Libllama, wanted: Wanted) -> Compute:
        raise DryRunFailed("no libllama here")

    monkeypatch.setattr(at_load, "machine_for", lambda *_: machine)
    monkeypatch.setattr(Libllama, "compute", fail)
    return machine


class TestLoads:
    def settings(self, **model: object) -> Settings:
        model = {"ubatch": 128, **model}
        return Settings(model=ModelSettings(**model), cache=CacheSettings(ram=GIB))  # type: ignore[arg-type]

    def test_settings_that_are_given_stay_and_are_planned(self, host: Machine, tmp_path: Path) -> None:
        settings = self.settings(ctx=8192)
        found = plan_load(settings, write("lfm2-1.2b", tmp_path), BUILD)
        assert found.settings == settings
        assert found.plan is not None and found.plan.context.ctx == 8192

    def test_automatic_ones_become_numbers(self, host: Machine, tmp_path: Path) -> None:
        found = plan_load(self.settings(ctx="auto", kv="auto"), write("llama-3.1-8b", tmp_path), BUILD)
        model = found.settings.model
        assert isinstance(model.ctx, int) and model.ctx > LEAST and model.kv == "q8_0"
        assert found.plan is not None and found.plan.fits and found.plan.context.ctx == model.ctx

    def test_what_libllama_says_is_used_where_it_can_be_asked(
        self, host: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write("llama-3.1-8b", tmp_path)
        before = plan_load(self.settings(ctx="auto"), path, BUILD).settings.model.ctx
        monkeypatch.setattr(Libllama, "compute", lambda self, wanted: Compute(GIB, 0))
        after = plan_load(self.settings(ctx="auto"), path, BUILD)
        assert after.plan is not None and after.plan.fits
        assert isinstance(before, int) and isinstance(after.settings.model.ctx, int)
        assert after.settings.model.ctx < before

    def test_what_cannot_fit_is_refused_with_remedies(self, host: Machine, tmp_path: Path) -> None:
        with pytest.raises(DoesNotFit) as caught:
            plan_load(self.settings(ctx=131_072), write("llama-3.1-8b", tmp_path), BUILD)
        fact, *remedies = str(caught.value).splitlines()
        assert "model.ctx = 131072" in fact and "8192 MiB free" in fact
        assert len(remedies) == 3 and all("gains" in remedy for remedy in remedies)

    def test_what_may_fit_is_tried(self, host: Machine, tmp_path: Path) -> None:
        # 4.6 GiB of weights are mapped, and 4.25 of KV alone have to be in memory.
        found = plan_load(self.settings(ctx=65_536, kv="q8_0"), write("llama-3.1-8b", tmp_path), BUILD)
        assert found.plan is not None and not found.plan.fits

    def test_weights_that_are_not_mapped_must_fit_too(self, host: Machine, tmp_path: Path) -> None:
        with pytest.raises(DoesNotFit):
            plan_load(self.settings(ctx=65_536, kv="q8_0", mmap=False), write("llama-3.1-8b", tmp_path), BUILD)

    @pytest.mark.parametrize("ctx", [0, "auto"])
    def test_a_file_that_is_cut_off_is_refused_with_the_place_and_the_remedy(
        self, ctx: object, host: Machine, tmp_path: Path
    ) -> None:
        path = write("llama-3.1-8b", tmp_path)
        os.truncate(path, GIB)
        with pytest.raises(Unreadable, match=rf"^{path}: byte .* the file has {GIB} bytes; .*: continue it$"):
            plan_load(self.settings(ctx=ctx), path, BUILD)

    @pytest.mark.parametrize("content", [b"", b"GGUF and nothing else", b"GGUF\3\0\0\0" + b"\xff" * 64, b"<html>"])
    def test_a_file_that_is_no_model_is_refused(self, content: bytes, host: Machine, tmp_path: Path) -> None:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        with pytest.raises(Unreadable, match=r"model\.gguf: .*; "):
            plan_load(self.settings(), path, BUILD)

    @pytest.mark.parametrize("keys", [{"general.architecture": "clip"}, {"general.type": "imatrix"}])
    def test_what_belongs_to_a_model_is_refused_as_one(
        self, keys: dict[str, str], host: Machine, tmp_path: Path
    ) -> None:
        path = write_header(tmp_path / "mmproj.gguf", keys.get("general.architecture", "llama"), keys, [])
        with pytest.raises(Unreadable, match=r"mmproj\.gguf: this is an? .*; give the model it belongs to$"):
            plan_load(self.settings(), path, BUILD)

    def test_metadata_that_cannot_be_planned_with_are_left_to_the_engine(
        self, host: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> ModelShape:
            raise ShapeError("llama.block_count is missing")

        monkeypatch.setattr(at_load, "shape_of", fail)
        path = write("llama-3.1-8b", tmp_path)
        assert plan_load(self.settings(), path, BUILD).plan is None
        with pytest.raises(DoesNotFit, match="needs a model that can be planned"):
            plan_load(self.settings(ctx="auto"), path, BUILD)

    def test_what_is_kept_in_ways_that_are_not_modelled_is_left_to_the_engine_too(
        self, host: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        odd = replace(shape("llama-3.1-8b"), unmodelled="an indexer key cache")
        monkeypatch.setattr(at_load, "shape_of", lambda *_: odd)
        path = write("llama-3.1-8b", tmp_path)
        assert plan_load(self.settings(ctx=131_072), path, BUILD).plan is None
        with pytest.raises(DoesNotFit, match="llama keeps an indexer key cache"):
            plan_load(self.settings(ctx="auto"), path, BUILD)

    def test_a_type_that_the_model_cannot_have_is_refused_with_those_that_it_can(
        self, host: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(at_load, "refusal", lambda *_: "q8_0 has blocks of 32")
        with pytest.raises(DoesNotFit, match=r"model\.kv: q8_0 has blocks of 32; choose one of f32, f16"):
            plan_load(self.settings(kv="q8_0"), write("lfm2-1.2b", tmp_path), BUILD)

    def test_where_free_memory_is_unknown_nothing_is_automatic(
        self, host: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(at_load, "machine_for", lambda *_: Machine(gpu=True, device_bytes=None))
        path = write("lfm2-1.2b", tmp_path)
        assert plan_load(self.settings(), path, BUILD).plan is not None
        with pytest.raises(DoesNotFit, match="needs a GPU that tells its free memory"):
            plan_load(self.settings(ctx="auto"), path, BUILD)


class TestMachines:
    def test_a_cuda_build_plans_for_the_free_memory_of_all_cards(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(devices, "_free_on_cards", lambda: [8 * GIB, 6 * GIB])
        assert machine_for(BUILD, None) == Machine(gpu=True, device_bytes=14 * GIB)

    @pytest.mark.parametrize(("build", "gpu_layers"), [(None, None), (replace(BUILD, backend="cpu"), None), (BUILD, 0)])
    def test_otherwise_it_is_the_host(
        self, build: Build | None, gpu_layers: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(devices, "_free_on_cards", lambda: [8 * GIB])
        found = machine_for(build, gpu_layers)
        assert not found.gpu and found.device_bytes is not None

    def test_a_cuda_build_without_a_card_plans_for_the_host(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(devices, "_free_on_cards", list)
        assert not machine_for(BUILD, None).gpu

    def test_vulkan_does_not_tell_what_is_free(self) -> None:
        assert machine_for(replace(BUILD, backend="vulkan"), None) == Machine(gpu=True, device_bytes=None)

    def test_the_arena_is_halved_as_the_daemon_halves_it(self) -> None:
        host = Machine(gpu=False, device_bytes=6 * GIB + SPARE)
        assert arena_on(host, 8 * GIB, 1 * GIB) == 4 * GIB
        assert arena_on(replace(host, gpu=True), 8 * GIB, 1 * GIB) == 8 * GIB


class TestAfterwards:
    PLAN = make(shape("lfm2-1.2b"), Wanted(ctx=4096, slots=1), Machine(gpu=False, device_bytes=None))

    def info(self, factor: float) -> p.ModelInfo:
        names = {
            "weights": "model",
            "KV, full": "KV",
            "recurrent state": "RS",
            "compute": "compute",
            "output": "output",
        }
        memory = {names[part.name]: {"CPU": part.device / MIB * factor} for part in self.PLAN.parts}
        return p.ModelInfo(
            description="", kind="hybrid", n_params=1, size_bytes=1, n_ctx=4096, n_ctx_train=4096, n_vocab=1, n_embd=1,
            n_batch=1, n_ubatch=1, threads=1, devices={}, system="", build="", memory=memory,
        )  # fmt: skip

    def test_both_are_in_the_metrics(self) -> None:
        metrics = Metrics()
        memory = LoadedMemory(self.PLAN, metrics)
        memory.on_model(self.info(1.0))
        assert [row.name for row in memory.rows] == ["weights", "KV", "recurrent state", "compute", "output", "sum"]
        assert all(row.equal for row in memory.rows)
        kv = {
            source: metrics.registry.get_sample_value("lcpd_memory_bytes", {"what": "KV", "source": source})
            for source in ("planned", "loaded")
        }
        assert kv["planned"] == self.PLAN.kv_bytes and kv["loaded"] == pytest.approx(self.PLAN.kv_bytes, rel=1e-3)

    def test_a_plan_that_was_too_small_is_told_in_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "lcpd"):
            for factor in (0.5, 1.0, 1.01):
                LoadedMemory(self.PLAN).on_model(self.info(factor))
            assert not caplog.records
            LoadedMemory(self.PLAN).on_model(self.info(1.1))
        assert "were planned" in caplog.text

    def test_without_a_plan_there_is_nothing_to_compare(self) -> None:
        memory = LoadedMemory(None)
        memory.on_model(self.info(1.0))
        assert memory.rows == []
