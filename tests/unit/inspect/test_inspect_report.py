"""The report as data and as text."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from rich.console import Console

from lcpd.inspect.header import GgufError
from lcpd.inspect.report import as_json, inspect_file
from lcpd.inspect.text import rendered
from lcpd.paths import demo_model
from model_shapes import NAMES, write, write_header

F16 = gguf.GGMLQuantizationType.F16
SMALL: dict[str, object] = {"%.context_length": 64, "%.embedding_length": 32, "%.block_count": 1}


def data(path: Path) -> Any:
    """The report as a reader of the JSON gets it."""
    return json.loads(json.dumps(as_json(inspect_file(path)), allow_nan=False))


def printed(path: Path) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(rendered(inspect_file(path)), markup=False, highlight=False)
    return out.getvalue()


def line(text: str, name: str) -> str:
    """What is printed after `name`."""
    return next(row[len(name) :].strip() for row in text.splitlines() if row.startswith(name))


class TestTheTinyHybrid:
    """A real, whole file."""

    def test_layers_and_state(self) -> None:
        report = data(demo_model())
        assert report["architecture"] == "qwen35"
        assert report["layers"]["attention"] == [3, 7]
        assert report["layers"]["recurrent"] == [0, 1, 2, 4, 5, 6]
        assert report["layers"]["mtp"] == 1
        assert report["recurrent"]["sequence_bytes"] == 116736
        assert report["kv_bytes_per_token_f16"] == {"attention": 1024, "sliding_window": 0}

    def test_tokenizer_with_the_texts_of_its_special_tokens(self) -> None:
        tokenizer = data(demo_model())["tokenizer"]
        assert (tokenizer["model"], tokenizer["pre"], tokenizer["tokens"]) == ("gpt2", "qwen35", 4096)
        assert tokenizer["special"]["eos"] == {"id": 4089, "text": "<|im_end|>"}

    def test_template(self) -> None:
        template = data(demo_model())["chat_template"]
        assert template["tools"] and template["system"]
        assert template["thinking"] == "switched by enable_thinking"

    def test_text(self) -> None:
        text = printed(demo_model())
        assert line(text, "layers") == "8: 2 attention, 6 recurrent; 3 recurrent + 1 attention, 2 times"
        assert "114.0 KiB a sequence in 6 layers" in line(text, "recurrent")
        assert "1 layer for multi-token prediction" in line(text, "mtp")


def test_the_mix_of_quantisations_is_shown_by_class_of_tensor(tmp_path: Path) -> None:
    classes = data(write("qwen3.6-27b", tmp_path))["weights"]["classes"]
    assert [entry["quant"] for entry in classes["ffn"]["quants"]] == ["Q4_K", "Q5_K", "Q6_K"]
    assert classes["output"]["bits_per_weight"] == 6.5625
    assert list(classes) == ["embedding", "output", "attention", "recurrent", "ffn", "norm", "mtp"]


def test_the_quantisation_is_named_by_the_file_and_by_its_name(tmp_path: Path) -> None:
    path = write("qwen3.6-27b", tmp_path).rename(tmp_path / "Qwen3.6-27B-UD-Q4_K_XL.gguf")
    assert line(printed(path), "quantisation").startswith("Q4_K_M (UD-Q4_K_XL by its name), 16.81 GiB, 5.29 bits")


@pytest.mark.parametrize(
    ("name", "context"),
    [
        (
            "llama-3.1-8b",
            "131,072 tokens; rope scaling (YaRN) can extend it, by 4 to 524,288, if its model card says so",
        ),
        ("gpt-oss-20b", "131,072 tokens, extended from 4,096 by rope scaling already (yarn, factor 32)"),
        ("gemma-3-27b", "131,072 tokens, extended by rope scaling already (linear, factor 8)"),
        ("mamba-codestral-7b", "1,048,576 tokens by its file; nothing in the model limits it"),
        ("granite-4.0-h-tiny", "1,048,576 tokens by its file; nothing in the model limits it"),
    ],
)
def test_native_and_extendable_context(name: str, context: str, tmp_path: Path) -> None:
    assert line(printed(write(name, tmp_path)), "context") == context


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        (
            "gemma-3-27b",
            "62: 10 attention, 52 sliding window of 1,024 tokens; 5 sliding window + 1 attention, over and over",
        ),
        ("lfm2-1.2b", "16: 6 attention, 10 recurrent; attention in 2, 5, 8, 10, 12, 14"),
        ("falcon-h1-7b", "44: 44 attention + recurrent"),
        ("granite-4.0-h-tiny", "40: 4 attention, 36 recurrent; 5 recurrent + 1 attention + 4 recurrent, 4 times"),
    ],
)
def test_the_order_of_layers_is_told_in_short(name: str, layers: str, tmp_path: Path) -> None:
    assert line(printed(write(name, tmp_path)), "layers") == layers


@pytest.mark.parametrize("name", NAMES)
def test_every_model_can_be_printed(name: str, tmp_path: Path) -> None:
    path = write(name, tmp_path)
    assert data(path)["kind"] == "model"
    assert "bits per weight" in printed(path)


def test_a_base_model_is_known_by_its_missing_template(tmp_path: Path) -> None:
    path = write("llama-3.1-8b", tmp_path)
    assert data(path)["chat_template"] is None
    assert "base model" in line(printed(path), "template")


def test_a_projector_beside_the_model_is_shown(tmp_path: Path) -> None:
    path = write("gemma-3-270m", tmp_path)
    (tmp_path / "mmproj-F16.gguf").touch()
    assert data(path)["projectors"] == [str(tmp_path / "mmproj-F16.gguf")]
    assert line(printed(path), "projector") == "mmproj-F16.gguf"


def test_a_projector_is_told_from_a_model(tmp_path: Path) -> None:
    keys: dict[str, object] = {
        "general.name": "Eye",
        "%.has_vision_encoder": True,
        "%.vision.projector_type": "qwen3vl_merger",
        "%.vision.block_count": 27,
        "%.vision.embedding_length": 1152,
        "%.vision.projection_dim": 5120,
        "%.vision.image_size": 768,
        "%.vision.patch_size": 16,
    }
    path = write_header(tmp_path / "mmproj.gguf", "clip", keys, [("v.blk.0.attn_q.weight", (32, 32), F16)])
    report = data(path)
    assert report["kind"] == "projector"
    assert report["projector"]["vision"]["output"] == 5120
    assert report["projector"]["audio"] is None
    assert list(report["weights"]["classes"]) == ["vision"]
    assert "images of 768 pixels in patches of 16, for models with embeddings of 5,120" in printed(path)


def test_what_is_no_model_is_refused_by_file_and_key(tmp_path: Path) -> None:
    path = write_header(tmp_path / "m.gguf", "llama", {"general.type": "adapter"}, [])
    with pytest.raises(GgufError, match=r"m\.gguf: this is an adapter"):
        inspect_file(path)
    path = write_header(tmp_path / "m.gguf", "llama", {"%.block_count": 1}, [])
    with pytest.raises(GgufError, match=r"m\.gguf: llama\.context_length is missing"):
        inspect_file(path)


def test_texts_of_a_hostile_file_cannot_command_the_terminal_nor_the_layout(tmp_path: Path) -> None:
    hostile = "\x1b]0;owned\x07[bold red]x[/] \n" + "y" * 5000
    keys = SMALL | {"general.name": hostile, "tokenizer.ggml.model": hostile, "tokenizer.ggml.pre": hostile}
    text = printed(write_header(tmp_path / "m.gguf", "llama", keys, []))
    assert "\x1b" not in text and "\x07" not in text
    assert "[bold red]x[/]" in text
    assert len(text) < 4000


def test_a_draft_model_may_have_nothing_but_layers_for_multi_token_prediction(tmp_path: Path) -> None:
    path = write_header(tmp_path / "m.gguf", "llama", SMALL | {"%.nextn_predict_layers": 1}, [])
    assert "draft model" in line(printed(path), "layers")


def test_an_unknown_file_type_is_shown_as_its_number(tmp_path: Path) -> None:
    path = write_header(tmp_path / "m.gguf", "llama", SMALL | {"general.file_type": 9999}, [])
    assert data(path)["file_type"] == "type 9999"


def test_a_special_token_that_the_file_does_not_have_has_no_text(tmp_path: Path) -> None:
    keys = SMALL | {"tokenizer.ggml.tokens": ("a", "b"), "tokenizer.ggml.eos_token_id": 7}
    path = write_header(tmp_path / "m.gguf", "llama", keys, [])
    assert data(path)["tokenizer"]["special"]["eos"] == {"id": 7, "text": None}
    assert line(printed(path), "special") == "eos 7"
