"""What llama.cpp can make no grammar of in the tools' schemas, found before minutes go into it, or told afterwards.

Optional properties become one repetition of as many alternatives as there are, and llama.cpp's parser of grammars
allows 2000 rules in one (MAX_REPETITION_THRESHOLD of src/llama-grammar.cpp).  It says so after the work, which takes
seconds with 20,000 properties.  With templates that write calls as JSON 1000 are too many, and the work grows with the
square of their number; whether a template is one of those only its grammar tells, so between the two it is told late.
"""

from __future__ import annotations

from typing import Any

import msgspec

from lcpd.chat.schema import parts

PROPERTIES_MAX = 1999
"""Properties of one object."""
_SMALLEST = 8 * PROPERTIES_MAX
"""Bytes of JSON that more properties than that take: `"a1":{},`."""


class _Body(msgspec.Struct):
    """The fields of a chat body that grammars come from."""

    tools: list[msgspec.Raw] | None = None
    grammar: str | None = None


def too_large(body: bytes) -> str | None:
    """Why no grammar can be made of the tools of a chat body in OpenAI's shape; None where it can be tried."""
    if len(body) < _SMALLEST:
        return None
    for index, raw in enumerate(_read(body).tools or []):
        if len(raw) < _SMALLEST:
            continue
        tool = msgspec.json.decode(raw)
        function: Any = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict):
            continue
        for path, schema in parts(function.get("parameters")):
            properties = schema.get("properties")
            if isinstance(properties, dict) and len(properties) > PROPERTIES_MAX:
                name = str(function.get("name"))[:64]
                return (
                    f"Field 'tools': an object of tools[{index}] ({name!r}, at {path[:200]}) has {len(properties)}"
                    f" properties, and at most {PROPERTIES_MAX} are possible: leave some out, or divide the tool"
                )
    return None


def blamed_on_tools(problem: str, body: bytes) -> str:
    """A refusal of llama.cpp about a grammar, with the remedy where it has made that grammar of a body's tools."""
    if "grammar" not in problem:
        return problem
    asked = _read(body)
    if not asked.tools or asked.grammar:
        return problem
    return (
        f"Field 'tools': llama.cpp can make no grammar of the tools' schemas ({problem}): leave out tools, or give them"
        " fewer properties and smaller limits (maxItems, maxLength)"
    )


def _read(body: bytes) -> _Body:
    """Nothing where the body has another shape, about which llama.cpp has its own words."""
    try:
        return msgspec.json.decode(body, type=_Body)
    except msgspec.MsgspecError:
        return _Body()
