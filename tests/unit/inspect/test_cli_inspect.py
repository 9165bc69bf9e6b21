"""`lcpd inspect`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lcpd.cli.main import run
from model_shapes import write


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LCPD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")


def test_it_takes_the_same_references_as_serve(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "demo:hybrid"]) == 0
    assert "qwen35" in capsys.readouterr().out


def test_json_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "--json", str(write("qwen3.6-27b", tmp_path))]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["recurrent"]["sequence_bytes"] == 149.625 * (1 << 20)
    assert report["layers"]["attention"] == list(range(3, 64, 4))


def test_a_truncated_download_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write("llama-3.1-8b", tmp_path)
    os.truncate(path, 1 << 30)
    assert run(["inspect", str(path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"lcpd: {path}: byte ")
    assert line.endswith("and the file has 1073741824 bytes; the download is not complete: continue it")


def test_a_wrong_reference_and_a_missing_model_have_codes_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", "nonsense"]) == 2
    assert run(["inspect", str(tmp_path / "missing.gguf")]) == 1
    assert run(["inspect", "demo:smollm2"]) == 1
    assert "lcpd pull demo:smollm2" in capsys.readouterr().err
