"""The plan beside what libllama allocates, for every KV type and several numbers of slots.

Sizes are compared as libllama's log gives them, to a hundredth of a MiB.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from lcpd.build import require_active
from lcpd.build.machine import read_cpu
from lcpd.cli.main import run as run_command
from lcpd.config.settings import KvType
from lcpd.inspect.parts import read_model
from lcpd.inspect.shape import ModelShape, shape_of
from lcpd.planning.compare import Row, compare
from lcpd.planning.compute import Compute
from lcpd.planning.context import Wanted, resolve
from lcpd.planning.dry_run import Request, Run, ask
from lcpd.planning.exported import checkpoint_bytes, segment_bytes
from lcpd.planning.kv import types_that_work
from lcpd.planning.loglines import Logged
from lcpd.planning.plan import MIB, Machine, MemoryPlan, make
from support import model_path

if TYPE_CHECKING:
    from lcpd.native.context import Context
    from lcpd.native.model import Model

pytestmark = pytest.mark.native

SLOTS = (1, 2, 4, 8)
KINDS = ("attention", "swa", "hybrid", "recurrent")


@dataclass(frozen=True)
class Case:
    """One context: the plan for it, and what was logged."""

    plan: MemoryPlan
    logged: Logged

    def row(self, name: str) -> Row:
        return next(row for row in compare(self.plan, self.logged) if row.name == name)


@dataclass(frozen=True)
class Loaded:
    """A model that was loaded once, and all contexts that were made of it."""

    shape: ModelShape
    size_bytes: int
    cases: tuple[Case, ...]


def all_settings(shape: ModelShape) -> list[Wanted]:
    common = {"ctx": 1024, "batch": 128, "ubatch": 128}
    found = [
        Wanted(**common, slots=slots, kv=kv)  # type: ignore[arg-type]
        for kv in types_that_work(shape, flash_attn=True)
        for slots in SLOTS
    ]
    return [*found, Wanted(**common, slots=2, kv="f16", flash_attn=False)]  # type: ignore[arg-type]


def run_for(shape: ModelShape, wanted: Wanted) -> Run:
    context = resolve(shape, wanted)
    flash = "on" if wanted.flash_attn else "off"
    return Run(context.cells, context.sequences, min(wanted.batch, context.ctx), context.ubatch, wanted.kv, flash)


@pytest.fixture(scope="module", params=KINDS)
def loaded(request: pytest.FixtureRequest) -> Loaded:
    path = model_path(request.param)
    shape = shape_of_kind(request.param)
    settings = all_settings(shape)
    runs = [run_for(shape, wanted) for wanted in settings]
    lib_dir = require_active().lib_dir
    simulated, _ = ask(Request(str(path), runs, real=False), lib_dir)
    real, size = ask(Request(str(path), runs, real=True), lib_dir)
    machine = Machine(gpu=False, device_bytes=None, cpu_flags=frozenset(read_cpu().features))
    cases = [
        Case(make(shape, wanted, machine, Compute(round(dry.total("compute") * MIB), 0)), logged)
        for wanted, dry, logged in zip(settings, simulated, real, strict=True)
    ]
    return Loaded(shape, size, tuple(cases))


def test_every_kv_type_that_is_offered_makes_a_context(loaded: Loaded) -> None:
    types: set[KvType] = {case.plan.context.kv for case in loaded.cases}
    assert types == {"f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"}


def test_the_weights_are_what_is_loaded(loaded: Loaded) -> None:
    assert loaded.shape.weights.nbytes == loaded.size_bytes
    for case in loaded.cases:
        assert case.row("weights").equal, case.row("weights")


def test_each_kv_cache_has_the_cells_layers_and_bytes_that_are_planned(loaded: Loaded) -> None:
    for case in loaded.cases:
        planned = [
            (cache.cells, cache.layers, f"{cache.k_bytes / MIB:.2f}", f"{cache.v_bytes / MIB:.2f}")
            for cache in case.plan.caches
        ]
        logged = [(line.cells, line.layers, f"{line.k_mib:.2f}", f"{line.v_mib:.2f}") for line in case.logged.caches]
        assert planned == logged


def test_the_recurrent_state_has_the_rows_and_bytes_that_are_planned(loaded: Loaded) -> None:
    for case in loaded.cases:
        line, state = case.logged.recurrent, case.plan.state
        if line is None:
            assert state.nbytes == 0
        else:
            assert (state.rows, f"{state.r_bytes / MIB:.2f}", f"{state.s_bytes / MIB:.2f}") == (
                line.cells,
                f"{line.r_mib:.2f}",
                f"{line.s_mib:.2f}",
            )


def test_a_simulated_load_finds_the_compute_buffers_of_a_real_one(loaded: Loaded) -> None:
    for case in loaded.cases:
        assert case.row("compute").equal and case.row("output").equal


def test_the_sum_is_within_two_per_cent(loaded: Loaded) -> None:
    for case in loaded.cases:
        total = case.row("sum")
        assert abs(total.planned - total.loaded) <= 0.02 * total.loaded, case.plan.wanted


@pytest.mark.parametrize("kv", ["f16", "q8_0"])
@pytest.mark.parametrize("kind", KINDS)
def test_segments_weigh_what_the_engine_measures(
    kind: str, kv: KvType, models: Callable[[str], Model], make_context: Callable[..., Context]
) -> None:
    from lcpd.engine.probe import measure  # loads libllama

    model = models(kind)
    context = make_context(model, n_ctx=1024, n_batch=64, n_ubatch=64, kv_type=kv, flash_attn="on")
    fixed, each = measure(model, context).segment_bytes
    for tokens in (1, 1000):
        assert segment_bytes(shape_of_kind(kind), tokens, kv) == fixed + tokens * each


@pytest.mark.parametrize("kv", ["f16", "q8_0"])
@pytest.mark.parametrize(("kind", "tokens"), [("swa", 100), ("swa", 576), ("hybrid", 576), ("recurrent", 576)])
def test_checkpoints_weigh_what_the_engine_writes(
    kind: str, tokens: int, kv: KvType, models: Callable[[str], Model], make_context: Callable[..., Context]
) -> None:
    context = make_context(models(kind), n_ctx=1024, n_batch=64, n_ubatch=64, kv_type=kv, flash_attn="on")
    for begin in range(0, tokens, 64):
        count = min(64, tokens - begin)
        context.decode([7] * count, list(range(begin, begin + count)), 0, logits=0)
    assert checkpoint_bytes(shape_of_kind(kind), tokens, kv) == context.state_size(0, partial=True)


@pytest.mark.parametrize("kind", ["swa", "hybrid"])
def test_weights_that_are_read_instead_of_mapped_are_there_once(kind: str) -> None:
    shape, wanted = shape_of_kind(kind), Wanted(ctx=1024, slots=1, ubatch=128, mmap=False)
    request = Request(str(model_path(kind)), [run_for(shape, wanted)], real=True, mmap=False)
    (logged,), _ = ask(request, require_active().lib_dir)
    machine = Machine(gpu=False, device_bytes=None, cpu_flags=frozenset(read_cpu().features))
    weights = next(row for row in compare(make(shape, wanted, machine), logged) if row.name == "weights")
    assert abs(weights.planned - weights.loaded) < 0.05 * MIB


def test_the_command_shows_plan_and_truth(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["plan", str(model_path("hybrid")), "--ctx", "4096", "--kv", "q4_0", "--compare", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in data["compared"]] == [
        "weights",
        "KV",
        "recurrent state",
        "compute",
        "output",
        "sum",
    ]
    assert all(abs(row["planned"] - row["loaded"]) <= 0.03 * MIB for row in data["compared"])
    assert not any(part["estimated"] for part in data["parts"])


def shape_of_kind(kind: str) -> ModelShape:
    gguf = read_model(model_path(kind))
    return shape_of(gguf.metadata, gguf.tensors)
