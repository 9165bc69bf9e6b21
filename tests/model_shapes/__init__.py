"""Real models without their weights: GGUF headers written from small tables, over data that is a hole in the file.

    from model_shapes import NAMES, shape, write

    shape("qwen3.6-27b")                  the `ModelShape` of a model, read back through the real code; remembered
    write("qwen3.6-27b", tmp_path)        its GGUF file, for a command that takes a path: full size, no disk space
    write(..., loadable=True)             one that llama.cpp itself loads without memory, to compare with
    for name in NAMES: ...                all of them

A table (tables.py) gives the metadata of a real file, with where each figure is from; the tensors follow from it as
llama.cpp's `load_arch_tensors` asks for them (tensors.py).  Quantisations: where a table says "approximated", the mix
of the real file differs from layer to layer and only its sum is right.  The models have no token list (`n_vocab` is
the embedding's rows), but else what a header has.
"""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import gguf
import numpy as np

from lcpd.inspect.parts import read_model
from lcpd.inspect.shape import ModelShape, shape_of
from model_shapes.tables import MODELS
from model_shapes.tensors import RECIPES, Dimensions

NAMES = tuple(MODELS)


@functools.cache
def shape(name: str) -> ModelShape:
    """The shape of one of the models, by way of a real file."""
    with tempfile.TemporaryDirectory() as folder:
        model = read_model(write(name, Path(folder)))
    return shape_of(model.metadata, model.tensors)


def write(name: str, folder: Path, *, loadable: bool = False) -> Path:
    """Write the file of one of the models into `folder`; it has its full size, and next to nothing on the disk.

    `loadable`: with dummy tokens instead of a tokenizer that has none, so that llama.cpp loads it (with `no_alloc`,
    `lcpd.native.model.ModelSettings(simulated=True)`, in a tenth of a second) and says what it makes of it.
    """
    table = MODELS[name]
    dummy = {"tokenizer.ggml.model": "none", "%.vocab_size": table.n_vocab}
    tensors = RECIPES[table.architecture](table.metadata, table.n_vocab)
    quants = [(re.compile(pattern), gguf.GGMLQuantizationType[quant]) for pattern, quant in table.quants]
    return write_header(
        folder / f"{name}.gguf",
        table.architecture,
        {"general.name": table.title, "%.attention.layer_norm_rms_epsilon": table.norm_epsilon}
        | dict(table.metadata)
        | (dummy if loadable else dict(table.tokenizer)),
        [(tensor, dimensions, _quant(tensor, dimensions, quants)) for tensor, dimensions in tensors],
    )


def write_header(
    path: Path,
    architecture: str,
    metadata: Mapping[str, object],
    tensors: Iterable[tuple[str, Dimensions, gguf.GGMLQuantizationType]],
) -> Path:
    """Any GGUF file without content.  Keys that begin with `%.` get the architecture in front; dimensions are in
    the order of ggml, the contiguous one first."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        _add(writer, f"{architecture}{key[1:]}" if key.startswith("%.") else key, value)
    size = 0
    for tensor, dimensions, quant in tensors:
        block, block_bytes = gguf.GGML_QUANT_SIZES[quant]
        nbytes = int(np.prod(dimensions)) // block * block_bytes
        writer.add_tensor_info(tensor, dimensions[::-1], np.dtype(np.float32), nbytes, raw_dtype=quant)
        size += -(-nbytes // 32) * 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    header = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(-(-header // 32) * 32 + size)
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case tuple():
            writer.add_array(key, list(value))
        case _:
            raise TypeError(f"{key}: {value!r}")


def _quant(
    tensor: str, dimensions: Dimensions, quants: list[tuple[re.Pattern[str], gguf.GGMLQuantizationType]]
) -> gguf.GGMLQuantizationType:
    """What a quantised file has: vectors, biases and convolutions stay F32, then the first rule that fits."""
    if len(dimensions) == 1 or tensor.endswith(".bias") or re.search(r"norm|conv1d|shortconv\.conv|ssm_[ad]$", tensor):
        return gguf.GGMLQuantizationType.F32
    return next(quant for pattern, quant in quants if pattern.search(tensor))
