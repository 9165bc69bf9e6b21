"""What GGUF files are made of: types of values and tensors, and what is taken for GGUF and is something else."""

from __future__ import annotations

import struct
from typing import TypeAlias

from gguf.constants import GGML_QUANT_SIZES, GGUFValueType

SCALARS: dict[int, struct.Struct] = {
    GGUFValueType.UINT8: struct.Struct("<B"),
    GGUFValueType.INT8: struct.Struct("<b"),
    GGUFValueType.UINT16: struct.Struct("<H"),
    GGUFValueType.INT16: struct.Struct("<h"),
    GGUFValueType.UINT32: struct.Struct("<I"),
    GGUFValueType.INT32: struct.Struct("<i"),
    GGUFValueType.FLOAT32: struct.Struct("<f"),
    GGUFValueType.BOOL: struct.Struct("<?"),
    GGUFValueType.UINT64: struct.Struct("<Q"),
    GGUFValueType.INT64: struct.Struct("<q"),
    GGUFValueType.FLOAT64: struct.Struct("<d"),
}
Quant: TypeAlias = tuple[str, int, int]
QUANTS: dict[int, Quant] = {
    kind.value: (kind.name, block, size) for kind, (block, size) in GGML_QUANT_SIZES.items()
} | {9: ("Q8_1", 32, 36), 42: ("Q2_0", 64, 18)}
"""ggml type -> its name, elements and bytes of a block.  The package has Q8_1 with 40 bytes, and Q2_0 not yet."""
REMOVED = {4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4"}

OTHER_KINDS = {
    b"version https://git-lfs": ("a Git LFS pointer, not the file itself", "fetch it with: git lfs pull"),
    b"<": ("a web page, not a model", "download it again, and check the address and whether you are logged in"),
    b"PK\x03\x04": ("a zip archive (a PyTorch checkpoint?)", "convert it to GGUF first"),
    b"lmgg": ("the GGML format of 2023, before GGUF", "get the model as GGUF"),
    b"tjgg": ("the GGJT format of 2023, before GGUF", "get the model as GGUF"),
    b"fmgg": ("the GGMF format of 2023, before GGUF", "get the model as GGUF"),
    b"\x00\x00\x00\x00": ("all zeros at its beginning", "the download is not complete: download it again"),
}
