"""Reading the header of one file: what is kept of it, and how every kind of damage is told."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import gguf
import pytest

from lcpd.inspect import header
from lcpd.inspect.header import Array, GgufError, read_header, strings_at
from model_shapes import write_header

F32, Q4_K = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q4_K
TEXT, ARRAY, U32 = 8, 9, 4


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: bytes, dimensions: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    sizes = b"".join(struct.pack("<Q", size) for size in dimensions)
    return text(name) + struct.pack("<I", len(dimensions)) + sizes + struct.pack("<IQ", kind, offset)


def file(
    folder: Path,
    *parts: bytes,
    keys: int = 0,
    tensors: int = 0,
    version: int = 3,
    data: int = 4096,
) -> Path:
    """A file that claims `keys` and `tensors`, has `parts`, and then zeros."""
    path = folder / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join(parts) + bytes(data))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(GgufError) as error:
        read_header(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert ";" in message  # and a remedy
    return message


# ---- what is kept ----------------------------------------------------------------------------------------


def test_metadata_and_tensors_are_those_that_were_written(tmp_path: Path) -> None:
    metadata = {"%.block_count": 2, "%.rope.freq_base": 1e6, "general.name": "a model", "tokenizer.ggml.add_bos": True}
    path = write_header(
        tmp_path / "m.gguf", "llama", metadata, [("token_embd.weight", (256, 3), Q4_K), ("x.weight", (5,), F32)]
    )
    read = read_header(path)
    assert read.metadata["general.architecture"] == "llama"
    assert read.metadata["llama.block_count"] == 2
    assert read.metadata["llama.rope.freq_base"] == 1e6
    assert read.metadata["general.name"] == "a model"
    assert read.metadata["tokenizer.ggml.add_bos"] is True
    embedding, vector = read.tensors
    assert (embedding.name, embedding.dimensions, embedding.quant) == ("token_embd.weight", (256, 3), "Q4_K")
    assert (embedding.elements, embedding.nbytes) == (768, 432)
    assert (vector.elements, vector.nbytes) == (5, 20)
    assert read.file_size == path.stat().st_size


def test_it_reads_what_the_gguf_package_reads(tmp_path: Path) -> None:
    kinds = [kind for kind in gguf.GGML_QUANT_SIZES if kind.name not in ("Q8_1", "Q8_K")]
    path = write_header(tmp_path / "m.gguf", "llama", {}, [(f"t.{kind.name}", (512, 7), kind) for kind in kinds])
    ours = [(t.name, t.dimensions, t.quant, t.elements, t.nbytes) for t in read_header(path).tensors]
    theirs = [
        (t.name, tuple(map(int, t.shape)), t.tensor_type.name, int(t.n_elements), int(t.n_bytes))
        for t in gguf.GGUFReader(path).tensors
    ]
    assert ours == theirs


def test_an_array_as_long_as_a_vocabulary_is_counted_and_not_kept(tmp_path: Path) -> None:
    path = write_header(
        tmp_path / "m.gguf",
        "llama",
        {"%.short": (1, 2, 3), "%.scores": tuple(map(float, range(2000))), "tokens": ("a", "b")},
        [],
    )
    read = read_header(path).metadata
    assert read["llama.short"] == Array("INT32", 3, (1, 2, 3), read["llama.short"].offset)  # type: ignore[union-attr]
    scores, tokens = read["llama.scores"], read["tokens"]
    assert isinstance(scores, Array) and isinstance(tokens, Array)
    assert (scores.count, scores.items) == (2000, None)
    assert (tokens.kind, tokens.count, tokens.items) == ("STRING", 2, None)


def test_single_texts_of_an_array_can_be_looked_up(tmp_path: Path) -> None:
    tokens = tuple(f"token {number}" for number in range(3000))
    path = write_header(tmp_path / "m.gguf", "llama", {"tokens": tokens}, [])
    array = read_header(path).metadata["tokens"]
    assert isinstance(array, Array)
    assert strings_at(path, array, [2999, 7, 3000]) == {7: "token 7", 2999: "token 2999"}


def test_a_text_that_is_longer_than_any_template_is_not_kept(tmp_path: Path) -> None:
    path = write_header(tmp_path / "m.gguf", "llama", {"huge": "x" * (header.TEXT_MAX + 1), "last": 7}, [])
    read = read_header(path).metadata
    assert isinstance(read["huge"], Array) and read["huge"].count == header.TEXT_MAX + 1
    assert read["last"] == 7


def test_bytes_that_are_no_utf_8_are_replaced(tmp_path: Path) -> None:
    path = file(tmp_path, key(b"general.name", TEXT, text(b"\xff\xfe!")), keys=1)
    assert read_header(path).metadata["general.name"] == "��!"


# ---- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"GGU", "does not begin with GGUF"),
        (b"<!DOCTYPE html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
        (b"PK\x03\x04....", "zip archive"),
        (b"tjgg" + bytes(40), "before GGUF"),
        (bytes(100), "not complete"),
        (struct.pack("<Q", 40) + b'{"__metadata__":{}}', "safetensors"),
        (b"GGUF", "4 bytes are needed here, and 0 are left"),
        (b"GGUF\x03\0\0\0\x01", "8 bytes are needed here, and 1 are left"),
    ],
)
def test_what_is_no_gguf_file_is_told_by_what_it_is(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert reason in refusal(path)


@pytest.mark.parametrize(
    ("version", "reason"), [(1, "convert the model again"), (4, "update lcpd"), (3 << 24, "big-endian")]
)
def test_versions_that_llama_cpp_does_not_read_are_refused(tmp_path: Path, version: int, reason: str) -> None:
    assert reason in refusal(file(tmp_path, version=version))


def test_a_folder_a_missing_file_and_a_pipe_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "a folder" in refusal(tmp_path)
    assert "No such file" in refusal(tmp_path / "missing.gguf")
    assert "not a regular file" in refusal(tmp_path / "pipe")


@pytest.mark.parametrize("count", [1 << 14, 1 << 30, (1 << 64) - 1])
def test_a_count_of_keys_that_the_file_cannot_hold_is_refused_before_it_is_read(tmp_path: Path, count: int) -> None:
    assert "number of metadata keys" in refusal(file(tmp_path, keys=count))


@pytest.mark.parametrize("count", [1 << 14, 1 << 40, (1 << 64) - 1])
def test_so_is_a_count_of_tensors(tmp_path: Path, count: int) -> None:
    assert "number of tensors" in refusal(file(tmp_path, tensors=count))


@pytest.mark.parametrize("length", [4200, 1 << 40, (1 << 64) - 1])
def test_and_the_length_of_a_text_or_an_array(tmp_path: Path, length: int) -> None:
    huge = struct.pack("<Q", length)
    assert "general.name" in refusal(file(tmp_path, key(b"general.name", TEXT, huge), keys=1))
    for inner in (U32, TEXT):
        array = key(b"numbers", ARRAY, struct.pack("<I", inner) + huge)
        assert "numbers" in refusal(file(tmp_path, array, keys=1))


def test_the_place_of_damage_is_named(tmp_path: Path) -> None:
    path = file(tmp_path, key(b"a", U32, struct.pack("<I", 1)), key(b"b", 99, b""), keys=2)
    assert "byte 54, b: the value type 99 is unknown" in refusal(path)


def test_arrays_of_arrays_empty_keys_and_keys_given_twice_are_refused(tmp_path: Path) -> None:
    one = key(b"a", U32, struct.pack("<I", 1))
    assert "array of arrays" in refusal(file(tmp_path, key(b"a", ARRAY, struct.pack("<IQ", ARRAY, 1)), keys=1))
    assert "key is empty" in refusal(file(tmp_path, key(b"", U32, bytes(4)), keys=1))
    assert "'a' is there twice" in refusal(file(tmp_path, one, one, keys=2))


@pytest.mark.parametrize("alignment", [0, 3, 48])
def test_an_alignment_that_is_no_power_of_two_is_refused(tmp_path: Path, alignment: int) -> None:
    path = file(tmp_path, key(b"general.alignment", U32, struct.pack("<I", alignment)), keys=1)
    assert "not a power of two" in refusal(path)


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        (tensor(b"x" * 64, (4,)), "at most 63 are allowed"),
        (tensor(b"x", (1, 1, 1, 1, 1)), "5 dimensions"),
        (tensor(b"x", (4,), kind=77), "the tensor type 77 is unknown"),
        (tensor(b"x", (4,), kind=31), "Q4_0_4_4 is unknown; get the model in another quantisation"),
        (tensor(b"x", (100,), kind=12), "no multiple of the 256 of a Q4_K block"),
        (tensor(b"x", (4,), offset=32), "its data is at 32, and should be at 0"),
        (tensor(b"x", (1 << 20,)), "the download is not complete"),
        (tensor(b"x", ((1 << 64) - 1,) * 4), "the download is not complete"),
    ],
)
def test_a_tensor_that_cannot_be_is_refused(tmp_path: Path, info: bytes, reason: str) -> None:
    assert reason in refusal(file(tmp_path, info, tensors=1))


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    both = tensor(b"x", (4,)), tensor(b"x", (4,), offset=32)
    assert "two tensors have one name" in refusal(file(tmp_path, *both, tensors=2))


def test_a_download_that_broke_off_is_told_by_its_size(tmp_path: Path) -> None:
    path = write_header(tmp_path / "m.gguf", "llama", {}, [("a", (256, 64), Q4_K), ("b", (256, 64), Q4_K)])
    with path.open("r+b") as opened:
        opened.truncate(path.stat().st_size - 1)
    message = refusal(path)
    assert f"b: its data ends at byte {path.stat().st_size + 1}" in message
    assert "continue it" in message


def test_every_cut_through_a_header_is_refused(tmp_path: Path) -> None:
    path = write_header(
        tmp_path / "m.gguf",
        "llama",
        {"%.a": 1, "%.b": ("x", "yz"), "%.c": (1, 2), "general.name": "name"},
        [("t", (32, 2), F32)],
    )
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)
        refusal(path)


# ---- bounds ----------------------------------------------------------------------------------------------


def test_a_header_that_goes_on_and_on_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header, "LENGTH_MAX", 4096)
    path = write_header(tmp_path / "m.gguf", "llama", {"%.numbers": tuple(range(2000))}, [])
    assert "cannot hold" in refusal(path)
    path = write_header(tmp_path / "m.gguf", "llama", {f"%.{i}": "x" * 600 for i in range(10)}, [])
    assert "longer than 4096 bytes" in refusal(path)


def test_texts_without_end_in_arrays_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header, "STEPS_MAX", 50)
    array = struct.pack("<IQ", TEXT, 51) + text(b"") * 51
    assert "more than 50 texts" in refusal(file(tmp_path, key(b"tokens", ARRAY, array), keys=1))


def test_what_is_kept_in_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header, "KEPT_MAX", 4096)
    path = write_header(tmp_path / "m.gguf", "llama", {"%.numbers": tuple(range(1000))}, [])
    assert "more than 4096 bytes of metadata" in refusal(path)
    path = write_header(tmp_path / "m.gguf", "llama", {f"%.{i}": "x" * 600 for i in range(10)}, [])
    assert "more than 4096 bytes of metadata" in refusal(path)


def test_control_characters_of_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = file(tmp_path, key(b"\x1b[2Jkey", 99, b""), keys=1)
    assert "\x1b" not in refusal(path)
