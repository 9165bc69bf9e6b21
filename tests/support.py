"""What tests of several folders need: the real models, and text to feed them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lcpd.models import resolve
from lcpd.paths import dirs
from tiny_recurrent import recurrent_model

MODELS = {"attention": "demo:smollm2", "swa": "demo:gemma3", "hybrid": "demo:hybrid"}
"""One real model for each kind of state but "recurrent", for which the tests make one."""


READ_FILE = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}
"""An OpenAI tool that the hybrid knows how to call."""


def model_path(kind: str) -> Path:
    """The file of the model of a kind."""
    if kind == "recurrent":
        return recurrent_model(dirs().cache / "tests")
    return resolve(MODELS[kind], dirs())


WORDS = [
    "the",
    "cache",
    "keeps",
    "what",
    "was",
    "computed",
    "once",
    "and",
    "a",
    "slot",
    "goes",
    "on",
    "from",
    "longest",
]


def text_of(words: int, seed: int = 0) -> str:
    """Some English that tokenises normally."""
    rng = np.random.default_rng(seed)
    return " ".join(rng.choice(WORDS, words))
