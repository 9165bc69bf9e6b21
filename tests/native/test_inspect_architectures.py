"""Layers and states of every architecture, beside what llama.cpp makes of the same metadata.

llama.cpp can make a model from metadata alone (`llama_model_init_from_user`), with the tensors that the architecture
asks for.  So each gets the same small made-up metadata, keys that it does not read among them, and says at debug level
for which layers it makes caches and states, and how large.  It may abort, so this happens in a process of its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from lcpd.build import require_active

pytestmark = pytest.mark.native

WINDOWS = (
    "afmoe cohere2 cohere2moe exaone-moe exaone4 gemma2 gemma3 gemma3n gemma4 gpt-oss granite_swa laguna llama4 maple "
    "mellum mimo2 muse-glimmer olmo2 plamo3 smallthinker spark2_5 step35"
)
STATES = (
    "bailingmoe3 falcon-h1 granitehybrid jamba kimi-k3 kimi-linear lfm2 lfm2moe mamba mamba2 minimax-01 nemotron_h "
    "nemotron_h_moe plamo2 qwen3next qwen35 qwen35moe rwkv6 rwkv7"
)
ATTENTION = "command-r deci deepseek2 glm4 glm4moe granite granitemoe llama mistral3 mistral4 phi3 qwen2 qwen3 qwen3moe"
NOTHING = "dream llada modern-bert rnd1"
DRAFTING = "bailingmoe3 glm4moe mimo2 nemotron_h_moe qwen3next qwen35 qwen35moe step35"
MTP = "+mtp"
"""Behind an architecture: with one layer for multi-token prediction after the others."""
ALL = [
    *WINDOWS.split(),
    *STATES.split(),
    *ATTENTION.split(),
    *NOTHING.split(),
    *(f"{name}{MTP}" for name in DRAFTING.split()),
]
N_CTX, N_SEQ, N_UBATCH = 2048, 2, 32


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """Architecture -> what llama.cpp says, and what is read from the same file."""
    environment = os.environ | {"GGML_NO_BACKTRACE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.run([sys.executable, __file__, *ALL], env=environment, capture_output=True, text=True)
    said = {answer["architecture"]: answer for answer in map(json.loads, child.stdout.splitlines())}
    assert child.returncode == 0, f"after {list(said)[-1:]}: {child.stderr[-2000:]}"
    return said


@pytest.mark.parametrize("architecture", ALL)
def test_layers_and_sizes_are_those_of_llama_cpp(architecture: str, answers: dict[str, Any]) -> None:
    answer = answers[architecture]
    assert "error" not in answer, answer["error"]
    assert answer["read"] == answer["made"]


def test_the_lists_are_what_they_say(answers: dict[str, Any]) -> None:
    for name in WINDOWS.split():
        assert answers[name]["made"]["window"]["layers"], name
    for name in STATES.split():
        assert answers[name]["made"]["state"]["layers"], name
    for name in ATTENTION.split():
        assert answers[name]["made"]["attention"]["layers"] and not answers[name]["made"]["window"]["layers"], name
    for name in NOTHING.split():
        assert not any(part["layers"] for part in answers[name]["made"].values()), name


# ---- in the child ----------------------------------------------------------------------------------------


def metadata(architecture: str, n_mtp: int) -> dict[str, object]:
    """Small figures for all keys that any of the architectures reads, and more for those that need other ones."""
    n_layer = {"gemma3n": 22, "exaone4": 64}.get(architecture, 8) + n_mtp

    def repeated(*values: int) -> tuple[int, ...]:
        return tuple(values[layer % len(values)] for layer in range(n_layer))

    every_other = repeated(2, 0)
    keys: dict[str, object] = {
        "tokenizer.ggml.model": "none",
        "%.vocab_size": 64,
        "%.context_length": N_CTX,
        "%.embedding_length": 128,
        "%.embedding_length_per_layer_input": 32,
        "%.block_count": n_layer,
        "%.nextn_predict_layers": n_mtp,
        "%.leading_dense_block_count": 1,
        "%.feed_forward_length": 96,
        "%.logit_scale": 1.0,
        "%.residual_scale": 1.0,
        "%.embedding_scale": 1.0,
        "%.swiglu_clamp_exp": 7.0,
        "%.use_parallel_residual": False,
        "%.attention.head_count": 2,
        "%.attention.head_count_kv": 2,
        "%.attention.scale": 1.0,
        "%.attention.layer_norm_epsilon": 1e-5,
        "%.attention.layer_norm_rms_epsilon": 1e-5,
        "%.attention.group_norm_epsilon": 1e-5,
        "%.attention.group_norm_groups": 8,
        "%.attention.q_lora_rank": 64,
        "%.attention.kv_lora_rank": 512,
        "%.attention.decay_lora_rank": 32,
        "%.attention.iclr_lora_rank": 32,
        "%.attention.value_residual_mix_lora_rank": 32,
        "%.attention.gate_lora_rank": 32,
        "%.attention.sliding_window": 64,
        "%.rope.dimension_sections": (8, 8, 8, 8),
        "%.rope.freq_base_swa": 10000.0,
        "%.full_attention_interval": 3,
        "%.time_mix_extra_dim": 32,
        "%.time_decay_extra_dim": 64,
        "%.wkv.head_size": 64,
        "%.shortconv.l_cache": 3,
        "%.ssm.conv_kernel": 4,
        "%.ssm.inner_size": 256,
        "%.ssm.state_size": 128,
        "%.ssm.time_step_rank": 2,
        "%.ssm.group_count": 0 if architecture == "plamo2" else 2,
        "%.kda.head_dim": 64,
        "%.kda.safe_gate": True,
        "%.kda.gate_lower_bound": -5.0,
        "%.activation.situ_beta": 4.0,
        "%.activation.situ_linear_beta": 25.0,
        "%.attn_res.block_size": 12,
    }
    if architecture in {"bailingmoe3", "deepseek2", "kimi-k3", "kimi-linear", "mistral4"}:
        keys |= {
            "%.attention.key_length": 576,
            "%.attention.value_length": 512,
            "%.attention.key_length_mla": 192,
            "%.attention.value_length_mla": 128,
            "%.rope.dimension_count": 64,
            "%.attention.head_count_kv": 1,
        }
        every_other = repeated(1, 0)
    if architecture in {"bailingmoe3", "granitehybrid", "jamba", "kimi-k3", "kimi-linear", "lfm2", "lfm2moe", "plamo2"}:
        keys["%.attention.head_count_kv"] = every_other
    if architecture.startswith("nemotron_h"):
        keys |= {"%.attention.head_count_kv": repeated(2, 0, 0, 0), "%.feed_forward_length": repeated(0, 0, 96, 0)}
    if architecture in {"gemma4", "granite_swa", "maple", "mimo2", "spark2_5", "step35"}:
        keys["%.attention.sliding_window_pattern"] = repeated(1, 1, 0, 1, 0, 0, 1, 0)
    if architecture == "gemma4":
        keys |= {"%.attention.shared_kv_layers": 3}
        keys |= {"%.attention.key_length_swa": 32, "%.attention.value_length_swa": 32}
    if architecture not in WITHOUT_EXPERTS or n_mtp:
        keys |= {
            "%.expert_feed_forward_length": 96,
            "%.expert_shared_feed_forward_length": 48,
            "%.expert_latent_length": 96,
            "%.interleave_moe_layer_step": 2,
            "%.expert_count": 2,
            "%.expert_used_count": 2,
            "%.expert_shared_count": 1,
            "%.expert_gating_func": 2,
            "%.expert_group_scale": 1.0,
            "%.experts_per_group": 1,
        }
    return keys


WITHOUT_EXPERTS = frozenset(
    {"jamba", "granitehybrid", "nemotron_h", "nemotron_h_moe", "granitemoe", "mistral3", "llama", "deci", "phi3"}
)
_CREATED = re.compile(r"llama_kv_cache_iswa: creating\s+(non-)?SWA")
_LAYER = re.compile(r"(llama_kv_cache:|llama_memory_recurrent,) layer\s+(\d+): dev")
_SIZE = re.compile(r"(llama_kv_cache|llama_memory_recurrent): size = +([\d.]+) MiB")


def made(lines: list[str]) -> dict[str, Any]:
    """What a context has, by llama.cpp's log: layers and MiB."""
    found: dict[str, Any] = {name: {"layers": [], "MiB": "0.00"} for name in ("attention", "window", "state")}
    cache = "attention"
    for line in lines:
        if match := _CREATED.match(line):
            cache = "attention" if match[1] else "window"
        elif match := _LAYER.match(line):
            found[cache if "kv" in match[1] else "state"]["layers"].append(int(match[2]))
        elif match := _SIZE.match(line):
            found[cache if "kv" in match[1] else "state"]["MiB"] = match[2]
    return found


def read(path: Path) -> dict[str, Any]:
    """The same from the file's header."""
    from lcpd.inspect.parts import read_model
    from lcpd.inspect.shape import Layer, shape_of

    file = read_model(path)
    model = shape_of(file.metadata, file.tensors)

    def cache(layers: tuple[Layer, ...], cells: int) -> dict[str, Any]:
        row = sum(layer.k_width + layer.v_width for layer in layers)
        return {"layers": [layer.index for layer in layers], "MiB": f"{2 * row * cells / (1 << 20):.2f}"}

    window = max((layer.window for layer in model.layers), default=0)
    cells = -(-min(N_CTX, window * N_SEQ + N_UBATCH) // 256) * 256
    state = {
        "layers": [layer.index for layer in model.recurrent_layers],
        "MiB": f"{N_SEQ * (model.r_bytes + model.s_bytes) / (1 << 20):.2f}",
    }
    return {
        "attention": cache(model.attention_layers, N_CTX),
        "window": cache(model.window_layers, cells),
        "state": state,
    }


def probe(name: str, folder: Path) -> dict[str, Any]:
    import llama_cpp.llama_cpp as llama

    from lcpd.native.context import ContextSettings, parameters
    from model_shapes import write_header

    lines: list[str] = []
    callback = llama.llama_log_callback(lambda _level, data, _user: lines.append(data.decode("utf-8", "replace")))
    llama.llama_log_set(callback, ctypes.c_void_p(0))
    architecture = name.removesuffix(MTP)
    path = write_header(folder / "model.gguf", architecture, metadata(architecture, int(name != architecture)), [])
    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0
    params.load_mtp = True
    leave = llama.llama_model_set_tensor_data_t(lambda _tensor, _user: None)
    model = llama.llama_model_init_from_user(_gguf(path), leave, None, params)
    if not model:
        return {"error": "".join(line for line in lines if "error" in line)}
    lines.clear()
    settings = ContextSettings(
        n_ctx=N_CTX, n_seq=N_SEQ, n_batch=N_UBATCH, n_ubatch=N_UBATCH, threads=1, flash_attn="on"
    )
    context = llama.llama_init_from_model(model, parameters(settings))
    if not context:
        return {"error": "".join(lines)}
    llama.llama_free(context)
    llama.llama_model_free(model)
    return {"made": made("".join(lines).splitlines()), "read": read(path)}


class _Init(ctypes.Structure):
    """gguf_init_params."""

    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


def _gguf(path: Path) -> int:
    libggml = ctypes.CDLL(str(require_active().lib_dir / "libggml-base.so"))
    libggml.gguf_init_from_file.restype = ctypes.c_void_p
    libggml.gguf_init_from_file.argtypes = [ctypes.c_char_p, _Init]
    handle: int = libggml.gguf_init_from_file(str(path).encode(), _Init(True, None))
    return handle


if __name__ == "__main__":
    os.environ["LLAMA_CPP_LIB_PATH"] = str(require_active().lib_dir)
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:]:
            print(json.dumps({"architecture": name} | probe(name, Path(folder))), flush=True)
