"""The tokenizer that a file describes, without its vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lcpd.inspect.header import Array, strings_at
from lcpd.inspect.metadata import Metadata

_IDS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "eot": "eot_token_id",
    "eom": "eom_token_id",
    "unknown": "unknown_token_id",
    "separator": "seperator_token_id",  # spelt so in GGUF
    "padding": "padding_token_id",
    "cls": "cls_token_id",
    "mask": "mask_token_id",
    "fim prefix": "fim_pre_token_id",
    "fim suffix": "fim_suf_token_id",
    "fim middle": "fim_mid_token_id",
}


@dataclass(frozen=True)
class Special:
    """A token with a role."""

    id: int
    text: str | None
    """None where the file has no token of this number."""


@dataclass(frozen=True)
class Tokenizer:
    """How a model's text becomes tokens."""

    model: str
    """"gpt2" (BPE), "llama" (SentencePiece), "bert" (WordPiece), "t5" (unigram), "rwkv"; "" where nothing is said."""
    pre: str
    """Which rules split text before BPE; "" where nothing is said."""
    tokens: int
    """0 where the file has no list of tokens."""
    merges: int
    special: Mapping[str, Special]
    """By role."""
    adds_bos: bool | None
    """None where the file does not say."""
    adds_eos: bool | None


def tokenizer_of(metadata: Metadata, path: Path) -> Tokenizer:
    """The tokenizer of a model; `path` is its (first) file, of which only the special tokens' texts are read.

    Raises ShapeError and GgufError.
    """
    ids = {
        role: metadata.integer(f"tokenizer.ggml.{key}")
        for role, key in _IDS.items()
        if metadata.has(f"tokenizer.ggml.{key}")
    }
    listed = metadata.values.get("tokenizer.ggml.tokens")
    texts = strings_at(path, listed, set(ids.values())) if isinstance(listed, Array) else {}
    return Tokenizer(
        model=metadata.text("tokenizer.ggml.model") or "",
        pre=metadata.text("tokenizer.ggml.pre") or "",
        tokens=metadata.count("tokenizer.ggml.tokens"),
        merges=metadata.count("tokenizer.ggml.merges"),
        special={role: Special(number, texts.get(number)) for role, number in ids.items()},
        adds_bos=metadata.flag("tokenizer.ggml.add_bos_token"),
        adds_eos=metadata.flag("tokenizer.ggml.add_eos_token"),
    )
