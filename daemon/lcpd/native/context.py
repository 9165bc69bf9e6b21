"""One llama.cpp context with a unified KV cache: decoding and the state of its sequences.

The call orders here are the ones that are right on attention, sliding-window, hybrid and recurrent models; wrong
orders fail silently.  ``tests/native/test_state.py`` proves each of them.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Literal, cast

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from lcpd.native.log import LogCapture
from lcpd.native.model import Model, ModelError, Tokens
from lcpd.native.runs import CellRuns
from lcpd.native.segment import HEAD, Bytes, cells_in, describes

KV_TYPES = {
    "f32": llama.GGML_TYPE_F32,
    "f16": llama.GGML_TYPE_F16,
    "bf16": 30,  # ggml.h, GGML_TYPE_BF16; the bindings leave it out
    "q8_0": llama.GGML_TYPE_Q8_0,
    "q5_1": llama.GGML_TYPE_Q5_1,
    "q5_0": llama.GGML_TYPE_Q5_0,
    "q4_1": llama.GGML_TYPE_Q4_1,
    "q4_0": llama.GGML_TYPE_Q4_0,
}
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
_NO_MEMORY = -2
"""What llama_decode returns where a compute buffer could not be allocated (GGML_STATUS_ALLOC_FAILED)."""
_PARTIAL = llama.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
_BEFORE_SECTIONS = 8
"""Bytes of a sequence's state before its sections."""
_NO_CELLS = np.array([1, 0], "<u4").tobytes()
"""A section without cells, as exports of sliding-window models end."""


class CacheFull(RuntimeError):
    """There are not enough free cells for a batch; nothing was decoded."""


class DecodeError(RuntimeError):
    """libllama could not compute a batch; the state of its sequences is undefined."""


class OutOfMemory(RuntimeError):
    """libllama could not get the memory to compute a batch: only to be started again with less would help."""


class StateError(RuntimeError):
    """A sequence cannot be brought to the wanted position; it is undefined and must be cleared."""


@dataclass(frozen=True)
class ContextSettings:
    """How to make a context.  Lengths in tokens."""

    n_ctx: int
    n_seq: int
    n_batch: int
    n_ubatch: int
    threads: int
    kv_type: str = "f16"
    flash_attn: Literal["auto", "on", "off"] = "auto"
    output: Literal["logits", "vectors", "score"] = "logits"
    """What decoding gives: logits, a vector for every token, or the score of a reranker (a model that is none has no
    head for it, and gives the first number of a vector)."""


def parameters(settings: ContextSettings) -> Any:
    """The settings as libllama takes them: one context for all sequences, with a unified cache and short windows."""
    params = llama.llama_context_default_params()
    params.n_ctx = settings.n_ctx
    params.n_seq_max = settings.n_seq
    params.n_batch = settings.n_batch
    params.n_ubatch = settings.n_ubatch
    params.n_threads = settings.threads
    params.n_threads_batch = settings.threads
    params.type_k = params.type_v = KV_TYPES[settings.kv_type]
    params.flash_attn_type = FLASH_ATTENTION[settings.flash_attn]
    params.kv_unified = True
    params.swa_full = False
    if settings.output != "logits":
        params.embeddings = True
        rank = settings.output == "score"
        params.pooling_type = llama.LLAMA_POOLING_TYPE_RANK if rank else llama.LLAMA_POOLING_TYPE_NONE
    return params


class Context:
    """Owns a ``llama_context``; belongs to one thread."""

    def __init__(self, model: Model, settings: ContextSettings, log: LogCapture) -> None:
        """Raises ModelError when the context does not fit into memory or the settings do not go together."""
        log.errors.clear()
        log.flash_attention = None
        handle = llama.llama_init_from_model(model.handle, parameters(settings))
        if not handle:
            reason = "; ".join(log.errors) or "out of memory, or settings that do not go together"
            raise ModelError(f"no context of {settings.n_ctx} cells could be made: {reason}")
        self.handle: int = handle
        self._memory = llama.llama_get_memory(self.handle)
        self.n_ctx: int = llama.llama_n_ctx(self.handle)
        self.n_batch: int = llama.llama_n_batch(self.handle)
        self.n_ubatch: int = llama.llama_n_ubatch(self.handle)
        self.n_embd: int = llama.llama_model_n_embd_inp(model.handle)
        self._n_embd_out: int = llama.llama_model_n_embd_out(model.handle)
        self.generates = bool(self._memory) and bool(llama.llama_get_causal_attn(self.handle))
        """Whether a token sees those before it and no others; otherwise the model only embeds, whole texts at once."""
        self.scratch = settings.n_seq - 1
        """The sequence through which state is exported and imported; empty in between."""
        self.flash_attention = log.flash_attention
        """Whether it is used; None where libllama does not tell."""
        self.kind = model.kind
        self.rolls_back = self.kind == "attention"
        """Whether a sequence can be truncated anywhere without a checkpoint."""
        self._batch = _Batch(self.n_batch)
        self.runs = CellRuns(settings.n_seq)
        """Where the attention cells of the sequences lie; means nothing on recurrent models, which have none."""
        self._nothing_rolling = self._make_nothing_rolling()

    def close(self) -> None:
        """Free the context."""
        if self.handle:
            llama.llama_free(self.handle)
            self.handle = 0

    # ---- decoding --------------------------------------------------------------------------------------

    def decode(
        self,
        tokens: Tokens | list[int],
        positions: Tokens | list[int],
        seqs: int | Tokens | list[int],
        logits: npt.NDArray[np.int8] | int,
    ) -> None:
        """Decode one batch of at most `n_batch` tokens.

        `seqs` is one sequence id for all tokens, or one each; `logits` says whether logits are wanted, for all rows or
        for each.
        Raises CacheFull (nothing changed), DecodeError or OutOfMemory.
        """
        batch = self._batch.fill(len(tokens), positions, seqs, logits)
        self._batch.token[: len(tokens)] = tokens
        batch.token = self._batch.token_pointer
        batch.embd = None
        self._run(batch)
        self._wrote(positions, seqs)

    def decode_embeddings(self, vectors: npt.NDArray[np.float32], positions: Tokens, seq: int, last: bool) -> None:
        """As `decode`, with vectors of shape (count, n_embd) instead of tokens; `last` asks for the last logits."""
        logits = np.zeros(len(vectors), np.int8)
        logits[-1] = last
        batch = self._batch.fill(len(vectors), positions, seq, logits)
        data = np.ascontiguousarray(vectors, np.float32)
        batch.token = None
        batch.embd = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        self._run(batch)
        self._wrote(positions, seq)

    def _run(self, batch: Any) -> None:
        status = llama.llama_decode(self.handle, batch)
        if status == 1:
            raise CacheFull(f"no {batch.n_tokens} free cells")
        if status == _NO_MEMORY:
            raise OutOfMemory("llama_decode: out of memory")
        if status != 0:
            raise DecodeError(f"llama_decode returned {status}")

    def _wrote(self, positions: Tokens | list[int], seqs: int | Tokens | list[int]) -> None:
        if isinstance(seqs, int):
            self.runs.wrote(seqs, int(positions[0]), int(positions[-1]) + 1)
        else:
            self.runs.wrote_each(list(map(int, seqs)), list(map(int, positions)))

    def synchronize(self) -> None:
        """Wait until the last batch is computed (on a GPU decoding returns before that)."""
        llama.llama_synchronize(self.handle)

    def logits(self, row: int, n_vocab: int) -> npt.NDArray[np.float32]:
        """A copy of the logits of a batch row (-1: the last) that asked for them."""
        return self.logits_view(row, n_vocab).copy()

    def logits_view(self, row: int, n_vocab: int) -> npt.NDArray[np.float32]:
        """The logits themselves, which samplers read; valid until the next decode."""
        pointer = llama.llama_get_logits_ith(self.handle, row)
        if not pointer:
            raise DecodeError(f"row {row} has no logits")
        return np.ctypeslib.as_array(pointer, (n_vocab,))

    def vectors(self, count: int) -> npt.NDArray[np.float32]:
        """The vectors of the last batch's `count` tokens, of shape (count, width); valid until the next decode."""
        pointer = llama.llama_get_embeddings(self.handle)
        if not pointer:
            raise DecodeError("the batch has no vectors")
        return np.ctypeslib.as_array(pointer, (count, self._n_embd_out))

    def score(self, seq: int) -> float:
        """The reranker's score of what a sequence holds of the last batch."""
        pointer = llama.llama_get_embeddings_seq(self.handle, seq)
        if not pointer:
            raise DecodeError(f"sequence {seq} has no score")
        return float(pointer[0])

    # ---- sequences -------------------------------------------------------------------------------------

    def last_position(self, seq: int) -> int:
        """The highest position a sequence holds, -1 when it is empty."""
        return int(llama.llama_memory_seq_pos_max(self._memory, seq))

    def clear(self, seq: int) -> None:
        """Empty a sequence."""
        llama.llama_memory_seq_rm(self._memory, seq, -1, -1)
        self.runs.cut(seq, 0)

    def truncate(self, seq: int, length: int) -> None:
        """Keep positions below `length`, on models that roll back.  Raises StateError."""
        if not self.rolls_back:
            raise StateError("this model's sequences roll back only with a checkpoint")
        self.cut(seq, length)

    def cut(self, seq: int, length: int) -> None:
        """Remove positions from `length` on, of which the rolling state must know nothing.  Raises StateError."""
        if not llama.llama_memory_seq_rm(self._memory, seq, length, -1):
            raise StateError(f"sequence {seq} cannot be truncated to {length}")
        self.runs.cut(seq, length)

    def share(self, source: int, target: int, begin: int, end: int) -> None:
        """Let `target` hold the cells of `source` at positions [begin, end) too; neither is copied.

        `target` must hold nothing at these positions; recurrent state is shared whole, wherever it stands.
        """
        llama.llama_memory_seq_cp(self._memory, source, target, begin, end)
        self.runs.share(source, target, begin, end)

    def drop_rolling(self, seq: int, length: int) -> None:
        """Remove the recurrent or sliding-window state of a sequence, and all positions from `length` on.

        What is left is the attention KV, to which a checkpoint must be added before it is decoded.  Raises StateError.
        """
        if not self.rolls_back:
            nothing = self._nothing_rolling.copy()
            if self.kind == "swa":
                # A section without cells would change nothing, so one cell replaces the window, and is removed below.
                nothing[: HEAD.itemsize].view(HEAD)["position"] = length
            self.read_state(seq, nothing, partial=True)
        self.cut(seq, length)

    # ---- state as bytes --------------------------------------------------------------------------------

    def state_size(self, seq: int, partial: bool) -> int:
        """Bytes of a sequence's state; `partial`: only what cannot be truncated (recurrent, sliding window)."""
        return int(llama.llama_state_seq_get_size_ext(self.handle, seq, _PARTIAL if partial else 0))

    def write_state(self, seq: int, into: Bytes, partial: bool) -> None:
        """Write a sequence's state into exactly `state_size` bytes.  Raises StateError."""
        flags = _PARTIAL if partial else 0
        written = llama.llama_state_seq_get_data_ext(self.handle, _u8(into), len(into), seq, flags)
        if written != len(into):
            raise StateError(f"the state of sequence {seq} should have {len(into)} bytes, {written} were written")

    def read_state(self, seq: int, data: Bytes, partial: bool) -> None:
        """Replace a sequence's state (`partial`: its rolling state) by what `write_state` gave.

        Raises StateError where the bytes are refused; the sequence must then be cleared.  Bytes that are damaged
        in other ways than truncated are *not* refused, and give wrong logits.
        """
        flags = _PARTIAL if partial else 0
        read = llama.llama_state_seq_set_data_ext(self.handle, _u8(data), len(data), seq, flags)
        if read != len(data):
            what = "a checkpoint" if partial else "a segment"
            raise StateError(f"{what} of {len(data)} bytes was not accepted: no free cells, or of another context")

    def cells_in(self, segment: Bytes) -> int:
        """How many tokens' attention KV the bytes of a segment hold; recurrent models have none."""
        return 0 if self.kind == "recurrent" else cells_in(segment)

    def believable(self, segment: Bytes, begin: int, end: int) -> bool:
        """Whether libllama can read these bytes as the segment [begin, end) and go wrong in nothing but its values."""
        tails = {"attention": b"", "swa": _NO_CELLS, "hybrid": self._nothing_rolling[_BEFORE_SECTIONS:].tobytes()}
        return self.kind in tails and describes(segment, begin, end, tails[self.kind])

    def take_checkpoint(self, seq: int) -> Bytes:
        """The recurrent or sliding-window state of a sequence as it stands now."""
        data = np.empty(self.state_size(seq, partial=True), np.uint8)
        self.write_state(seq, data, partial=True)
        return data

    def restore_checkpoint(self, seq: int, checkpoint: Bytes, length: int) -> None:
        """Bring a sequence to `length`, where `checkpoint` was taken, if it holds the KV up to there.

        Raises StateError.
        """
        self.read_state(seq, checkpoint, partial=True)
        self.cut(seq, length)  # only after the state is back does removing the tail agree with it
        if self.last_position(seq) != length - 1:
            raise StateError(f"sequence {seq} ends at {self.last_position(seq)} instead of {length - 1}")

    def _make_nothing_rolling(self) -> Bytes:
        """What `read_state` takes to remove a sequence's rolling state."""
        if self.kind == "swa":
            self.decode([0], [0], self.scratch, logits=1)
        data = self.take_checkpoint(self.scratch)
        self.clear(self.scratch)
        return data


class _Batch:
    """Arrays for one ``llama_batch``, allocated once and filled with numpy."""

    def __init__(self, capacity: int) -> None:
        self.token = np.zeros(capacity, np.int32)
        self._pos = np.zeros(capacity, np.int32)
        self._seq = np.zeros(capacity, np.int32)
        self._count = np.ones(capacity, np.int32)
        self._logits = np.zeros(capacity, np.int8)
        # llama_batch.seq_id holds a pointer per token; each points at that token's entry of `_seq`.
        addresses = self._seq.ctypes.data + np.arange(capacity, dtype=np.uint64) * self._seq.itemsize
        self._seq_addresses = addresses.astype(np.uint64)
        int32_p = ctypes.POINTER(ctypes.c_int32)
        self.token_pointer = self.token.ctypes.data_as(int32_p)
        # The bindings type the struct's pointers as arrays.
        self._struct = cast(Any, llama.llama_batch())
        self._struct.pos = self._pos.ctypes.data_as(int32_p)
        self._struct.n_seq_id = self._count.ctypes.data_as(int32_p)
        self._struct.seq_id = self._seq_addresses.ctypes.data_as(ctypes.POINTER(int32_p))
        self._struct.logits = self._logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))

    def fill(
        self,
        n: int,
        positions: Tokens | list[int],
        seqs: int | Tokens | list[int],
        logits: npt.NDArray[np.int8] | int,
    ) -> Any:
        """The struct for `n` items; its `token` and `embd` are left for the caller."""
        if not 0 < n <= len(self.token):
            raise DecodeError(f"a batch of {n} tokens; 1 to {len(self.token)} are possible")
        self._pos[:n] = positions
        self._seq[:n] = seqs
        self._logits[:n] = logits
        self._struct.n_tokens = n
        return self._struct


def _u8(data: Bytes) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
