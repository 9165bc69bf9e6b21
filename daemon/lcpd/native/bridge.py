"""ctypes bindings of ``liblcpd_bridge`` (``llama.cpp/bridge/lcpd_bridge.h`` holds the contracts).

Objects here own their native handle and free it with themselves.  JSON travels as ``bytes`` where the caller may
pass it on unread, and as Python objects where it is used here.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from lcpd.native import ABI

Tokens = npt.NDArray[np.int32]

_P = ctypes.c_void_p
_S = ctypes.c_char_p
_I = ctypes.c_int32
_ERR = ctypes.POINTER(ctypes.c_void_p)

# name -> (result, arguments without the error slot, fails?).  `_P` results of failing calls are handles or texts.
_SIGNATURES: dict[str, tuple[Any, list[Any], bool]] = {
    "abi": (_I, [], False),
    "build": (_S, [], False),
    "free": (None, [_P], False),
    "log_verbosity": (None, [_I], False),
    "selftest_matmul": (_I, [], True),
    "pin_host": (_I, [_P, ctypes.c_uint64], True),
    "unpin_host": (_I, [_P], True),
    "params_new": (_P, [_S], True),
    "params_free": (None, [_P], False),
    "chat_new": (_P, [_P, _P, _S, _S], True),
    "chat_free": (None, [_P], False),
    "chat_info": (_P, [_P], True),
    "chat_convert": (_P, [_I, _S], True),
    "chat_apply": (_P, [_P, _S], True),
    "request_new": (_P, [_P, _P, _S], True),
    "request_free": (None, [_P], False),
    "request_info": (_P, [_P], True),
    "request_probe_grammar": (_I, [_P], True),
    "request_spans": (_I, [_P, _P, _I, _P, _I], True),
    "request_parse": (_P, [_P, _S, _I, _I], True),
    "stream_new": (_P, [_P], True),
    "stream_free": (None, [_P], False),
    "stream_push": (_P, [_P, _S, _I, _I], True),
    "sampler_new": (_P, [_P, _P], True),
    "sampler_clone": (_P, [_P], True),
    "sampler_free": (None, [_P], False),
    "sampler_reset": (None, [_P], False),
    "sampler_describe": (_P, [_P], True),
    "sampler_accept_prompt": (_I, [_P, _P, _I], True),
    "sampler_accept": (_I, [_P, _I], True),
    "sampler_step_many": (_I, [_I, _P, _P, _P, _P], True),
    "sampler_error": (_S, [_P], False),
    "sampler_verify": (_I, [_P, _P, _P, _P, _I, _P], True),
    "sampler_probs": (_I, [_P, _P, _I, _I, _I, _I, _P, _P, _P], True),
    "sampler_end_reasoning": (_I, [_P], False),
    "spec_new": (_P, [_P, _P, _P, ctypes.c_uint32], True),
    "spec_free": (None, [_P], False),
    "spec_context": (_P, [_P], False),
    "spec_n_max": (_I, [_P], False),
    "spec_begin": (_I, [_P, _I, _P, _I], True),
    "spec_process": (_I, [_P, _I, _P, _P, _P, _P], True),
    "spec_want": (_I, [_P, _I, _I, _I, _I, _P, _I], True),
    "spec_draft": (_I, [_P], True),
    "spec_result": (_I, [_P, _I, _P, _I], True),
    "spec_accept": (_I, [_P, _I, _I], True),
}

DIALECTS = {"chat": 0, "responses": 1, "anthropic": 2}
IMPOSSIBLE = -9999.0
"""The logarithm told for a probability of 0, as OpenAI does."""
ROLES = {1: "system", 2: "assistant", 3: "user", 4: "tool"}


class BridgeError(ValueError):
    """A bridge call failed; the text is llama.cpp's own explanation."""


def _open() -> ctypes.CDLL:
    folder = os.environ.get("LLAMA_CPP_LIB_PATH")
    if not folder:
        raise BridgeError("LLAMA_CPP_LIB_PATH is not set: it must name the lib folder of an lcpd build")
    # llama_cpp loads libllama and its dependencies from the same variable, so that both map a single copy.
    import llama_cpp.llama_cpp  # noqa: F401

    lib = ctypes.CDLL(str(Path(folder) / "liblcpd_bridge.so"))
    for name, (result, arguments, fails) in _SIGNATURES.items():
        function = getattr(lib, f"lcpd_{name}")
        function.restype = result
        function.argtypes = [*arguments, _ERR] if fails else arguments
    if lib.lcpd_abi() != ABI:
        raise BridgeError(f"the compiled bridge speaks ABI {lib.lcpd_abi()}, this lcpd needs {ABI}: run `lcpd build`")
    return lib


_lib = _open()


def _call(name: str, *arguments: Any) -> Any:
    """Call a failing function; return its result or raise BridgeError with its text."""
    error = ctypes.c_void_p()
    result = getattr(_lib, f"lcpd_{name}")(*arguments, ctypes.byref(error))
    if error.value:
        raise BridgeError(_take(error.value).decode("utf-8", "replace"))
    return result


def _take(pointer: int) -> bytes:
    """The bytes of a text the bridge allocated, which is freed."""
    try:
        return ctypes.string_at(pointer)
    finally:
        _lib.lcpd_free(pointer)


def _text(name: str, *arguments: Any) -> bytes:
    return _take(_call(name, *arguments))


def _pointer(array: npt.NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def build_info() -> str:
    """llama.cpp's own version text."""
    return bytes(_lib.lcpd_build()).decode()


def set_log_verbosity(level: int) -> None:
    """How much llama.cpp's common library logs (0 is errors only)."""
    _lib.lcpd_log_verbosity(level)


def selftest_matmul() -> None:
    """Raise BridgeError unless every ggml device computes a small matrix product right."""
    _call("selftest_matmul")


def pin_host(data: npt.NDArray[np.uint8]) -> bool:
    """Pin the pages of an array for copies to and from CUDA devices, until `unpin_host`.

    False where there are none.  Raises BridgeError where CUDA refuses; nothing has changed then.
    """
    return bool(_call("pin_host", _pointer(data), data.nbytes))


def unpin_host(data: npt.NDArray[np.uint8]) -> None:
    """Undo `pin_host`.  Raises BridgeError."""
    _call("unpin_host", _pointer(data))


def convert(dialect: str, body: bytes) -> bytes:
    """A body of another dialect ("responses", "anthropic") as a chat-completions body."""
    return _text("chat_convert", DIALECTS[dialect], body)


class _Handle:
    """Owns one native handle."""

    _free: str

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def close(self) -> None:
        """Free the native object; calling it again does nothing."""
        if getattr(self, "handle", None):
            getattr(_lib, self._free)(self.handle)
            self.handle = 0

    def __del__(self) -> None:
        self.close()


class Params(_Handle):
    """Server-wide defaults, given as llama-server style flags (an allow-list of them)."""

    _free = "lcpd_params_free"

    def __init__(self, *flags: str) -> None:
        super().__init__(_call("params_new", msgspec.json.encode(list(flags))))


class Chat(_Handle):
    """A model's chat template.  `model` is a ``llama_model *``; `template` overrides the model's own."""

    _free = "lcpd_chat_free"

    def __init__(self, params: Params, model: int | None, template: str | None = None) -> None:
        text = None if template is None else template.encode()
        super().__init__(_call("chat_new", params.handle, model, text, b"{}"))

    def info(self) -> dict[str, Any]:
        """``caps``, ``supports_thinking``, ``explicit`` and ``source`` of the template."""
        return _object(_text("chat_info", self.handle))

    def apply(self, body: bytes) -> dict[str, Any]:
        """A chat-completions body rendered: the fields for :class:`Request`, and ``prompt``."""
        return _object(_text("chat_apply", self.handle, body))


class Request(_Handle):
    """The evaluated fields of one request.  `model` must outlive it."""

    _free = "lcpd_request_free"

    def __init__(self, params: Params, model: int, fields: bytes) -> None:
        super().__init__(_call("request_new", params.handle, model, fields))

    def info(self) -> dict[str, Any]:
        """``stop``, ``n_predict``, ``ignore_eos``, ``preserved_tokens``, ``n_probs``, ``post_sampling_probs``.

        ``settings`` has all fields that were evaluated, as llama-server's ``generation_settings``.
        """
        return _object(_text("request_info", self.handle))

    def probe_grammar(self) -> None:
        """Apply the grammar once to the whole vocabulary, which can take minutes for a bad one."""
        _call("request_probe_grammar", self.handle)

    def spans(self, tokens: Tokens) -> list[tuple[str, int, int]]:
        """The messages of a tokenised prompt as (role, begin, length), in order."""
        capacity = 64
        while True:
            out = np.empty((capacity, 3), np.int32)
            count = _call("request_spans", self.handle, _pointer(tokens), len(tokens), _pointer(out), capacity)
            if count <= capacity:
                return [(ROLES.get(role, "unknown"), begin, size) for role, begin, size in out[:count].tolist()]
            capacity = count

    def parse(self, text: str, partial: bool = False) -> dict[str, Any]:
        """A reply as an OpenAI message."""
        data = text.encode()
        return _object(_text("request_parse", self.handle, data, len(data), int(partial)))


class Stream(_Handle):
    """The incremental parser of one reply."""

    _free = "lcpd_stream_free"

    def __init__(self, request: Request) -> None:
        super().__init__(_call("stream_new", request.handle))

    def push(self, text: str, final: bool = False) -> dict[str, Any]:
        """Add text; return ``deltas`` (OpenAI chat deltas) and, when final, ``message``."""
        data = text.encode()
        return _object(_text("stream_push", self.handle, data, len(data), int(final)))


class Sampler(_Handle):
    """The sampler chain of one sequence; belongs to one thread."""

    _free = "lcpd_sampler_free"

    def __init__(self, request: Request, model: int) -> None:
        super().__init__(_call("sampler_new", request.handle, model))

    def describe(self) -> str:
        """The chain in llama.cpp's words."""
        return _text("sampler_describe", self.handle).decode()

    def error(self) -> str:
        """Why the last step failed."""
        return bytes(_lib.lcpd_sampler_error(self.handle)).decode("utf-8", "replace")

    def accept_prompt(self, tokens: Tokens) -> None:
        """Tell the penalties about the prompt."""
        _call("sampler_accept_prompt", self.handle, _pointer(tokens), len(tokens))

    def accept(self, token: int) -> None:
        """Tell the chain about a token that was generated earlier; draws the random number that sampling it took."""
        _call("sampler_accept", self.handle, token)

    def probs(
        self, ctx: int, row: int, token: int, n: int, post: bool = False
    ) -> tuple[float, list[tuple[int, float]]]:
        """The natural logarithm of `token`'s probability in a row of the last batch, and the `n` best (id, logarithm).

        Before any sampling; with `post`, as the chain left them in its last step, which can be fewer than `n`.
        """
        ids = np.empty(max(n, 1), np.int32)
        probs = np.empty(max(n, 1), np.float32)
        own = ctypes.c_float()
        count = _call(
            "sampler_probs",
            self.handle,
            ctx,
            row,
            token,
            int(post),
            n,
            _pointer(ids),
            _pointer(probs),
            ctypes.byref(own),
        )
        best = zip(ids[:count].tolist(), probs[:count].tolist(), strict=True)
        return _logarithm(own.value), [(other, _logarithm(p)) for other, p in best]


def step_many(samplers: Sequence[Sampler], ctx: int, rows: Sequence[int]) -> list[int]:
    """Sample and accept one token per sampler from the given rows of the last batch of `ctx`; -1 where it failed."""
    n = len(samplers)
    handles = (ctypes.c_void_p * n)(*(s.handle for s in samplers))
    row_array = (ctypes.c_int32 * n)(*rows)
    out = (ctypes.c_int32 * n)()
    _call("sampler_step_many", n, handles, ctx, row_array, out)
    return list(out)


class Speculation(_Handle):
    """Drafting over one target context, of the kind that `params` name (``--spec-type``)."""

    _free = "lcpd_spec_free"

    def __init__(self, params: Params, model: int, ctx: int, n_seq: int) -> None:
        super().__init__(_call("spec_new", params.handle, model, ctx, n_seq))
        self.n_max: int = _lib.lcpd_spec_n_max(self.handle)
        self.context: int | None = _lib.lcpd_spec_context(self.handle)

    def begin(self, seq: int, tokens: Tokens) -> None:
        """Sequence `seq` starts anew with these tokens in its context."""
        _call("spec_begin", self.handle, seq, _pointer(tokens), len(tokens))

    def process(self, tokens: Tokens, pos: Tokens, seqs: Tokens, output: npt.NDArray[np.int8]) -> None:
        """The batch that the target has just decoded."""
        _call(
            "spec_process",
            self.handle,
            len(tokens),
            _pointer(tokens),
            _pointer(pos),
            _pointer(seqs),
            _pointer(output),
        )

    def draft(self, seq: int, n_max: int, pos: int, last: int, added: Tokens) -> Tokens:
        """Draft up to `n_max` tokens after `last`; `added` are those accepted since the last call."""
        _call("spec_want", self.handle, seq, n_max, pos, last, _pointer(added), len(added))
        _call("spec_draft", self.handle)
        out = np.empty(max(n_max, 1), np.int32)
        count = _call("spec_result", self.handle, seq, _pointer(out), len(out))
        return out[: min(count, n_max)]

    def accept(self, seq: int, n_accepted: int) -> None:
        """How many drafted tokens the target agreed with."""
        _call("spec_accept", self.handle, seq, n_accepted)


def verify(sampler: Sampler, ctx: int, rows: Sequence[int], draft: Tokens) -> list[int]:
    """Sample along a draft until a token differs; returns 1 to len(draft)+1 tokens, all accepted."""
    row_array = (ctypes.c_int32 * len(rows))(*rows)
    out = (ctypes.c_int32 * (len(draft) + 1))()
    count = _call("sampler_verify", sampler.handle, ctx, row_array, _pointer(draft), len(draft), out)
    return list(out[:count])


def _logarithm(probability: float) -> float:
    """The natural logarithm; a bounded one for 0, because JSON has no infinity."""
    return math.log(probability) if probability > 0 else IMPOSSIBLE


def _object(data: bytes) -> dict[str, Any]:
    value = msgspec.json.decode(data)
    if not isinstance(value, dict):
        raise BridgeError("the bridge returned no JSON object")
    return value
