"""libllama's own word on the memory of a context: a simulated or a real load, in a process of its own.

``python -m lcpd.planning.dry_run REQUEST`` prints the lines of its log; the daemon and the commands load no native
code themselves.  A simulated load reads the header of the file, lays out all buffers and allocates none of them, but
for recurrent states (llama.h, `no_alloc`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from lcpd.planning.loglines import Logged, read

TIMEOUT_S = 600


class DryRunFailed(Exception):
    """libllama could not tell; the message says why."""


class Run(msgspec.Struct, frozen=True):
    """One context.  Lengths in tokens; see lcpd.native.context.ContextSettings."""

    n_ctx: int
    n_seq: int
    n_batch: int
    n_ubatch: int
    kv_type: str
    flash_attn: Literal["auto", "on", "off"]


class Request(msgspec.Struct, frozen=True):
    """A model, and the contexts to make of it one after the other."""

    path: str
    runs: list[Run]
    real: bool
    """Load it, instead of simulating it."""
    gpu_layers: int = -1
    tensor_split: list[float] = []
    main_gpu: int = 0
    mmap: bool = True


class Answer(msgspec.Struct, frozen=True):
    """What was logged for the model, and for each context; or why there is nothing."""

    model: list[str] = []
    contexts: list[list[str]] = []
    size_bytes: int = 0
    """Of all tensors, as libllama counts them."""
    error: str = ""


def ask(request: Request, lib_dir: Path) -> tuple[list[Logged], int]:
    """The sizes for each run, those of the model included, and the bytes of all tensors.  Raises `DryRunFailed`."""
    environment = {**os.environ, "LLAMA_CPP_LIB_PATH": str(lib_dir), "GGML_NO_BACKTRACE": "1"}
    command = [sys.executable, "-m", "lcpd.planning.dry_run", msgspec.json.encode(request).decode()]
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise DryRunFailed(f"libllama did not lay out {request.path} within {TIMEOUT_S} s") from None
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        tail = done.stderr.decode("utf-8", "replace").strip().splitlines()[-3:]
        raise DryRunFailed(f"libllama ended with {done.returncode} for {request.path}: {'; '.join(tail)}")
    answer = msgspec.json.decode(lines[-1], type=Answer)
    if answer.error:
        raise DryRunFailed(answer.error)
    return [read([*answer.model, *lines]) for lines in answer.contexts], answer.size_bytes


def main(arguments: Sequence[str]) -> int:
    """The child process."""
    request = msgspec.json.decode(arguments[0], type=Request)
    sys.stdout.buffer.write(msgspec.json.encode(_answer(request)) + b"\n")
    return 0


def _answer(request: Request) -> Answer:
    import llama_cpp.llama_cpp as llama

    from lcpd.native.context import ContextSettings, parameters
    from lcpd.native.log import LogCapture
    from lcpd.native.model import Model, ModelError, ModelSettings

    log = LogCapture()
    llama.llama_backend_init()
    settings = ModelSettings(
        gpu_layers=request.gpu_layers,
        tensor_split=tuple(request.tensor_split),
        main_gpu=request.main_gpu,
        mmap=request.mmap,
        simulated=not request.real,
    )
    try:
        model = Model(Path(request.path), log, settings)
    except ModelError as error:
        return Answer(error=str(error))
    lines, contexts = list(log.memory), list[list[str]]()
    for run in request.runs:
        log.memory.clear()
        log.errors.clear()
        context = llama.llama_init_from_model(
            model.handle,
            parameters(
                ContextSettings(run.n_ctx, run.n_seq, run.n_batch, run.n_ubatch, 1, run.kv_type, run.flash_attn)
            ),
        )
        if not context:
            return Answer(error=f"no context of {run.n_ctx} cells could be made: {'; '.join(log.errors)}")
        contexts.append(list(log.memory))
        llama.llama_free(context)
    size = int(llama.llama_model_size(model.handle))
    model.close()
    return Answer(lines, contexts, size)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
