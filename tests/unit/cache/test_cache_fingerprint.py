"""Fingerprints: equal where states can be exchanged, and where they cannot the field that differs is named."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from lcpd.build.record import Build
from lcpd.cache.fingerprint import EDGE, ModelFile, difference, digest, fingerprint, read_model
from lcpd.config.settings import ModelSettings
from lcpd.engine.protocol import ModelInfo

FILE = ModelFile("1 bytes, abc", long_factors=False)
BUILD = Build("key", Path("/nowhere"), "cpu", "source @ commit", 1, "native", (), "")
SETTINGS = ModelSettings()
INFO = ModelInfo(
    description="",
    kind="hybrid",
    n_params=1,
    size_bytes=1,
    n_ctx=4096,
    n_ctx_train=4096,
    n_vocab=1,
    n_embd=1,
    n_batch=1,
    n_ubatch=1,
    threads=1,
    devices={},
    system="",
    build="",
    flash_attn=True,
)
OURS = fingerprint(FILE, BUILD, SETTINGS, INFO)


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def gguf(*tensors: str, values: bytes = b"", count: int = 0) -> bytes:
    infos = b"".join(
        string(name) + struct.pack("<IQQIQ", 2, 4, 4, 0, 64 * number) for number, name in enumerate(tensors)
    )
    return b"GGUF" + struct.pack("<IQQ", 3, len(tensors), count) + values + infos


VALUES = (
    string("general.name")
    + struct.pack("<I", 8)
    + string("a model")
    + string("rope.freq_base")
    + struct.pack("<If", 6, 10000.0)
    + string("tokens")
    + struct.pack("<IIQ", 9, 8, 2)
    + string("a")
    + string("bc")
    + string("scores")
    + struct.pack("<IIQ", 9, 6, 3)
    + bytes(12)
)
HEADER = gguf("token_embd.weight", "output.weight", values=VALUES, count=4)


# ---- fields ------------------------------------------------------------------------------------------------


def test_the_same_model_build_and_settings_have_the_same_fingerprint() -> None:
    again = fingerprint(FILE, BUILD, SETTINGS, INFO)
    assert difference(again, OURS) == ""
    assert digest(again) == digest(OURS)
    assert len(digest(OURS)) == 32


@pytest.mark.parametrize(
    ("other", "said"),
    [
        pytest.param(
            fingerprint(FILE, BUILD, SETTINGS.model_copy(update={"kv": "q8_0"}), INFO),
            "kv type (q8_0, now f16)",
            id="kv type",
        ),
        pytest.param(
            fingerprint(FILE, BUILD, SETTINGS, msgspec.structs.replace(INFO, flash_attn=False)),
            "flash attention (off, now on)",
            id="flash attention",
        ),
        pytest.param(
            fingerprint(FILE, BUILD, SETTINGS, msgspec.structs.replace(INFO, kind="swa")),
            "context type (swa, unified, now hybrid, unified)",
            id="context type",
        ),
        pytest.param(
            fingerprint(replace(FILE, identity="2 bytes, def"), BUILD, SETTINGS, INFO),
            "model file (2 bytes, def, now 1 bytes, abc)",
            id="model file",
        ),
        pytest.param(
            fingerprint(FILE, replace(BUILD, backend="cuda"), SETTINGS, INFO), "backend (cuda, now cpu)", id="backend"
        ),
        pytest.param(
            fingerprint(FILE, replace(BUILD, key="old"), SETTINGS, INFO),
            "llama.cpp (source @ commit, build old, now source @ commit, build key)",
            id="build",
        ),
    ],
)
def test_what_differs_is_named(other: dict[str, str], said: str) -> None:
    assert difference(other, OURS) == said
    assert digest(other) != digest(OURS)


def test_several_differences_are_all_named_also_of_fields_that_only_one_side_has() -> None:
    stored = {**OURS, "backend": "cuda", "lora": "x"}
    del stored["rope"]
    assert difference(stored, OURS) == (
        "backend (cuda, now cpu), rope (unknown, now the model's), lora (x, now unknown)"
    )


@pytest.mark.parametrize(
    "info",
    [
        msgspec.structs.replace(INFO, n_ubatch=64, n_batch=64, threads=7),
        msgspec.structs.replace(INFO, n_ctx=8192),
        msgspec.structs.replace(INFO, devices={"CUDA0": 3}),
    ],
)
def test_what_only_changes_the_order_of_sums_or_the_room_is_no_difference(info: ModelInfo) -> None:
    assert difference(fingerprint(FILE, BUILD, SETTINGS, info), OURS) == ""


@pytest.mark.parametrize(
    "change",
    [{"path": Path("/elsewhere")}, {"created": "later"}, {"devices": ("CPU", "CUDA0")}, {"abi": 2}],
    ids=lambda change: next(iter(change)),
)
def test_a_build_that_is_made_again_or_moved_keeps_the_cache(change: dict[str, object]) -> None:
    again = replace(BUILD, **change)  # type: ignore[arg-type]
    assert difference(OURS, fingerprint(FILE, again, SETTINGS, INFO)) == ""


def test_with_rope_factors_for_long_contexts_the_context_length_matters() -> None:
    long = replace(FILE, long_factors=True)
    stored = fingerprint(long, BUILD, SETTINGS, INFO)
    ours = fingerprint(long, BUILD, SETTINGS, msgspec.structs.replace(INFO, n_ctx=8192))
    assert difference(stored, ours) == "rope (by context length, 4096, now by context length, 8192)"


def test_where_libllama_does_not_tell_about_flash_attention_the_setting_counts() -> None:
    info = msgspec.structs.replace(INFO, flash_attn=None)
    stored = fingerprint(FILE, BUILD, SETTINGS, info)
    ours = fingerprint(FILE, BUILD, SETTINGS.model_copy(update={"flash_attn": "off"}), info)
    assert "flash attention (auto (asked for), now off (asked for))" in difference(stored, ours)


# ---- model files -------------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(HEADER + os.urandom(3 * EDGE))
    os.utime(path, ns=(1, 1))
    return path


def change(path: Path, at: int) -> None:
    """One byte, behind the back of the file's time."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("at", [0, len(HEADER) - 1, EDGE - 1, -EDGE, -1])
def test_a_byte_in_the_header_or_near_an_end_makes_it_another_model(model: Path, at: int) -> None:
    before = read_model(model)
    change(model, at)
    assert read_model(model) != before


def test_a_change_in_the_middle_is_seen_by_its_time(model: Path) -> None:
    before = read_model(model)
    change(model, 2 * EDGE)
    assert read_model(model) == before
    os.utime(model, ns=(2, 2))
    assert read_model(model) != before


def test_a_header_longer_than_a_mib_is_hashed_to_its_end(tmp_path: Path) -> None:
    values = string("tokens") + struct.pack("<IIQ", 9, 8, 60_000) + b"".join(string(f"{n:030}") for n in range(60_000))
    header = gguf("token_embd.weight", values=values, count=1)
    path = tmp_path / "model.gguf"
    path.write_bytes(header + bytes(3 * EDGE))
    os.utime(path, ns=(1, 1))
    assert len(header) > 2 * EDGE
    before = read_model(path)
    change(path, len(header) - 1)
    assert read_model(path) != before


def test_the_same_file_elsewhere_is_the_same_model(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(model.read_bytes())
    os.utime(other, ns=(1, 1))
    assert read_model(other) == read_model(model)


def test_every_part_of_a_split_model_counts(tmp_path: Path) -> None:
    parts = [tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    for part in parts:
        part.write_bytes(HEADER + bytes(200))
        os.utime(part, ns=(1, 1))
    before = read_model(parts[0])
    change(parts[1], -1)
    assert read_model(parts[0]) != before


def test_files_that_are_no_gguf_are_identified_too(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.write_bytes(b"")
    assert read_model(path).identity.startswith("0 bytes, ")


def test_rope_factors_for_long_contexts_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf("rope_factors_long.weight", "rope_factors_short.weight") + bytes(200))
    assert read_model(path).long_factors
    path.write_bytes(HEADER + bytes(200))
    assert not read_model(path).long_factors


@given(st.data())
@settings(max_examples=examples(100), deadline=None)
def test_files_with_damaged_headers_are_identified_too(file: Path, data: st.DataObject) -> None:
    damaged = bytearray(HEADER[: data.draw(st.integers(0, len(HEADER)))])
    for _ in range(data.draw(st.integers(0, 3)) if damaged else 0):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.sampled_from([0, 1, 8, 9, 127, 255]))
    file.write_bytes(damaged)
    assert read_model(file).identity.startswith(f"{len(damaged)} bytes, ")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "model.gguf"
