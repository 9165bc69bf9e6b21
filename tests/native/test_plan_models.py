"""Plans for large models beside what libllama makes of files that have their headers and no weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcpd.build import require_active
from lcpd.inspect.shape import ModelShape
from lcpd.planning.compute import estimate
from lcpd.planning.context import Wanted, resolve
from lcpd.planning.dry_run import DryRunFailed, Request, Run, ask
from lcpd.planning.kv import caches
from lcpd.planning.loglines import Logged
from lcpd.planning.plan import MIB
from lcpd.planning.recurrent import state
from model_shapes import NAMES, shape, write

pytestmark = pytest.mark.native

SETTINGS = (
    Wanted(ctx=131_072, slots=1, kv="q8_0"),
    Wanted(ctx=4096, slots=1, kv="f16"),
    Wanted(ctx=32_768, slots=1, kv="q4_0", ubatch=128),
    Wanted(ctx=16_384, slots=1, kv="f16", flash_attn=False),
)


def asked(path: Path, model: ModelShape, settings: tuple[Wanted, ...]) -> list[Logged]:
    runs = []
    for wanted in settings:
        context = resolve(model, wanted)
        flash = "on" if wanted.flash_attn else "off"
        runs.append(Run(context.cells, context.sequences, wanted.batch, context.ubatch, wanted.kv, flash))
    return ask(Request(str(path), runs, real=False), require_active().lib_dir)[0]


@pytest.mark.parametrize("name", NAMES)
def test_cells_layers_and_sizes_are_those_that_libllama_logs(name: str, tmp_path: Path) -> None:
    model = shape(name)
    logged = asked(write(name, tmp_path, loadable=True), model, SETTINGS)
    for wanted, lines in zip(SETTINGS, logged, strict=True):
        context = resolve(model, wanted)
        assert [
            (cache.cells, cache.layers, f"{cache.k_bytes / MIB:.2f}", f"{cache.v_bytes / MIB:.2f}")
            for cache in caches(model, context)
        ] == [(line.cells, line.layers, f"{line.k_mib:.2f}", f"{line.v_mib:.2f}") for line in lines.caches]
        rows, line = state(model, context), lines.recurrent
        assert bool(rows.nbytes) == (line is not None)
        if line is not None:
            assert (f"{rows.r_bytes / MIB:.2f}", f"{rows.s_bytes / MIB:.2f}") == (
                f"{line.r_mib:.2f}",
                f"{line.s_mib:.2f}",
            )
        # An estimate that is too small would promise what does not fit.
        estimated, found = estimate(model, context, gpu=False).device / MIB, lines.total("compute")
        assert 0.99 * found <= estimated <= 1.7 * found, f"{wanted}: {estimated:.1f} for {found:.1f} MiB"


def test_a_file_that_libllama_refuses_is_told_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"no model")
    with pytest.raises(DryRunFailed, match=r"model\.gguf"):
        asked(path, shape("llama-3.1-8b"), SETTINGS[:1])


def test_a_context_that_libllama_refuses_is_told_with_its_reason(tmp_path: Path) -> None:
    path = write("llama-3.1-8b", tmp_path, loadable=True)
    with pytest.raises(DryRunFailed, match=r"no context of 4096 cells could be made: .*[Ff]lash"):
        asked(path, shape("llama-3.1-8b"), (Wanted(ctx=4096, kv="q8_0", flash_attn=False),))


def test_libllama_itself_logs_the_lines_of_the_real_qwen(tmp_path: Path) -> None:
    path = write("qwen3.6-27b", tmp_path, loadable=True)
    (logged,) = asked(path, shape("qwen3.6-27b"), (Wanted(ctx=131_072, slots=3, kv="q8_0"),))
    (cache,), line = logged.caches, logged.recurrent
    assert (cache.mib, cache.cells, cache.layers, cache.k_mib, cache.v_mib) == (4352.0, 131_072, 16, 2176.0, 2176.0)
    assert line is not None
    assert (line.mib, line.cells, line.r_mib, line.s_mib) == (598.5, 4, 22.5, 576.0)
