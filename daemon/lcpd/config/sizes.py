"""Amounts of memory and disk as people write them: ``8GiB``, ``500MB``, ``1024``."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

LARGEST = 2**63 - 1
"""The largest size accepted, in bytes (what fits a signed 64-bit integer)."""

_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_BY_LOWER_CASE = {name.lower(): factor for name, factor in _UNITS.items()}
_FORM = re.compile(r"([0-9]+)(?:\.([0-9]+))?\s*([A-Za-z]*)")


def parse_size(value: object) -> int:
    """The number of bytes that ``value`` stands for.

    An integer is a number of bytes; a string is a decimal number and an optional unit (B, KB, MB, GB, TB:
    powers of 1000; KiB, MiB, GiB, TiB: powers of 1024; upper or lower case).
    Raises ``ValueError`` for anything else, for a fraction of a byte and for sizes above ``LARGEST``.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value <= LARGEST:
            raise ValueError(f"must be from 0 to {LARGEST} bytes")
        return value
    match = _FORM.fullmatch(value.strip()) if isinstance(value, str) else None
    factor = _BY_LOWER_CASE.get((match[3] or "B").lower()) if match else None
    if match is None or factor is None:
        raise ValueError('must be a size such as "8GiB", "500MB" or 1024 (bytes)')
    decimals = match[2] or ""
    scale: int = 10 ** len(decimals)
    size, remainder = divmod(int(match[1] + decimals) * factor, scale)
    if remainder:
        raise ValueError("must be a whole number of bytes")
    if size > LARGEST:
        raise ValueError(f"must be from 0 to {LARGEST} bytes")
    return size


def format_size(size: int) -> str:
    """The shortest spelling that ``parse_size`` reads back as exactly ``size`` bytes."""
    if size == 0:
        return "0"
    exact = [f"{size // factor}{name}" for name, factor in _UNITS.items() if size % factor == 0]
    # Of two equally short ones the binary unit: memory is counted in it.
    return min(exact, key=lambda text: (len(text.rstrip("iBKMGT")), "i" not in text))


def readable_size(size: float) -> str:
    """An amount rounded to what a reader needs, in the unit that fits: ``149.6 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.2f} GiB"


Size = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema({"type": ["integer", "string"], "format": "size"}),
]
"""A size in bytes, read by ``parse_size``."""
