"""The header of one GGUF file: its metadata and tensor infos, read with bounded memory and time.

Why not `gguf.GGUFReader`: it maps the whole file, makes an object of every token and trusts every count.  For the
header of a model of 0.25 GB with 262,144 tokens it took 12 s and 730 MB, and a file that claims more than it has makes
it fail somewhere inside numpy.  Here every count and length is checked against what the file still holds before it is
believed, long arrays are passed over, and what llama.cpp (ggml/src/gguf.cpp) would refuse is refused with the place and
the reason.  Types and block sizes are those of the `gguf` package.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from gguf.constants import GGUFValueType

from lcpd.inspect.formats import OTHER_KINDS, QUANTS, REMOVED, SCALARS

LENGTH_MAX = 256 << 20
"""Bytes of a header.  The largest vocabularies take 40 MB."""
STEPS_MAX = 4_000_000
"""Strings that are looked at one by one; a tokenizer has one or two for each token."""
KEYS_MAX = 1 << 14
TENSORS_MAX = 1 << 17
TEXT_MAX = 1 << 20
"""Bytes of a text that is kept; the longest chat templates have 50 KB."""
KEPT_MAX = 32 << 20
"""Bytes of all keys, values and names together that are kept, a number counting for 32."""
ITEMS_MAX = 1024
"""Elements of an array that are kept: there are at most 512 layers."""
NAME_MAX = 64
"""GGML_MAX_NAME: bytes of a tensor's name and the 0 behind it."""
KEY_MAX = 1 << 16
DIMENSIONS_MAX = 4

Scalar: TypeAlias = str | int | float | bool


@dataclass(frozen=True)
class Array:
    """An array of the metadata, or a text longer than TEXT_MAX (as an array of UINT8 without items)."""

    kind: str
    """What its elements are, as GGUF names it: STRING, INT32, ..."""
    count: int
    items: tuple[Scalar, ...] | None = None
    """None where there are more than ITEMS_MAX (which is then about the vocabulary), or where they are texts."""
    offset: int = 0
    """Where its first element begins, in bytes from the start of the file."""


Value: TypeAlias = Scalar | Array


@dataclass(frozen=True)
class Tensor:
    """One tensor info."""

    name: str
    dimensions: tuple[int, ...]
    """Elements, the contiguous one first, as ggml has it."""
    quant: str
    """As ggml names it: Q4_K."""
    elements: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    """What comes before the tensors' data."""

    version: int
    metadata: Mapping[str, Value]
    tensors: tuple[Tensor, ...]
    length: int
    """Bytes from the start of the file to its last tensor info."""
    file_size: int
    """Bytes."""


class GgufError(Exception):
    """The file cannot be read as GGUF; the message names the file, the place in it and the remedy."""

    def __init__(self, path: Path, problem: str, remedy: str, offset: int | None = None, field: str = "") -> None:
        place = ", ".join(part for part in (f"byte {offset}" if offset is not None else "", field) if part)
        self._say(path, f"{f'{place}: ' if place else ''}{problem}; {remedy}")

    @classmethod
    def about(cls, path: Path, message: str) -> GgufError:
        """For a message that names the field and the remedy already."""
        error = cls.__new__(cls)
        error._say(path, message)
        return error

    def _say(self, path: Path, message: str) -> None:
        # A terminal obeys control characters, and names in the file may hold some.
        super().__init__("".join(char if char.isprintable() else "�" for char in f"{path}: {message}"))


DAMAGED = "the file is damaged or incomplete: download it again"


def read_header(path: Path) -> Header:
    """Read the header of one file.  Raises GgufError."""
    with _opened(path) as file:
        return _Reader(path, file).header()


def strings_at(path: Path, array: Array, wanted: Collection[int]) -> dict[int, str]:
    """Some elements of an array of texts that `read_header` passed over, by index; those beyond its end are left out.

    Raises GgufError.
    """
    found: dict[int, str] = {}
    last = max((index for index in wanted if 0 <= index < array.count), default=-1)
    if array.kind != "STRING":
        return found
    with _opened(path) as file:
        file.seek(array.offset)
        reader = _Reader(path, file)
        for index in range(last + 1):
            if index in wanted:
                found[index] = reader.text(f"element {index}", KEY_MAX)
            else:
                reader.pass_text(f"element {index}")
    return found


def _opened(path: Path) -> BinaryIO:
    """The file for reading, if it is a regular one: anything else might never end, or never begin."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            raise GgufError(path, f"this is {kind}", "give the path of a .gguf file")
        return path.open("rb", buffering=1 << 18)
    except (OSError, ValueError) as error:  # ValueError: a path with a 0 byte
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise GgufError(path, f"cannot be read ({reason})", "check the path and its permissions") from None


# ---- reading -------------------------------------------------------------------------------------------

_STRING_MIN, _KEY_VALUE_MIN, _TENSOR_MIN = 8, 13, 24
"""Bytes of the shortest text, key-value pair and tensor info."""
_U32, _U64 = SCALARS[GGUFValueType.UINT32], SCALARS[GGUFValueType.UINT64]


class _Reader:
    """Reads one file from where it stands; never more than LENGTH_MAX, never beyond its end."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._at = file.tell()
        self._end = min(self._size, self._at + LENGTH_MAX)
        self._steps = STEPS_MAX
        self._kept = KEPT_MAX

    def header(self) -> Header:
        self._magic()
        version = self._u32("version")
        if version & 0xFFFF == 0 and version:
            raise self._fail("the file is big-endian", "get the little-endian one", "version")
        if version not in (2, 3):
            remedy = "convert the model again" if version < 2 else "update lcpd"
            raise self._fail(f"GGUF version {version} is not supported, only 2 and 3 are", remedy, "version")
        n_tensors = self._count("number of tensors", TENSORS_MAX, _TENSOR_MIN)
        n_keys = self._count("number of metadata keys", KEYS_MAX, _KEY_VALUE_MIN)
        metadata: dict[str, Value] = {}
        for number in range(n_keys):
            key = self.text(f"key {number}", KEY_MAX)
            if not key or key in metadata:
                raise self._fail("the key is empty" if not key else f"the key {key!r} is there twice", DAMAGED)
            metadata[key] = self._value(key)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._fail(f"general.alignment is {alignment}, not a power of two", DAMAGED)
        infos = [self._tensor(number) for number in range(n_tensors)]
        length = self._at
        if len({tensor.name for tensor, _ in infos}) != n_tensors:
            raise self._fail("two tensors have one name", DAMAGED, "tensor infos")
        self._check_data(infos, alignment)
        return Header(version, metadata, tuple(tensor for tensor, _ in infos), length, self._size)

    def text(self, field: str, limit: int) -> str:
        """A text; bytes that are no UTF-8 are replaced."""
        length = self._u64(field)
        if length > limit:
            raise self._fail(f"a text of {length} bytes, and at most {limit} are allowed", DAMAGED, field)
        self._keep(length, field)
        return self._bytes(length, field).decode("utf-8", errors="replace")

    def pass_text(self, field: str) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise self._fail(f"more than {STEPS_MAX} texts in arrays", DAMAGED, field)
        self._pass(self._u64(field), field)

    # -- parts of the header

    def _magic(self) -> None:
        start = self._file.read(32)
        self._file.seek(0)
        if start.startswith(b"GGUF"):
            self._bytes(4, "magic")
            return
        for begin, (problem, remedy) in OTHER_KINDS.items():
            if start.startswith(begin):
                raise GgufError(self._path, f"this is {problem}", remedy)
        if start[8:10] == b'{"':
            raise GgufError(self._path, "this is a safetensors file", "convert it to GGUF first")
        problem = "the file is empty" if not start else "this is no GGUF file (it does not begin with GGUF)"
        raise GgufError(self._path, problem, "give the path of a .gguf file, or download it again")

    def _value(self, key: str) -> Value:
        kind = self._kind(key)
        if kind is GGUFValueType.ARRAY:
            return self._array(key)
        if kind is not GGUFValueType.STRING:
            return self._scalar(kind, key)
        length = self._u64(key)
        if length > TEXT_MAX:
            offset = self._at
            self._pass(length, key)
            return Array("UINT8", length, offset=offset)
        self._back(_U64.size)
        return self.text(key, TEXT_MAX)

    def _array(self, key: str) -> Array:
        kind = self._kind(key)
        if kind is GGUFValueType.ARRAY:
            raise self._fail("an array of arrays", DAMAGED, key)
        size = _STRING_MIN if kind is GGUFValueType.STRING else SCALARS[kind].size
        count = self._count(key, LENGTH_MAX, size)
        offset = self._at
        if kind is GGUFValueType.STRING:
            for _ in range(count):
                self.pass_text(key)
            return Array(kind.name, count, offset=offset)
        if count > ITEMS_MAX:
            self._pass(count * size, key)
            return Array(kind.name, count, offset=offset)
        self._keep(32 * count, key)
        return Array(kind.name, count, tuple(self._scalar(kind, key) for _ in range(count)), offset)

    def _tensor(self, number: int) -> tuple[Tensor, int]:
        """A tensor info, and where its data begins within the data."""
        name = self.text(f"name of tensor {number}", NAME_MAX - 1)
        field = f"tensor {number} ({name})"
        n_dimensions = self._u32(field)
        if n_dimensions > DIMENSIONS_MAX:
            raise self._fail(f"{n_dimensions} dimensions, and at most {DIMENSIONS_MAX} are possible", DAMAGED, field)
        dimensions = tuple(self._u64(field) for _ in range(n_dimensions))
        elements = math.prod(dimensions)
        kind = self._u32(field)
        offset = self._u64(field)
        if kind not in QUANTS:
            shown = REMOVED.get(kind, str(kind))
            remedy = "get the model in another quantisation" if kind in REMOVED else f"{DAMAGED}, or update lcpd"
            raise self._fail(f"the tensor type {shown} is unknown", remedy, field)
        quant, block, size = QUANTS[kind]
        row = dimensions[0] if dimensions else 1
        if row % block:
            raise self._fail(
                f"rows of {row} elements are no multiple of the {block} of a {quant} block", DAMAGED, field
            )
        return Tensor(name, dimensions, quant, elements, elements // block * size), offset

    def _check_data(self, infos: list[tuple[Tensor, int]], alignment: int) -> None:
        """The tensors' data must follow one another, as llama.cpp demands, and be there."""
        begin = -(-self._at // alignment) * alignment
        expected = 0
        for tensor, offset in infos:
            if offset != expected:
                raise self._fail(f"its data is at {offset}, and should be at {expected}", DAMAGED, tensor.name)
            expected += -(-tensor.nbytes // alignment) * alignment
            if begin + offset + tensor.nbytes > self._size:
                problem = f"its data ends at byte {begin + offset + tensor.nbytes}, and the file has {self._size} bytes"
                raise self._fail(problem, "the download is not complete: continue it", tensor.name)

    # -- bytes

    def _keep(self, count: int, field: str) -> None:
        self._kept -= count
        if self._kept < 0:
            raise self._fail(f"more than {KEPT_MAX} bytes of metadata and names", DAMAGED, field)

    def _count(self, field: str, limit: int, smallest: int) -> int:
        """A number of things of at least `smallest` bytes each, all of which the file must still hold."""
        count = self._u64(field)
        if count > limit or count * smallest > self._end - self._at:
            raise self._fail(
                f"a count of {count}, which the {self._end - self._at} bytes that follow cannot hold"
                if count <= limit
                else f"a count of {count}, and at most {limit} are allowed",
                DAMAGED,
                field,
            )
        return count

    def _kind(self, field: str) -> GGUFValueType:
        kind = self._u32(field)
        if kind > max(GGUFValueType):
            raise self._fail(f"the value type {kind} is unknown", f"{DAMAGED}, or update lcpd", field)
        return GGUFValueType(kind)

    def _scalar(self, kind: GGUFValueType, field: str) -> int | float | bool:
        form = SCALARS[kind]
        value: int | float | bool = form.unpack(self._bytes(form.size, field))[0]
        return value

    def _u32(self, field: str) -> int:
        value: int = _U32.unpack(self._bytes(4, field))[0]
        return value

    def _u64(self, field: str) -> int:
        value: int = _U64.unpack(self._bytes(8, field))[0]
        return value

    def _bytes(self, count: int, field: str) -> bytes:
        self._need(count, field)
        found = self._file.read(count)
        if len(found) != count:
            raise self._fail("the file became shorter while it was read", "try again", field)
        self._at += count
        return found

    def _pass(self, count: int, field: str) -> None:
        self._need(count, field)
        self._file.seek(count, os.SEEK_CUR)
        self._at += count

    def _back(self, count: int) -> None:
        self._file.seek(-count, os.SEEK_CUR)
        self._at -= count

    def _need(self, count: int, field: str) -> None:
        if count <= self._end - self._at:
            return
        if self._end < self._size:
            raise self._fail(f"the header is longer than {LENGTH_MAX} bytes", DAMAGED, field)
        raise self._fail(f"{count} bytes are needed here, and {self._end - self._at} are left", DAMAGED, field)

    def _fail(self, problem: str, remedy: str, field: str = "") -> GgufError:
        return GgufError(self._path, problem, remedy, self._at, field)
