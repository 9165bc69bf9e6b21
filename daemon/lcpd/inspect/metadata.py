"""Typed access to the metadata of a GGUF file, with the rules by which llama.cpp reads it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lcpd.inspect.header import Array, Value

MAX_LAYERS = 512
"""LLAMA_MAX_LAYERS of src/llama-hparams.h."""
_U32_MAX = (1 << 32) - 1
_REMEDY = "the file is damaged or of another kind: get it again, or convert it with a newer converter"


class ShapeError(ValueError):
    """A header that can be read but describes no model; the message names the key and the remedy."""


class NotAModel(ShapeError):
    """The header of something that belongs to a model: a projector, an adapter, an importance matrix."""


@dataclass(frozen=True)
class Metadata:
    """The key-value part of a header.  A name that begins with `%.` begins with the architecture in the file.

    A key of the wrong type or out of range raises ShapeError, as llama.cpp would refuse to load it; a missing one
    gives the default, or raises where there is none.
    """

    values: Mapping[str, Value]

    @property
    def architecture(self) -> str:
        name = self.values.get("general.architecture")
        if not isinstance(name, str) or not name:
            raise ShapeError(f"general.architecture must be a text, and is {_shown(name)}; {_REMEDY}")
        return name

    def key(self, name: str) -> str:
        """The full key of `%.block_count`."""
        return f"{self.architecture}{name[1:]}" if name.startswith("%.") else name

    def has(self, name: str) -> bool:
        return self.key(name) in self.values

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number of 32 bits, not below 0."""
        key = self.key(name)
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ShapeError(f"{key} is missing; {_REMEDY}")
            return default
        return _u32(key, value)

    def number(self, name: str, default: float) -> float:
        key = self.key(name)
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ShapeError(f"{key} must be a number, and is {_shown(value)}; {_REMEDY}")
        if not math.isfinite(value):
            raise ShapeError(f"{key} must be a finite number, and is {value}; {_REMEDY}")
        return float(value)

    def text(self, name: str) -> str | None:
        key = self.key(name)
        value = self.values.get(key)
        if value is None or isinstance(value, str):
            return value
        raise ShapeError(f"{key} must be a text, and is {_shown(value)}; {_REMEDY}")

    def flag(self, name: str) -> bool | None:
        key = self.key(name)
        value = self.values.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise ShapeError(f"{key} must be true or false, and is {_shown(value)}; {_REMEDY}")

    def is_array(self, name: str) -> bool:
        return isinstance(self.values.get(self.key(name)), Array)

    def count(self, name: str) -> int:
        """The elements of an array; 0 where it is missing."""
        value = self.values.get(self.key(name))
        return value.count if isinstance(value, Array) else 0

    def integers(self, name: str) -> tuple[int, ...]:
        """An array of whole numbers or flags, short enough to be about layers.  Raises ShapeError if it is missing."""
        key = self.key(name)
        value = self.values.get(key)
        if not isinstance(value, Array) or value.items is None or value.count > MAX_LAYERS:
            raise ShapeError(
                f"{key} must be an array of at most {MAX_LAYERS} numbers, and is {_shown(value)}; {_REMEDY}"
            )
        return tuple(int(item) if isinstance(item, bool) else _u32(key, item) for item in value.items)

    def per_layer(self, name: str, n_layer: int, default: tuple[int, ...] | int) -> tuple[int, ...]:
        """One number for each layer: an array of that length, or one number for all.

        `get_key_or_arr` of src/llama-model-loader.cpp.
        """
        key = self.key(name)
        value = self.values.get(key)
        if value is None:
            return default if isinstance(default, tuple) else (default,) * n_layer
        if not isinstance(value, Array):
            return (_u32(key, int(value) if isinstance(value, bool) else value),) * n_layer
        if value.count != n_layer:
            raise ShapeError(f"{key} has {value.count} values for {n_layer} layers; {_REMEDY}")
        return self.integers(name)


def _u32(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _U32_MAX:
        raise ShapeError(f"{key} must be a whole number from 0 to {_U32_MAX}, and is {_shown(value)}; {_REMEDY}")
    return value


def _shown(value: object) -> str:
    if value is None:
        return "missing"
    if isinstance(value, Array):
        return f"an array of {value.count}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
