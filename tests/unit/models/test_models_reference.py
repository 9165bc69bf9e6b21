"""Model references: what they mean and where their files lie."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcpd.models import BadReference, ModelMissing, resolve
from lcpd.models.reference import Demo, File, Hub, Shard, parse
from lcpd.paths import Dirs, demo_model

NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True)


@pytest.fixture
def dirs(tmp_path: Path) -> Dirs:
    return Dirs(tmp_path / "config", tmp_path / "builds", tmp_path / "models", tmp_path / "cache")


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("demo:hybrid", Demo("hybrid")),
        ("demo:smollm2", Demo("smollm2")),
        ("demo:gemma3", Demo("gemma3")),
        ("hf:maker/model-GGUF", Hub("maker", "model-GGUF", None)),
        ("hf:maker/model.v2-GGUF:UD-Q4_K_XL", Hub("maker", "model.v2-GGUF", "UD-Q4_K_XL")),
        ("/models/a.gguf", File(Path("/models/a.gguf"))),
        ("a.GGUF", File(Path("a.GGUF"))),
        ("~/a.gguf", File(Path.home() / "a.gguf")),
        ("big-00001-of-00003.gguf", File(Path("big-00001-of-00003.gguf"))),
    ],
)
def test_each_form_is_understood(text: str, reference: object) -> None:
    assert parse(text) == reference


@pytest.mark.parametrize("text", ["", "model", "/models/a.bin", "demo:nothing", "demo:", "http://host/x"])
def test_what_is_no_reference_names_the_forms(text: str) -> None:
    with pytest.raises(BadReference, match=r"\.gguf file, demo:hybrid, demo:smollm2, demo:gemma3 or hf:OWNER/REPO\["):
        parse(text)


@pytest.mark.parametrize(
    "text", ["hf:", "hf:model", "hf:a/b/c", "hf:a/b:", "hf:../b", "hf:a/..", "hf:a/b:../q", "hf:a /b", "hf:/b"]
)
def test_a_wrong_hub_reference_names_its_form(text: str) -> None:
    with pytest.raises(BadReference, match="hf:OWNER/REPO:QUANT"):
        parse(text)


@pytest.mark.parametrize("text", ["~nobody-of-this-name/a.gguf", "~\0.gguf"])
def test_a_path_in_the_home_of_nobody_is_a_bad_reference(text: str) -> None:
    with pytest.raises(BadReference):
        parse(text)


def test_a_later_part_of_a_split_model_names_the_first() -> None:
    with pytest.raises(BadReference, match=r"give big-00001-of-00003\.gguf"):
        parse("dir/big-00002-of-00003.gguf")


@given(NAMES, NAMES, st.none() | NAMES)
def test_a_hub_reference_reads_back_from_its_text(owner: str, repo: str, quant: str | None) -> None:
    reference = Hub(owner, repo, quant)
    assert parse(str(reference)) == reference


@given(st.text() | st.text().map("hf:{}".format) | st.text().map("~{}.gguf".format))
def test_any_text_is_a_reference_or_a_bad_one(text: str) -> None:
    try:
        reference = parse(text)
    except BadReference:
        return
    if isinstance(reference, Hub):
        assert ".." not in (reference.owner, reference.repo, reference.quant)


@given(st.integers(1, 999))
def test_the_parts_of_a_split_model_are_recognised(count: int) -> None:
    first = f"m-00001-of-{count:05}.gguf"
    shard = Shard.of(first)
    assert shard == Shard("m", 1, count)
    assert shard.siblings()[0] == first
    assert len(shard.siblings()) == count


def test_the_hybrid_ships_with_the_package(dirs: Dirs) -> None:
    assert resolve("demo:hybrid", dirs) == demo_model()


def test_a_demo_model_that_was_not_pulled_says_how_to_get_it(dirs: Dirs) -> None:
    with pytest.raises(ModelMissing, match="lcpd pull demo:smollm2"):
        resolve("demo:smollm2", dirs)


def test_a_pulled_demo_model_is_found(dirs: Dirs) -> None:
    path = touch(dirs.models / "demo" / "SmolLM2-135M-Instruct.Q4_1.gguf")
    assert resolve("demo:smollm2", dirs) == path


def test_a_file_is_itself(tmp_path: Path, dirs: Dirs) -> None:
    path = touch(tmp_path / "a.gguf")
    assert resolve(str(path), dirs) == path


def test_a_file_that_is_not_there_is_named(tmp_path: Path, dirs: Dirs) -> None:
    with pytest.raises(ModelMissing, match=r"there is no file .*a\.gguf"):
        resolve(str(tmp_path / "a.gguf"), dirs)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.mkdir(), "is a folder, not a .gguf file"),
        (os.mkfifo, "is a named pipe, not a .gguf file"),
        (lambda path: path.symlink_to("/dev/null"), "is a device, not a .gguf file"),
        (lambda path: path.symlink_to(path), "is a symbolic link that leads back to itself"),
        (lambda path: path.symlink_to("gone.gguf"), "is a symbolic link to gone.gguf, which is not there"),
    ],
)
def test_what_is_there_and_is_no_file_is_said(
    make: Callable[[Path], None], said: str, tmp_path: Path, dirs: Dirs
) -> None:
    path = tmp_path / "a.gguf"
    make(path)
    with pytest.raises(ModelMissing, match=re.escape(f"{path} {said}; check the path")):
        resolve(str(path), dirs)


@pytest.mark.parametrize("name", ["x" * 300 + ".gguf", "a\0.gguf"])
def test_a_path_that_cannot_be_is_missing(name: str, tmp_path: Path, dirs: Dirs) -> None:
    with pytest.raises(ModelMissing, match="cannot be looked at"):
        resolve(str(tmp_path / name), dirs)


def test_a_split_model_needs_every_part(tmp_path: Path, dirs: Dirs) -> None:
    first = touch(tmp_path / "m-00001-of-00002.gguf")
    with pytest.raises(ModelMissing, match=r"m-00002-of-00002\.gguf"):
        resolve(str(first), dirs)
    touch(tmp_path / "m-00002-of-00002.gguf")
    assert resolve(str(first), dirs) == first


def test_a_pulled_hub_model_is_found_by_its_quant(dirs: Dirs) -> None:
    folder = dirs.models / "hf" / "maker" / "model-GGUF"
    path = touch(folder / "model-Q4_K_M.gguf")
    assert resolve("hf:maker/model-GGUF", dirs) == path
    touch(folder / "Q8_0" / "model-Q8_0.gguf")
    assert resolve("hf:maker/model-GGUF:q4_k_m", dirs) == path


def test_a_hub_model_that_was_not_pulled_says_how_to_get_it(dirs: Dirs) -> None:
    with pytest.raises(ModelMissing, match="lcpd pull hf:maker/model-GGUF:Q4_K_M"):
        resolve("hf:maker/model-GGUF:Q4_K_M", dirs)


def test_an_unfinished_download_is_no_model(dirs: Dirs) -> None:
    touch(dirs.models / "hf" / "maker" / "model-GGUF" / "model-Q4_K_M.gguf.0123456789abcdef.part")
    with pytest.raises(ModelMissing, match="lcpd pull"):
        resolve("hf:maker/model-GGUF", dirs)
