"""The official SDKs from npm drive every route of a real daemon; those from PyPI do so in tests/e2e."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.servers import Equal, run_lcpd
from clients_run import npm_modules, run_client

from lcpd.models import resolve
from lcpd.paths import dirs

pytestmark = pytest.mark.clients
OPENAI, ANTHROPIC = "openai@7.59.0", "@anthropic-ai/sdk@1.14.0"
SCRIPT = Path(__file__).with_name("sdk_smoke.mjs")
CALL = ["read_file", {"path": "src/cache.py"}]


@pytest.fixture
async def said(tmp_path: Path) -> dict:
    """What the SDKs were answered; they check the shapes."""
    (tmp_path / "node_modules").symlink_to(npm_modules(OPENAI, ANTHROPIC))
    script = tmp_path / SCRIPT.name
    script.write_text(SCRIPT.read_text())
    equal = Equal(
        model=resolve("demo:hybrid", dirs()),
        threads=1,
        ctx=32_768,
        batch=2048,
        ubatch=512,
        flash_attn="off",
        cache_ram=64,
        environment={"LCPD_MODEL__ALIAS": "it", "OMP_NUM_THREADS": "1"},
    )
    with run_lcpd(equal, tmp_path) as daemon:
        answer: dict = json.loads(
            await run_client(["node", str(script), daemon.url, "it"], tmp_path, HOME=str(tmp_path))
        )
    return answer


async def test_the_npm_sdks_drive_every_route(said: dict) -> None:
    for name in ("chat", "chatStream", "response", "responseStream", "message", "messageStream"):
        assert said[name] == CALL, name
    assert said["chatUsage"][0] == said["chatUsage"][1] > 0
    assert said["completion"] == said["completionStream"] != ""
    assert said["stored"] is True
    assert said["counted"] > 0
    assert said["countTokens"] > 0
    assert said["models"] == said["claudeModels"] == [said["model"]] == ["it"]
    assert len(said["embeddings"]) == 2
    assert said["embeddings"][0] == said["embeddings"][1] > 0
    assert said["openaiError"] == ["BadRequestError", 400, "context_length_exceeded"]
    assert said["claudeError"] == ["BadRequestError", 400, "invalid_request_error"]
