"""A model in several files."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from lcpd.inspect.header import GgufError
from lcpd.inspect.parts import read_model
from model_shapes import write_header

F32 = gguf.GGMLQuantizationType.F32


def part(folder: Path, index: int, count: int, *, total: int | None = None, tensor: str = "", name: str = "") -> Path:
    """Part `index` (from 0) of `count`, with one tensor."""
    metadata: dict[str, object] = {"split.no": index, "split.count": count}
    metadata["split.tensors.count"] = count if total is None else total
    if index == 0:
        metadata["%.block_count"] = 3
    path = folder / (name or f"m-{index + 1:05}-of-{count:05}.gguf")
    return write_header(path, "llama", metadata, [(tensor or f"t{index}", (32,), F32)])


def refusal(path: Path) -> str:
    with pytest.raises(GgufError) as error:
        read_model(path)
    return str(error.value)


def test_the_parts_of_a_split_model_are_read_together(tmp_path: Path) -> None:
    paths = [part(tmp_path, index, 3) for index in range(3)]
    model = read_model(paths[0])
    assert [tensor.name for tensor in model.tensors] == ["t0", "t1", "t2"]
    assert [entry.path for entry in model.parts] == paths
    assert [entry.tensors for entry in model.parts] == [1, 1, 1]
    assert model.nbytes == sum(path.stat().st_size for path in paths)
    assert model.metadata["llama.block_count"] == 3


def test_a_model_in_one_file_has_one_part(tmp_path: Path) -> None:
    path = write_header(tmp_path / "m.gguf", "llama", {}, [("t", (32,), F32)])
    assert [entry.path for entry in read_model(path).parts] == [path]


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    first = part(tmp_path, 0, 2)
    assert "m-00002-of-00002.gguf: part 2 of 2 is not here" in refusal(first)


def test_another_part_than_the_first_names_the_first(tmp_path: Path) -> None:
    assert "give m-00001-of-00002.gguf" in refusal(part(tmp_path, 1, 2))


def test_a_part_that_was_renamed_is_told_how_it_must_be_named(tmp_path: Path) -> None:
    assert "rename it to model-00001-of-00002.gguf" in refusal(part(tmp_path, 0, 2, name="model.gguf"))
    assert "rename it to m-00001-of-00002.gguf" in refusal(part(tmp_path, 0, 2, name="m-00001-of-00003.gguf"))


def test_a_part_of_another_model_is_found_out(tmp_path: Path) -> None:
    first = part(tmp_path, 0, 2)
    part(tmp_path, 1, 3, name="m-00002-of-00002.gguf")
    assert "it is not part 2 of 2" in refusal(first)


def test_parts_with_the_same_tensor_or_too_few_are_found_out(tmp_path: Path) -> None:
    first = part(tmp_path, 0, 2)
    part(tmp_path, 1, 2, tensor="t0")
    assert "the same tensor" in refusal(first)
    first = part(tmp_path, 0, 2, total=5)
    part(tmp_path, 1, 2)
    assert "should hold 5" in refusal(first)


@pytest.mark.parametrize("count", [0, 60000, "two"])
def test_an_absurd_number_of_parts_is_refused(tmp_path: Path, count: object) -> None:
    path = write_header(tmp_path / "m.gguf", "llama", {"split.count": count}, [])
    assert "split.count" in refusal(path)
