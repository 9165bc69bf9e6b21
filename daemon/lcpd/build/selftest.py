"""Is a finished build right?  ``python -m lcpd.build.selftest LIBDIR [MODEL] [--commit HEX] [--device PREFIX]``

Run as a child process, because wrong CPU instructions kill by signal.  It loads the bindings and the bridge from
LIBDIR, compares versions and struct sizes, runs a matrix product on every device and decodes a tiny model twice.  The
last line of standard output is a JSON object: the findings (exit code 0) or ``{"error": ...}`` (exit code 1).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lcpd.build.errors import BuildError
from lcpd.build.fallback import SelfTestCrash
from lcpd.paths import demo_model

TIMEOUT_S = 300
PROMPT = "List the files in src/ and read the first one."
NEW_TOKENS = 8
# Devices other than the CPU may add up in another order from run to run.
GPU_TOLERANCE = 1e-2

_STRUCTS = (
    "llama_model_params",
    "llama_context_params",
    "llama_batch",
    "llama_token_data",
    "llama_token_data_array",
    "llama_chat_message",
    "llama_sampler_chain_params",
)


class SelfTestFailure(Exception):
    """A finding that makes the build unusable."""


@dataclass(frozen=True)
class Findings:
    abi: int
    build: str
    """llama.cpp's own build text."""
    devices: tuple[str, ...]


def run(lib_dir: Path, commit: str | None, device: str | None, model: Path | None = None) -> Findings:
    """Runs the self-test in a child process.

    ``commit`` is the llama.cpp commit that must be compiled in, ``device`` the beginning of the name of a device that
    must be there (``CUDA``).  Raises `SelfTestCrash` when the child died by a signal and `BuildError` when it found a
    fault.
    """
    command = [sys.executable, "-m", "lcpd.build.selftest", str(lib_dir), str(model or demo_model())]
    command += ["--commit", commit] if commit else []
    command += ["--device", device] if device else []
    environment = {
        **os.environ,
        **_bindings_environment(lib_dir),
        "GGML_NO_BACKTRACE": "1",  # an abort would start gdb
        "PYTHONFAULTHANDLER": "1",
    }
    try:
        done = subprocess.run(
            command, text=True, errors="replace", capture_output=True, env=environment, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired as expired:
        raise BuildError(
            f"the self-test of the finished build did not end within {TIMEOUT_S} s; the machine may be overloaded:"
            " run lcpd build again (what is compiled is kept)"
        ) from expired
    return interpret(done.returncode, done.stdout, done.stderr)


def _bindings_environment(lib_dir: Path) -> dict[str, str]:
    """The bindings take libllama and libmtmd from these two folders."""
    return {"LLAMA_CPP_LIB_PATH": str(lib_dir), "MTMD_CPP_LIB": str(lib_dir)}


def interpret(returncode: int, stdout: str, stderr: str) -> Findings:
    """The child's result.  Raises `SelfTestCrash` or `BuildError`."""
    tail = "\n".join(stderr.strip().splitlines()[-12:])
    if returncode < 0:
        raise SelfTestCrash(-returncode, tail)
    lines = stdout.strip().splitlines()
    result: dict[str, Any] = {}
    if lines and lines[-1].startswith("{"):
        result = json.loads(lines[-1])
    if returncode != 0 or "abi" not in result:
        reason = result.get("error") or f"it ended with exit code {returncode}:\n{tail}"
        raise BuildError(f"the self-test of the finished build failed: {reason}")
    return Findings(result["abi"], result["build"], tuple(result["devices"]))


# ---------------------------------------------------------------- in the child


def check(lib_dir: Path, model: Path, commit: str | None, device: str | None) -> Findings:
    """All checks, in this process.  Raises `SelfTestFailure`; may die by signal."""
    os.environ.update(_bindings_environment(lib_dir))
    bindings = _load_bindings()
    bridge = ctypes.CDLL(str(lib_dir / "liblcpd_bridge.so"))
    _check_single_copy(lib_dir)
    abi = _check_abi(bridge)
    build = _check_commit(bridge, commit)
    _check_layout(bindings, bridge)
    bindings.llama_backend_init()
    devices = _devices(lib_dir)
    if device is not None and not any(name.startswith(device) for name in devices):
        raise SelfTestFailure(
            f"no {device} device among {', '.join(devices)}, though the driver shows one; check that the driver"
            " supports this toolkit (nvidia-smi), or use --backend cpu"
        )
    _check_matmul(bridge)
    only_cpu = all(name.startswith("CPU") for name in devices)
    _check_model(bindings, model, tolerance=0.0 if only_cpu else GPU_TOLERANCE)
    return Findings(abi, build, devices)


def _load_bindings() -> Any:
    try:
        import llama_cpp.llama_cpp as bindings
        import llama_cpp.mtmd_cpp  # its symbols are looked up when it is imported
    except (AttributeError, OSError, RuntimeError) as error:
        raise SelfTestFailure(f"the Python bindings do not fit the library: {error}") from error
    return bindings


def _check_single_copy(lib_dir: Path) -> None:
    """Two copies of libllama in one process would each have their own backends and state."""
    mapped = {line.split(maxsplit=5)[5] for line in Path("/proc/self/maps").read_text().splitlines() if "/lib" in line}
    names = ("libllama.so", "libggml", "libmtmd.so", "liblcpd_bridge.so")
    strangers = sorted(
        path
        for path in mapped
        if Path(path).name.startswith(names) and Path(path).resolve().parent != lib_dir.resolve()
    )
    if strangers:
        raise SelfTestFailure(f"loaded from outside {lib_dir}: {', '.join(strangers)}; unset LD_LIBRARY_PATH")


def _check_abi(bridge: ctypes.CDLL) -> int:
    from lcpd.native import ABI

    found = int(bridge.lcpd_abi())
    if found != ABI:
        raise SelfTestFailure(f"the bridge has ABI {found}, the Python side expects {ABI}; run: lcpd build --force")
    return found


def _check_commit(bridge: ctypes.CDLL, commit: str | None) -> str:
    bridge.lcpd_build.restype = ctypes.c_char_p
    build = bridge.lcpd_build().decode()
    found = build.rpartition("-")[2]
    if commit is not None and not (len(found) >= 7 and commit.startswith(found)):
        raise SelfTestFailure(f"llama.cpp says it is {build}, expected commit {commit}; run: lcpd build --force")
    return str(build)


def _check_layout(bindings: Any, bridge: ctypes.CDLL) -> None:
    for name in _STRUCTS:
        native = int(bridge.lcpd_selftest_sizeof(name.encode()))
        bound = ctypes.sizeof(getattr(bindings, name))
        if native != bound:
            raise SelfTestFailure(
                f"struct {name} has {native} bytes in the library and {bound} in the bindings: this llama.cpp does not"
                " fit llama-cpp-python; use the pinned source"
            )


def _devices(lib_dir: Path) -> tuple[str, ...]:
    ggml = ctypes.CDLL(str(lib_dir / "libggml.so"))
    base = ctypes.CDLL(str(lib_dir / "libggml-base.so"))
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    base.ggml_backend_dev_name.restype = ctypes.c_char_p
    base.ggml_backend_dev_name.argtypes = [ctypes.c_void_p]
    count = ggml.ggml_backend_dev_count()
    return tuple(base.ggml_backend_dev_name(ggml.ggml_backend_dev_get(i)).decode() for i in range(count))


def _check_matmul(bridge: ctypes.CDLL) -> None:
    error = ctypes.c_void_p()
    if bridge.lcpd_selftest_matmul(ctypes.byref(error)) != 0:
        text = ctypes.string_at(error.value).decode(errors="replace") if error.value else "no reason given"
        bridge.lcpd_free.argtypes = [ctypes.c_void_p]
        bridge.lcpd_free(error)
        raise SelfTestFailure(text)


def _check_model(bindings: Any, path: Path, tolerance: float) -> None:
    import numpy as np

    params = bindings.llama_model_default_params()
    params.n_gpu_layers = 999  # all of it, where there is a GPU
    model = bindings.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise SelfTestFailure(f"could not load the model {path}")
    first = _greedy(bindings, model)
    second = _greedy(bindings, model)
    bindings.llama_model_free(model)
    if not np.isfinite(first).all():
        raise SelfTestFailure(f"decoding {path.name} gave logits that are not finite")
    difference = float(np.abs(first - second).max())
    if difference > tolerance:
        raise SelfTestFailure(f"decoding {path.name} twice gave different logits (by {difference:g})")


def _greedy(bindings: Any, model: Any) -> Any:
    """Logits [NEW_TOKENS, vocabulary] of a greedy continuation of `PROMPT` in a fresh context."""
    import numpy as np

    params = bindings.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = 256, 2, 2
    context = bindings.llama_init_from_model(model, params)
    if not context:
        raise SelfTestFailure("could not make a context for the model")
    vocabulary = bindings.llama_model_get_vocab(model)
    width = bindings.llama_vocab_n_tokens(vocabulary)
    text = PROMPT.encode()
    tokens = (bindings.llama_token * (len(text) + 8))()
    count = bindings.llama_tokenize(vocabulary, text, len(text), tokens, len(tokens), True, True)
    if count <= 0:
        raise SelfTestFailure("the model's tokenizer returned nothing")
    rows = []
    for _ in range(NEW_TOKENS):
        status = bindings.llama_decode(context, bindings.llama_batch_get_one(tokens, count))
        if status != 0:
            raise SelfTestFailure(f"llama_decode returned {status}")
        rows.append(np.ctypeslib.as_array(bindings.llama_get_logits_ith(context, -1), (width,)).copy())
        tokens, count = (bindings.llama_token * 1)(int(rows[-1].argmax())), 1
    bindings.llama_free(context)
    return np.stack(rows)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m lcpd.build.selftest")
    parser.add_argument("lib_dir", type=Path)
    parser.add_argument("model", type=Path, nargs="?", default=None)
    parser.add_argument("--commit")
    parser.add_argument("--device")
    options = parser.parse_args(arguments)
    try:
        findings = check(options.lib_dir, options.model or demo_model(), options.commit, options.device)
    except SelfTestFailure as failure:
        print(json.dumps({"error": str(failure)}), flush=True)
        return 1
    print(json.dumps({"abi": findings.abi, "build": findings.build, "devices": findings.devices}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
