"""Whatever is in a file: it is described, or refused with a reason, and nothing else happens.

`LCPD_EXAMPLES=400 pytest tests/unit/inspect/test_inspect_fuzz.py` looks longer.
"""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from examples import examples
from lcpd.inspect.header import GgufError, read_header
from lcpd.inspect.report import as_json, inspect_file
from lcpd.inspect.text import rendered
from lcpd.paths import demo_model
from model_shapes import write_header

EXAMPLES = settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
SOME_KEYS = """
general.architecture general.alignment general.file_type general.type split.count split.no llama.block_count
llama.context_length llama.embedding_length llama.attention.head_count llama.expert_count tokenizer.ggml.tokens
tokenizer.ggml.eos_token_id tokenizer.chat_template clip.has_vision_encoder
"""
ARCHITECTURES = """
llama qwen35 qwen3next gemma3 gemma4 gpt-oss lfm2 falcon-h1 mamba2 rwkv7 nemotron_h granitehybrid kimi-linear llama4
deepseek2 minimax-01 exaone4 plamo2 brand-new
"""
LAYER_KEYS = """
context_length embedding_length block_count nextn_predict_layers feed_forward_length vocab_size attention.head_count
attention.head_count_kv attention.key_length attention.value_length attention.sliding_window
attention.sliding_window_pattern attention.recurrent_layers attention.shared_kv_layers full_attention_interval
ssm.conv_kernel ssm.inner_size ssm.state_size ssm.group_count ssm.time_step_rank shortconv.l_cache wkv.head_size
kda.head_dim expert_count expert_used_count rope.scaling.type rope.scaling.factor rope.dimension_sections
"""
EXTREMES = [0, 1, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF]


@pytest.fixture(scope="module")
def header() -> bytes:
    """That of the tiny hybrid."""
    return demo_model().read_bytes()[: read_header(demo_model()).length]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("fuzz") / "model.gguf"


def survives(path: Path, content: bytes, size: int) -> None:
    """Inspect a file that begins with `content`; what follows are zeros."""
    path.write_bytes(content)
    os.truncate(path, max(size, len(content)))
    try:
        report = inspect_file(path)
    except GgufError as error:
        assert str(error).startswith(f"{path}: ")
        return
    json.dumps(as_json(report), allow_nan=False)
    Console(file=io.StringIO(), width=100).print(rendered(report), markup=False, highlight=False)


@EXAMPLES
@given(changes=st.data())
def test_a_real_header_with_some_bytes_changed(header: bytes, file: Path, changes: st.DataObject) -> None:
    content = bytearray(header)
    # The vocabulary is most of the file: aim at what comes before and after it, too.
    begin, end = content.index(b"tokenizer.ggml.tokens"), content.index(b"token_embd.weight")
    ranges = [(0, begin), (begin, end), (end, len(content)), (0, len(content))]
    for _ in range(changes.draw(st.integers(1, 4))):
        low, high = changes.draw(st.sampled_from(ranges))
        at = changes.draw(st.integers(low, high - 9))
        value = changes.draw(st.sampled_from(EXTREMES) | st.integers(0, 255))
        width = changes.draw(st.sampled_from("BIQ"))
        mask = (1 << 8 * struct.calcsize(width)) - 1
        struct.pack_into(f"<{width}", content, at, value & mask)
    survives(file, bytes(content), demo_model().stat().st_size)


@EXAMPLES
@given(length=st.integers(0, 1 << 17), size=st.sampled_from([0, 1 << 20, 1 << 40]))
def test_a_real_header_that_ends_somewhere_with_nothing_or_zeros_behind_it(
    header: bytes, file: Path, length: int, size: int
) -> None:
    survives(file, header[:length], size)


KINDS = st.integers(0, 12)
TEXTS = st.binary(max_size=12).map(lambda value: struct.pack("<Q", len(value)) + value)
NUMBERS = st.sampled_from(EXTREMES) | st.integers(0, 40)
KEYS = st.sampled_from(SOME_KEYS.split()).map(lambda key: struct.pack("<Q", len(key)) + key.encode())


@st.composite
def key_values(draw: st.DrawFn) -> bytes:
    kind = draw(KINDS)
    if kind == 8:
        return draw(KEYS) + struct.pack("<I", kind) + draw(TEXTS)
    if kind == 9:
        body = struct.pack("<IQ", draw(KINDS), draw(NUMBERS)) + draw(st.binary(max_size=40))
        return draw(KEYS) + struct.pack("<I", kind) + body
    return draw(KEYS) + struct.pack("<IQ", kind, draw(NUMBERS))[: 4 + [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8][kind]]


@st.composite
def tensor_infos(draw: st.DrawFn) -> bytes:
    dimensions = draw(st.lists(NUMBERS, max_size=5))
    sizes = b"".join(struct.pack("<Q", size) for size in dimensions)
    kind = draw(st.integers(0, 45) | st.sampled_from([0xFFFFFFFF]))
    return draw(TEXTS) + struct.pack("<I", len(dimensions)) + sizes + struct.pack("<IQ", kind, draw(NUMBERS))


@EXAMPLES
@given(
    keys=st.lists(key_values(), max_size=8),
    tensors=st.lists(tensor_infos(), max_size=3),
    extra=st.tuples(NUMBERS, NUMBERS) | st.none(),
    size=st.sampled_from([0, 1 << 12, 1 << 40]),
)
def test_headers_made_of_the_right_parts_with_any_numbers(
    file: Path, keys: list[bytes], tensors: list[bytes], extra: tuple[int, int] | None, size: int
) -> None:
    n_tensors, n_keys = extra or (len(tensors), len(keys))
    start = b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_keys)
    survives(file, start + b"".join(keys) + b"".join(tensors), size)


@EXAMPLES
@given(
    architecture=st.sampled_from(ARCHITECTURES.split()),
    keys=st.dictionaries(
        st.sampled_from(LAYER_KEYS.split()),
        st.integers(0, 12)
        | st.sampled_from([512, 0xFFFFFFFF])
        | st.lists(st.integers(0, 8), min_size=1, max_size=8).map(tuple)
        | st.sampled_from([0.0, 1e30, float("inf"), float("nan"), True, "yarn"]),
    ),
)
def test_any_values_of_the_keys_that_describe_layers(file: Path, architecture: str, keys: dict[str, object]) -> None:
    needed: dict[str, object] = {"%.context_length": 64, "%.embedding_length": 32, "%.block_count": 8}
    path = write_header(file, architecture, needed | {f"%.{key}": value for key, value in keys.items()}, [])
    survives(path, path.read_bytes(), 0)
