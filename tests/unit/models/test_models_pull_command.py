"""``lcpd pull hf:...`` from the command line to the file that ``lcpd serve`` then finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub, serving

from lcpd.cli.main import run
from lcpd.models import resolve
from lcpd.paths import dirs


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("LCPD_HOME", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serving(FakeHub({"m-Q4_0.gguf": b"four", "m-Q8_0.gguf": b"eight"})) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        yield running


def test_a_pulled_model_is_where_serve_looks_for_it(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pull", "hf:maker/model-GGUF:q8_0"]) == 0
    path = resolve("hf:maker/model-GGUF:Q8_0", dirs())
    assert path.read_bytes() == b"eight"
    assert capsys.readouterr().out == f"{path}\n"


def test_the_token_comes_from_the_environment(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated = True
    assert run(["pull", "hf:maker/model-GGUF:q8_0"]) == 1
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert run(["pull", "hf:maker/model-GGUF:q8_0"]) == 0


def test_a_failed_pull_is_one_line_on_stderr(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pull", "hf:maker/model-GGUF"]) == 1
    captured = capsys.readouterr()
    expected = "lcpd: hf:maker/model-GGUF: it has several models; add one of these as :QUANT: Q4_0, Q8_0"
    assert captured.err.strip().splitlines() == [expected]
    assert captured.out == ""
