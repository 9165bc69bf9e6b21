"""What a reranker is given of a query and a document: llama-server's layout (``format_prompt_rerank``)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_PLACES = re.compile(r"\{query\}|\{document\}")


@dataclass(frozen=True)
class Ends:
    """How a vocabulary wants the ends of texts marked; -1 where it does not."""

    bos: int
    eos: int
    sep: int


def pair(
    query: str, document: str, template: str | None, ends: Ends, tokenize: Callable[[str, bool], list[int]]
) -> list[int]:
    """The tokens of a pair; `template` is the model's own.  `tokenize`'s flag: whether special tokens are read."""
    if template is not None:
        # In one pass: a query may itself say {document}.
        texts = {"{query}": query, "{document}": document}
        return tokenize(_PLACES.sub(lambda place: texts[place[0]], template), True)
    marks = [[token] if token >= 0 else [] for token in (ends.bos, ends.eos, ends.sep)]
    bos, eos, sep = marks
    return [*bos, *tokenize(query, False), *eos, *sep, *tokenize(document, False), *eos]
