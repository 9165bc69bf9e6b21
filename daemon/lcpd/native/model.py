"""A loaded model (or only its vocabulary) and tokenisation."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from lcpd.native.log import LogCapture

Tokens = npt.NDArray[np.int32]
Kind = Literal["attention", "swa", "hybrid", "recurrent"]
Pooling = Literal["mean", "cls", "last", "rank"]
"""How the vectors of a text's tokens become one: the mean, the first, the last, or the score of a reranker."""
# llama.h, enum llama_pooling_type
_POOLINGS: dict[str, Pooling] = {"1": "mean", "2": "cls", "3": "last", "4": "rank"}


class ModelError(RuntimeError):
    """A model or context could not be made; the text ends with libllama's own last errors."""


@dataclass(frozen=True)
class ModelSettings:
    """How to load the weights."""

    gpu_layers: int = 0
    """Layers to offload; -1 for all."""
    tensor_split: tuple[float, ...] = ()
    main_gpu: int = 0
    mmap: bool = True
    mlock: bool = False
    simulated: bool = False
    """Allocate nothing and read no weights: only to learn what a context would take."""


class Model:
    """Owns a ``llama_model``.  Close it after everything that was made from it."""

    def __init__(
        self,
        path: Path,
        log: LogCapture,
        settings: ModelSettings | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        """Load weights with `settings`, or the vocabulary alone without.  Raises ModelError."""
        if not path.is_file():
            raise ModelError(f"{path}: no such file")
        log.layers.clear()
        log.memory.clear()
        log.errors.clear()
        params = llama.llama_model_default_params()
        if settings is None:
            params.vocab_only = True
        else:
            params.n_gpu_layers = settings.gpu_layers
            params.main_gpu = settings.main_gpu
            params.load_mode = _load_mode(settings)
            params.no_alloc = settings.simulated
            if settings.tensor_split:
                devices = llama.llama_max_devices()
                if len(settings.tensor_split) > devices:
                    raise ModelError(
                        f"model.tensor_split has {len(settings.tensor_split)} parts, at most {devices} work"
                    )
                shares = (ctypes.c_float * devices)(*settings.tensor_split)
                params.tensor_split = shares
            if on_progress is not None:
                report = on_progress

                def progress(fraction: float, _user: object) -> bool:
                    report(fraction)
                    return True

                self._progress = llama.llama_progress_callback(progress)
                params.progress_callback = self._progress
        handle = llama.llama_model_load_from_file(str(path).encode(), params)
        if not handle:
            raise ModelError(f"{path}: " + ("; ".join(log.errors) or "libllama could not load it"))
        self.handle: int = handle
        self.vocab: int = llama.llama_model_get_vocab(self.handle) or 0
        self.n_vocab: int = llama.llama_vocab_n_tokens(self.vocab)
        self.layers_by_device = dict(log.layers)
        self.end_tokens = frozenset(t for t in range(self.n_vocab) if llama.llama_vocab_is_eog(self.vocab, t))
        """The tokens that end a reply."""

    def close(self) -> None:
        """Free the model."""
        if self.handle:
            llama.llama_model_free(self.handle)
            self.handle = 0

    @property
    def kind(self) -> Kind:
        """What a sequence's state is made of."""
        if llama.llama_model_is_hybrid(self.handle):
            return "hybrid"
        if llama.llama_model_is_recurrent(self.handle):
            return "recurrent"
        return "swa" if llama.llama_model_n_swa(self.handle) > 0 else "attention"

    @property
    def pooling(self) -> Pooling | None:
        """How the model's file says that a text's vectors become one; None where it says nothing."""
        key = f"{self._value('general.architecture')}.pooling_type"
        return _POOLINGS.get(self._value(key))

    def _value(self, key: str) -> str:
        """A value of the file's metadata as text; "" where it has none."""
        buffer = ctypes.create_string_buffer(256)
        size = llama.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if size >= 0 else ""

    @property
    def description(self) -> str:
        """libllama's one-line description."""
        buffer = ctypes.create_string_buffer(256)
        llama.llama_model_desc(self.handle, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    @property
    def text_marks(self) -> tuple[str, str]:
        """The texts of the tokens that begin and end a text; "" where the vocabulary has none."""
        marks = llama.llama_vocab_bos(self.vocab), llama.llama_vocab_eos(self.vocab)
        pieces = [b"" if token < 0 else self.piece(token, special=True) for token in marks]
        return pieces[0].decode("utf-8", "replace"), pieces[1].decode("utf-8", "replace")

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> Tokens:
        """Token ids of `text`.  `add_special` adds BOS/EOS as the model asks; `parse_special` reads special tokens."""
        data = text.encode("utf-8", "surrogatepass")
        out = np.empty(len(data) + 16, np.int32)
        pointer = out.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        count = llama.llama_tokenize(self.vocab, data, len(data), pointer, len(out), add_special, parse_special)
        if count < 0:
            raise ModelError(f"the text of {len(data)} bytes could not be tokenised")
        return out[:count].copy()

    def piece(self, token: int, special: bool) -> bytes:
        """The bytes a token stands for; special tokens are empty unless `special`."""
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = llama.llama_token_to_piece(self.vocab, token, buffer, size, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            size = -count


def _load_mode(settings: ModelSettings) -> int:
    if settings.simulated:
        return llama.LLAMA_LOAD_MODE_NONE  # libllama cannot map a file without allocating
    if settings.mmap:
        return llama.LLAMA_LOAD_MODE_MMAP_MLOCK if settings.mlock else llama.LLAMA_LOAD_MODE_MMAP
    return llama.LLAMA_LOAD_MODE_MLOCK if settings.mlock else llama.LLAMA_LOAD_MODE_NONE
