"""Real libllama, the real bridge and real models for the tests in this folder.

`make test` builds and downloads what they need; without that they fail and say what is missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from loops import KINDS, Engine

from lcpd.build import require_active
from support import model_path

if TYPE_CHECKING:
    from lcpd.native.context import Context
    from lcpd.native.model import Model

# Before anything imports llama_cpp.  One thread: the tests' machines are shared, and spinning threads would wait.
os.environ["LLAMA_CPP_LIB_PATH"] = str(require_active().lib_dir)
os.environ.setdefault("OMP_NUM_THREADS", "1")

MakeContext = Callable[..., "Context"]


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


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Of state, each in turn."""
    return str(request.param)


@pytest.fixture
def engine(kind: str, models: Callable[[str], Model], make_context: MakeContext) -> Engine:
    """A decode loop over that kind's model."""
    model = models(kind)
    return Engine(model, make_context(model, n_batch=256, n_ubatch=256), max_stall=100.0)
