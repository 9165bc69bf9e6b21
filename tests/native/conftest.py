"""Real libllama, the real bridge and real models for the tests in this folder.

`make test` builds and downloads what they need; without that they fail and say what is missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from lcpd.build import require_active
from lcpd.models import resolve
from lcpd.paths import dirs

if TYPE_CHECKING:
    from lcpd.native.context import Context
    from lcpd.native.model import Model

# Before anything imports llama_cpp.  One thread: the tests' machines are shared, and spinning threads would wait.
os.environ["LLAMA_CPP_LIB_PATH"] = str(require_active().lib_dir)
os.environ.setdefault("OMP_NUM_THREADS", "1")

MODELS = {"attention": "demo:smollm2", "swa": "demo:gemma3", "hybrid": "demo:hybrid"}
"""One real model for each kind of state."""

MakeContext = Callable[..., "Context"]


def model_path(kind: str) -> Path:
    """The file of the model of a kind."""
    return resolve(MODELS[kind], dirs())


@pytest.fixture(scope="session")
def log() -> object:
    from lcpd.native.log import LogCapture

    capture = LogCapture()
    import llama_cpp.llama_cpp as llama

    llama.llama_backend_init()
    return capture


@pytest.fixture(scope="session")
def models(log: object) -> Iterator[Callable[[str], Model]]:
    """Loads each kind's model once."""
    from lcpd.native.model import Model, ModelSettings

    loaded: dict[str, Model] = {}

    def get(kind: str) -> Model:
        if kind not in loaded:
            loaded[kind] = Model(model_path(kind), log, ModelSettings())  # type: ignore[arg-type]
        return loaded[kind]

    yield get
    for model in loaded.values():
        model.close()


@pytest.fixture
def make_context(log: object) -> Iterator[MakeContext]:
    """Makes contexts that are freed after the test."""
    from lcpd.native.context import Context, ContextSettings

    made: list[Context] = []

    def make(model: Model, **changes: object) -> Context:
        settings = {"n_ctx": 4096, "n_seq": 4, "n_batch": 512, "n_ubatch": 512, "threads": 1, "flash_attn": "off"}
        made.append(Context(model, ContextSettings(**{**settings, **changes}), log))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for context in made:
        context.close()


WORDS = "the cache keeps what was computed once and a slot goes on from the longest prefix that it shares ".split()


def text_of(words: int, seed: int = 0) -> str:
    """Some English that tokenises normally."""
    rng = np.random.default_rng(seed)
    return " ".join(rng.choice(WORDS, words))
