"""The engine as lcpd's worker has it (model, context, decode loop) in this process, and the raw state calls.

Import it only where ``LLAMA_CPP_LIB_PATH`` names the build under test.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from lcpd.engine import protocol as p
from lcpd.engine.loop import DecodeLoop
from lcpd.engine.threads import free_cores
from lcpd.native import bridge
from lcpd.native.context import Bytes, Context, ContextSettings
from lcpd.native.log import LogCapture
from lcpd.native.model import Model, ModelSettings
from lcpd.paths import demo_model

Tokens = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]
PARTIAL = llama.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


@dataclass(frozen=True)
class Setting:
    """How the context is made; lengths in tokens."""

    n_ctx: int = 4096
    n_seq: int = 4
    n_batch: int = 2048
    n_ubatch: int = 512
    kv_type: str = "f16"
    flash_attn: Literal["auto", "on", "off"] = "auto"


class Backend:
    """The embedded model, on the GPU or on the CPU alone, and llama.cpp's log."""

    def __init__(self, gpu: bool) -> None:
        self.log = LogCapture()
        bridge.set_log_verbosity(0)
        llama.llama_backend_init()
        self.model = Model(demo_model(), self.log, ModelSettings(gpu_layers=-1 if gpu else 0))
        self.params = bridge.Params("--jinja")

    def engine(self, setting: Setting) -> Engine:
        """A context of its own; close it."""
        return Engine(self, setting)


class Engine:
    """One context and its decode loop."""

    def __init__(self, backend: Backend, setting: Setting) -> None:
        self.model = backend.model
        settings = ContextSettings(
            n_ctx=setting.n_ctx,
            n_seq=setting.n_seq,
            n_batch=setting.n_batch,
            n_ubatch=setting.n_ubatch,
            threads=free_cores(),
            kv_type=setting.kv_type,
            flash_attn=setting.flash_attn,
        )
        self.context = Context(self.model, settings, backend.log)
        self.said: list[p.FromWorker] = []
        self.loop = DecodeLoop(self.model, self.context, backend.params, self.said.append)
        self._memory: Any = llama.llama_get_memory(self.context.handle)

    def close(self) -> None:
        self.context.close()

    # ---- through the decode loop -----------------------------------------------------------------------

    def start(self, request: int, seq: int, prompt: Tokens, max_tokens: int, **fields: object) -> None:
        """Begin a greedy request on a sequence from its beginning."""
        self.loop.start(
            p.Start(
                model="check",
                request=request,
                seq=seq,
                tokens=p.pack(prompt),
                begin=0,
                fields=json.dumps({"temperature": 0, **fields}).encode(),
                max_tokens=max_tokens,
            )
        )

    def run(self) -> None:
        """Step until nothing runs.  Raises RuntimeError when a request failed."""
        while self.loop.running:
            self.loop.step()
        failed = [m.message for m in self.said if isinstance(m, p.Failed)]
        if failed:
            raise RuntimeError(f"a request failed: {failed[0]}")

    def finished(self, request: int) -> p.Finished:
        return next(m for m in self.said if isinstance(m, p.Finished) and m.request == request)

    def prefilled(self, request: int) -> int:
        """How many tokens of a request's prompt have been decoded."""
        return max((m.done for m in self.said if isinstance(m, p.Prefilled) and m.request == request), default=0)

    def generate(self, request: int, prompt: Tokens, max_tokens: int) -> Tokens:
        """The greedy reply to a prompt, on sequence 0, which is empty afterwards."""
        self.start(request, 0, prompt, max_tokens)
        self.run()
        self.context.clear(0)
        outputs = [o for m in self.said if isinstance(m, p.Step) for o in m.outputs]
        return np.array([t for o in outputs if o.request == request for t in o.tokens], np.int32)

    # ---- batches with pinned cuts ----------------------------------------------------------------------

    def decode(self, tokens: Tokens, begin: int, end: int, seq: int, rows: int = 1) -> Logits:
        """Decode tokens[begin:end] in one batch; the logits of its last `rows` tokens."""
        wanted = np.zeros(end - begin, np.int8)
        wanted[-rows:] = 1
        self.context.decode(tokens[begin:end], np.arange(begin, end, dtype=np.int32), seq, wanted)
        self.context.synchronize()
        picked = range(end - begin - rows, end - begin)
        return np.stack([self.context.logits(i, self.model.n_vocab) for i in picked])

    def prefill(self, tokens: Tokens, begin: int, end: int, seq: int) -> None:
        """Decode tokens[begin:end] in batches of `n_batch`, without looking at logits."""
        for at in range(begin, end, self.context.n_batch):
            self.decode(tokens, at, min(at + self.context.n_batch, end), seq)

    def replay(self, prompt: Tokens, reply: Tokens) -> Logits:
        """The logits from which each token of the reply was chosen, computed in one go on sequence 0."""
        tokens = np.concatenate([prompt, reply[:-1]])
        rows = self.decode(tokens, 0, len(tokens), 0, rows=len(reply))
        self.context.clear(0)
        return rows

    # ---- state -----------------------------------------------------------------------------------------

    def get(self, seq: int, flags: int = 0, into: Bytes | None = None) -> Bytes:
        """A sequence's state, in `into` where given (of exactly its size, which is then not asked for)."""
        if into is None:
            into = np.empty(llama.llama_state_seq_get_size_ext(self.context.handle, seq, flags), np.uint8)
        written = llama.llama_state_seq_get_data_ext(self.context.handle, _u8(into), len(into), seq, flags)
        if written != len(into):
            raise RuntimeError(f"{written} of {len(into)} bytes of sequence {seq} were written")
        return into

    def put(self, seq: int, data: Bytes, flags: int = 0) -> bool:
        """Give a sequence this state; False when it was refused (the sequence is then undefined)."""
        read: int = llama.llama_state_seq_set_data_ext(self.context.handle, _u8(data), len(data), seq, flags)
        return read == len(data)

    def share(self, source: int, target: int, begin: int, end: int) -> None:
        """Let `target` (empty before) hold the cells of `source` at positions [begin, end); -1 for all."""
        llama.llama_memory_seq_cp(self._memory, source, target, begin, end)

    def cut(self, seq: int, length: int) -> bool:
        """Remove positions from `length` on."""
        return bool(llama.llama_memory_seq_rm(self._memory, seq, length, -1))


def words(model: Model, seed: int, count: int) -> Tokens:
    """`count` tokens of text of the model's kind, another one for each seed."""
    rng = np.random.default_rng(seed)
    folders, verbs = ("src", "lib", "tests", "docs"), ("Read the file", "Search for x in", "Open")
    tokens: list[int] = []
    while len(tokens) < count:
        name = f"{rng.choice(verbs)} {rng.choice(folders)}/part{rng.integers(1000)}.py and say what is in it.\n"
        tokens += model.tokenize(name, add_special=False, parse_special=False).tolist()
    return np.array(tokens[:count], np.int32)


def difference(a: Logits, b: Logits) -> float:
    """The largest absolute difference; infinite where one is not finite."""
    return float(np.abs(a - b).max()) if np.isfinite(a).all() and np.isfinite(b).all() else float("inf")


def render(model: Model, params: bridge.Params, messages: Sequence[dict[str, Any]], tools: Sequence[object]) -> Tokens:
    """The tokens of a conversation in the model's own chat template."""
    chat = bridge.Chat(params, model.handle)
    prompt = chat.apply(json.dumps({"messages": list(messages), "tools": list(tools)}).encode())["prompt"]
    return model.tokenize(prompt, add_special=True, parse_special=True)


def _u8(data: Bytes) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
