"""A daemon that chooses its context, and what it says of its memory when the model is loaded."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from lcpd.api.app import create_app
from lcpd.assembly.parts import start_parts
from lcpd.assembly.plan import make_plan
from lcpd.config import ConfigError, Settings
from lcpd.planning.plan import MIB
from support import model_path

pytestmark = pytest.mark.native


async def test_automatic_settings_are_chosen_and_the_load_is_as_it_was_planned() -> None:
    model = {"ref": str(model_path("hybrid")), "threads": 1, "ctx": "auto", "kv": "auto"}
    async with AsyncExitStack() as stack:
        context = await start_parts(make_plan(Settings(model=model, cache={"ram": 64 * MIB})), stack)  # type: ignore[arg-type]
        info = await context.dispatcher.model_info()
        chosen = context.settings.model
        assert (chosen.ctx, chosen.kv) == (info.n_ctx, "f16")
        assert info.n_ctx == info.n_ctx_train  # it is small, and fits wherever this test runs

        rows = context.memory.rows
        assert [row.name for row in rows] == ["weights", "KV", "recurrent state", "compute", "output", "sum"]
        assert all(row.equal for row in rows), rows

        client = await stack.enter_async_context(TestClient(TestServer(create_app(context))))
        health = await (await client.get("/health?verbose")).json()
        assert health["memory"] == {row.name: {"planned": row.planned, "loaded": row.loaded} for row in rows}
        assert "memory" not in await (await client.get("/health")).json()

        for row in rows[:-1]:
            for source, value in (("planned", row.planned), ("loaded", row.loaded)):
                labels = {"what": row.name, "source": source}
                assert context.metrics.registry.get_sample_value("lcpd_memory_bytes", labels) == value


def test_a_daemon_does_not_start_with_a_model_that_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(model_path("hybrid").read_bytes()[:-1])
    with pytest.raises(ConfigError, match=rf"^model\.ref: {path}: byte .* the download is not complete: continue it$"):
        make_plan(Settings(model={"ref": str(path)}))  # type: ignore[arg-type]
