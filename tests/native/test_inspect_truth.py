"""What is read from headers, beside what llama.cpp makes of the same files.

llama.cpp tells each layer that it makes a cache or a state for (at debug level), and the sizes.  The real models of
tests/model_shapes have no weights: it loads them without allocating any, and checks every tensor's shape.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import pytest

from lcpd.inspect.header import read_header
from lcpd.inspect.parts import read_model
from lcpd.inspect.shape import ModelShape, shape_of
from model_shapes import NAMES, shape, write
from support import model_path

if TYPE_CHECKING:
    from lcpd.native.model import Model

pytestmark = pytest.mark.native

_SWA = re.compile(r"llama_kv_cache_iswa: creating\s+(non-)?SWA")
_KV = re.compile(r"llama_kv_cache: layer\s+(\d+): dev")
_STATE = re.compile(r"llama_memory_recurrent, layer\s+(\d+): dev")


class Lines:
    """libllama's log, all levels; the session's own capture comes back with `close`."""

    def __init__(self, before: object) -> None:
        import llama_cpp.llama_cpp as llama

        self._before = before
        self.text = ""
        self._callback = llama.llama_log_callback(self._add)
        llama.llama_log_set(self._callback, ctypes.c_void_p(0))

    def _add(self, _level: int, data: bytes, _user: object) -> None:
        self.text += data.decode("utf-8", "replace")

    def close(self) -> None:
        import llama_cpp.llama_cpp as llama

        llama.llama_log_set(self._before._callback, ctypes.c_void_p(0))  # type: ignore[attr-defined]

    def layers(self) -> dict[str, list[int]]:
        """The layers that have a whole cache, one for the window, and a state."""
        found: dict[str, list[int]] = defaultdict(list)
        cache = "attention"
        for line in self.text.splitlines():
            if match := _SWA.match(line):
                cache = "attention" if match[1] else "window"
            elif match := _KV.match(line):
                found[cache].append(int(match[1]))
            elif match := _STATE.match(line):
                found["recurrent"].append(int(match[1]))
        return found


@pytest.fixture
def lines(log: object) -> Iterator[Lines]:
    capture = Lines(log)
    yield capture
    capture.close()


def make_context(model: Model, n_ctx: int, n_seq: int, kv_type: str) -> None:
    """Make a context and free it.  Not lcpd's `Context`, which decodes: there may be no weights."""
    import llama_cpp.llama_cpp as llama

    from lcpd.native.context import ContextSettings, parameters

    settings = ContextSettings(
        n_ctx=n_ctx, n_seq=n_seq, n_batch=128, n_ubatch=128, threads=1, kv_type=kv_type, flash_attn="on"
    )
    handle = llama.llama_init_from_model(model.handle, parameters(settings))
    assert handle
    llama.llama_free(handle)


def agree(model: Model, expected: ModelShape, lines: Lines) -> None:
    """Sizes and kinds of layers are those that llama.cpp finds."""
    import llama_cpp.llama_cpp as llama

    assert llama.llama_model_size(model.handle) == expected.weights.nbytes
    assert llama.llama_model_n_params(model.handle) == expected.weights.elements
    assert llama.llama_model_n_layer(model.handle) == expected.n_layer
    assert llama.llama_model_n_ctx_train(model.handle) == expected.n_ctx_train
    assert llama.llama_model_n_embd(model.handle) == expected.n_embd
    assert model.n_vocab == expected.n_vocab
    bits = re.search(r"\(([\d.]+) BPW\)", lines.text)
    assert bits and bits[1] == f"{expected.weights.bits_per_weight:.2f}"
    make_context(model, 512, 2, "f16")
    found = lines.layers()
    assert found["attention"] == [layer.index for layer in expected.attention_layers]
    assert found["window"] == [layer.index for layer in expected.window_layers]
    assert found["recurrent"] == [layer.index for layer in expected.recurrent_layers]


@pytest.mark.parametrize("kind", ["attention", "swa", "hybrid", "recurrent"])
def test_real_files(kind: str, log: object, lines: Lines) -> None:
    from lcpd.native.model import Model, ModelSettings

    path = model_path(kind)
    read = read_model(path)
    model = Model(path, log, ModelSettings())  # type: ignore[arg-type]
    try:
        agree(model, shape_of(read.metadata, read.tensors), lines)
    finally:
        model.close()


@pytest.fixture
def weightless(log: object, lines: Lines, tmp_path: Path) -> Iterator[object]:
    from lcpd.native.model import Model, ModelSettings

    loaded: list[Model] = []

    def load(name: str) -> Model:
        path = write(name, tmp_path, loadable=True)
        loaded.append(Model(path, log, ModelSettings(simulated=True)))  # type: ignore[arg-type]
        return loaded[-1]

    yield load
    for model in loaded:
        model.close()


@pytest.mark.parametrize("name", NAMES)
def test_the_models_without_weights(name: str, weightless: object, lines: Lines) -> None:
    agree(weightless(name), shape(name), lines)  # type: ignore[operator]


def test_the_log_of_qwen36_27b_comes_out_to_the_last_digit(weightless: object, lines: Lines) -> None:
    """Issue 8: 131,072 cells in q8_0, 4 sequences."""
    make_context(weightless("qwen3.6-27b"), 131072, 4, "q8_0")  # type: ignore[operator]
    assert "size = 4352.00 MiB (131072 cells,  16 layers,  4/1 seqs), K (q8_0): 2176.00 MiB, V (q8_0): 2176.00 MiB" in (
        lines.text
    )
    assert "size =  598.50 MiB (     4 cells,  64 layers,  4 seqs" in lines.text
    assert "R (f32):   22.50 MiB, S (f32):  576.00 MiB" in lines.text


def test_block_sizes_are_those_of_ggml(tmp_path: Path) -> None:
    """Of all types, those of the `gguf` package and Q2_0, which it has not."""
    from lcpd.inspect.formats import QUANTS

    libggml = ctypes.CDLL(str(Path(os.environ["LLAMA_CPP_LIB_PATH"]) / "libggml-base.so"))
    libggml.ggml_type_size.restype = ctypes.c_size_t
    libggml.ggml_blck_size.restype = ctypes.c_int64
    libggml.ggml_type_name.restype = ctypes.c_char_p
    ours = {number: (name.lower(), block, size) for number, (name, block, size) in QUANTS.items()}
    theirs = {
        number: (
            libggml.ggml_type_name(number).decode().lower(),
            libggml.ggml_blck_size(number),
            libggml.ggml_type_size(number),
        )
        for number in ours
    }
    assert ours == theirs
    assert len(ours) == len(gguf.GGML_QUANT_SIZES) + 1


def test_a_header_ends_where_its_last_tensor_info_does() -> None:
    header = read_header(model_path("hybrid"))
    content = model_path("hybrid").read_bytes()
    assert content[: header.length].rfind(header.tensors[-1].name.encode()) > header.length - 100
