"""What a template makes of the tools beside the text, made once for the same tools.

For a request with tools llama.cpp writes a grammar, and a parser of replies, in the size of the tools: 6 ms for 25
of them, 25 for 100, seconds for thousands of properties, and an agent sends the same tools each turn.  All that comes
with a prompt depends on the messages in nothing but the generation prompt (what the template adds for a reply), unless
the prompt ends within a reply, and the prompt does not depend on ``tool_choice`` (llama.cpp, common/: chat.cpp,
chat-auto-parser-generator.cpp, parsers/*.cpp).  So once the rest is known, a prompt is rendered with the choice
"none", for which nothing is made of the tools but text.  ``tests/native/test_tool_memo.py`` holds that against all
templates that come with llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from lcpd.chat.recent import Recent
from lcpd.native.bridge import BridgeError

Json = dict[str, Any]
_Parts = dict[str, msgspec.Raw]
_Key = tuple[int, bytes]
_NONE = msgspec.Raw(b'"none"')
_NO_TOOLS = (b"null", b"[]")


class _Role(msgspec.Struct):
    role: str = ""


class ToolMemo:
    """Renders chats as `apply` does; remembers the fields of the last ones with tools, of each scope by itself."""

    def __init__(self, apply: Callable[[bytes], Json], max_bytes: int = 32_000_000) -> None:
        """`max_bytes`: of what is remembered, as JSON."""
        self._apply = apply
        self._known: Recent[_Key, dict[str, bytes]] = Recent(max_bytes)
        """By scope and all of a body but its messages: the fields but the prompt, as JSON, by generation prompt."""

    def applied(self, body: bytes, scope: int, remember: bool) -> Json:
        """The prompt and the fields that the template makes of a chat.  Without `remember` this leaves no trace.

        Raises what `apply` raises.
        """
        parts = _parts(body)
        if parts is None:
            return self._apply(body)
        key = (scope, _rest(parts))
        known = self._known.get(key, use=remember) or {}
        if known and (text := self._text(parts)) and (fields := known.get(text["generation_prompt"])):
            return {**msgspec.json.decode(fields), "prompt": text["prompt"]}
        made = self._apply(body)
        if remember:
            rest = msgspec.json.encode({name: value for name, value in made.items() if name != "prompt"})
            known = {**known, made["generation_prompt"]: rest}
            self._known.put(key, known, len(key[1]) + sum(map(len, known.values())))
        return made

    def _text(self, parts: _Parts) -> Json | None:
        """The prompt and its generation prompt.  None where it is refused: a schema is looked at only without tools, by
        some templates."""
        try:
            return self._apply(msgspec.json.encode({**parts, "tool_choice": _NONE}))
        except BridgeError:
            return None

    def forget(self) -> None:
        """Forget all of it."""
        self._known.clear()


def _parts(body: bytes) -> _Parts | None:
    """The fields of a chat with tools that may be called; None for all else.

    What ends within a reply is left out: the parser has to know where.
    """
    try:
        parts = msgspec.json.decode(body, type=_Parts)
        if bytes(parts.get("tools", _NO_TOOLS[0])) in _NO_TOOLS or parts.get("tool_choice") == _NONE:
            return None
        if "continue_final_message" in parts:
            return None
        messages = msgspec.json.decode(parts["messages"], type=list[_Role])
    except (msgspec.MsgspecError, KeyError):
        return None  # `apply` has its own words about that
    return parts if messages and messages[-1].role != "assistant" else None


def _rest(parts: _Parts) -> bytes:
    return msgspec.json.encode({name: raw for name, raw in sorted(parts.items()) if name != "messages"})
