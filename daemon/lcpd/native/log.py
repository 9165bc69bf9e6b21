"""libllama's log: passed on to stderr, and read for what no API call tells."""

from __future__ import annotations

import ctypes
import re
import sys
from collections import Counter, deque

import llama_cpp.llama_cpp as llama

# ggml.h, enum ggml_log_level
_DEBUG, _INFO, _WARN, _ERROR, _CONTINUED = 1, 2, 3, 4, 5
_LAYER = re.compile(r"load_tensors: layer\s+\d+ assigned to device (\S+?),")
_MEMORY = re.compile(r"\S+: .*\bsize = +[\d.]+ MiB")
_FLASH_ATTENTION = re.compile(r"\w+: flash_attn\s+= (enabled|disabled)|\w+: Flash Attention.* (enabled|disabled)\s*$")
"""As asked for, and how "auto" was settled."""


class LogCapture:
    """Installs itself as libllama's logger; keep the object alive as long as libllama may log.

    Warnings and errors are written to stderr (all but debug lines when `verbose`), where the daemon collects them.
    """

    def __init__(self, verbose: bool = False) -> None:
        self._shown_from = _INFO if verbose else _WARN
        self._level = _INFO
        self.layers: Counter[str] = Counter()
        """Device -> layers assigned to it by the last model load."""
        self.flash_attention: bool | None = None
        """Whether the context that was made last uses it; None: libllama has not said so."""
        self.memory: deque[str] = deque(maxlen=100)
        """Lines that tell the sizes of buffers, of the last model and of all that was made from it."""
        self.errors: deque[str] = deque(maxlen=20)
        """The last error lines, for messages to the user."""
        self._callback = llama.llama_log_callback(self._on_line)
        llama.llama_log_set(self._callback, ctypes.c_void_p(0))

    def _on_line(self, level: int, data: bytes, _user: object) -> None:
        text = data.decode("utf-8", "replace")
        if level != _CONTINUED:
            self._level = level
        if match := _LAYER.match(text):
            self.layers[match.group(1)] += 1
        if _MEMORY.match(text):
            self.memory.append(text.rstrip())
        if match := _FLASH_ATTENTION.match(text):
            self.flash_attention = "enabled" in match.groups()
        if self._level >= _ERROR and text.strip():
            self.errors.append(text.strip())
        if self._level >= self._shown_from:
            sys.stderr.write(text)
