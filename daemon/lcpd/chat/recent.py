"""The values that were used last, as far as there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values by keys; those that were not asked for for longest go first."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: of all values together; one alone may have a quarter of it."""
        self._max_bytes = max_bytes
        self._bytes = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K, use: bool = True) -> V | None:
        """The value, which counts as used now, unless only a look at it is taken."""
        if key not in self._values:
            return None
        if use:
            self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value of `size` bytes in place of what there was; one that is too large is not kept."""
        _, before = self._values.pop(key, (None, 0))
        self._bytes -= before
        if size > self._max_bytes // 4:
            return
        self._values[key] = (value, size)
        self._bytes += size
        while self._bytes > self._max_bytes:
            _, (_, oldest) = self._values.popitem(last=False)
            self._bytes -= oldest

    def clear(self) -> None:
        """Keep nothing."""
        self._values.clear()
        self._bytes = 0
