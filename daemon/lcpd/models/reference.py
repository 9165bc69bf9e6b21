"""What a model reference (``REF``) means.  Pure: no file is looked at."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from lcpd.models.catalogue import PACKAGED

_DEMOS = ", ".join(f"demo:{name}" for name in ("hybrid", *PACKAGED))
FORMS = f"a path to a .gguf file, {_DEMOS} or hf:OWNER/REPO[:QUANT]"

_HUB = re.compile(r"hf:(?P<owner>[^/:]+)/(?P<repo>[^/:]+)(?::(?P<quant>[^/:]+))?")
_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
_SHARD = re.compile(r"(?P<stem>.+)-(?P<index>[0-9]{5})-of-(?P<count>[0-9]{5})", re.IGNORECASE)


class BadReference(ValueError):
    """The text is no model reference; the message names the forms."""


@dataclass(frozen=True)
class Demo:
    """A small model that ships with lcpd (``hybrid``) or comes in Python packages."""

    name: str

    def __str__(self) -> str:
        return f"demo:{self.name}"


@dataclass(frozen=True)
class Hub:
    """A model of the Hugging Face hub."""

    owner: str
    repo: str
    quant: str | None

    def __str__(self) -> str:
        return f"hf:{self.owner}/{self.repo}" + (f":{self.quant}" if self.quant else "")


@dataclass(frozen=True)
class File:
    """A GGUF file; of a split model the first part."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


Reference = Demo | Hub | File


def parse(text: str) -> Reference:
    """The reference that ``text`` spells; ``~`` in a path is expanded.  Raises ``BadReference``."""
    if text.startswith("demo:"):
        name = text.removeprefix("demo:")
        if name == "hybrid" or name in PACKAGED:
            return Demo(name)
        raise BadReference(f"unknown demo model {text!r}; a model is {FORMS}")
    if text.startswith("hf:"):
        match = _HUB.fullmatch(text)
        if match is None or not all(_NAME.fullmatch(part) for part in match.groups() if part is not None):
            raise BadReference(f"{text!r} does not have the form hf:OWNER/REPO or hf:OWNER/REPO:QUANT")
        return Hub(match["owner"], match["repo"], match["quant"])
    if not text.lower().endswith(".gguf"):
        raise BadReference(f"{text!r} is no model; a model is {FORMS}")
    try:
        path = Path(text).expanduser()
    except (RuntimeError, ValueError) as error:
        raise BadReference(f"{text!r}: {error}") from None
    shard = Shard.of(path.name)
    if shard is not None and shard.index != 1:
        raise BadReference(f"{text!r} is not the first part of a split model; give {shard.siblings()[0]}")
    return File(path)


@dataclass(frozen=True)
class Shard:
    """The name of one file of a split model: ``STEM-00001-of-00003.gguf``."""

    stem: str
    index: int
    count: int

    @classmethod
    def of(cls, filename: str) -> Shard | None:
        """The shard that this file name (ending in .gguf) is, or ``None`` for a model in one file."""
        match = _SHARD.fullmatch(filename[: -len(".gguf")])
        return cls(match["stem"], int(match["index"]), int(match["count"])) if match else None

    def siblings(self) -> tuple[str, ...]:
        """The file names of all parts in order."""
        return tuple(f"{self.stem}-{i:05}-of-{self.count:05}.gguf" for i in range(1, self.count + 1))
