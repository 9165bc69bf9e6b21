"""Which attention layers see a sliding window only: `load_arch_hparams` in src/models/ of llama.cpp."""

from __future__ import annotations

from lcpd.inspect.metadata import Metadata

_PATTERN = {  # architecture -> (every n-th layer is dense, whether the first of n is)
    "afmoe": (4, False),
    "cohere2": (4, False),
    "cohere2moe": (4, True),
    "exaone-moe": (4, False),
    "exaone4": (4, False),
    "gemma-embedding": (6, False),
    "gemma2": (2, False),
    "gemma3": (6, False),
    "gemma3n": (5, False),
    "gpt-oss": (2, False),
    "laguna": (4, True),
    "llama4": (4, False),
    "mellum": (4, False),
    "modern-bert": (3, True),
    "muse-glimmer": (4, False),
    "olmo2": (4, False),
    "plamo3": (8, False),
    "smallthinker": (4, True),
}
"""The default of `load_swa_pattern` in `load_arch_hparams`."""
_BY_ARRAY = frozenset(
    {"dots3note", "dflash", "gemma4", "gemma4-assistant", "granite_swa", "maple", "mimo2", "spark2_5", "step35"}
)
"""Those that must say in an array which layers have a window."""
_ALL_LAYERS = frozenset({"deepseek4", "lfm2"})
"""Where there is a window, all attention layers have it."""
_DEFAULT_WINDOW = {"exaone4": 4096, "exaone-moe": 128, "gemma2": 4096}


def window_of(metadata: Metadata, trunk: int) -> tuple[int, str]:
    """`n_swa` in tokens and the kind of window; (0, "") without."""
    architecture = metadata.architecture
    if architecture not in _PATTERN and architecture not in _BY_ARRAY and architecture not in _ALL_LAYERS:
        return 0, ""
    if architecture == "exaone4" and trunk != 64:
        return 0, ""  # exaone4.cpp: the 1.2B has the key and no windows
    if architecture == "llama4":
        return (0, "") if metadata.integer("%.attention.sliding_window", 1) == 0 else (8192, "chunked")
    window = metadata.integer("%.attention.sliding_window", _DEFAULT_WINDOW.get(architecture, 0))
    if window and architecture == "smallthinker":
        window = 4096  # smallthinker.cpp sets it whatever the file says
    return (window, "standard") if window else (0, "")


def windowed_layers(metadata: Metadata, n_all: int, trunk: int, recurrent: tuple[bool, ...]) -> tuple[bool, ...]:
    """`is_swa_impl`: `load_swa_pattern` of src/llama-model.cpp, `set_swa_pattern` of src/llama-hparams.cpp."""
    architecture = metadata.architecture
    key = "%.attention.sliding_window_pattern"
    if architecture in _ALL_LAYERS:
        return tuple(not recurrent[index] and index < trunk for index in range(n_all))
    if architecture in _BY_ARRAY or metadata.is_array(key):
        named = metadata.integers(key)
        return tuple(index < len(named) and bool(named[index]) for index in range(n_all))
    every, dense_first = _PATTERN[architecture]
    every = metadata.integer(key, every)
    if every == 0:
        return tuple(index < trunk for index in range(n_all))
    dense = 0 if dense_first else every - 1
    return tuple(index < trunk and index % every != dense for index in range(n_all))
