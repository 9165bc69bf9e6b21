"""One reply being parsed; what the parser cannot read is passed on as text, so that a stream never breaks."""

from __future__ import annotations

from typing import Any

from lcpd.chat.replies import add_delta
from lcpd.native.bridge import BridgeError, Request, Stream


class ReplyParser:
    """Raw model text in, OpenAI deltas out."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._stream = Stream(request)
        self._unparsed = ""
        """Text since the last push that could be parsed."""
        self._message: dict[str, Any] = {"role": "assistant", "content": None}

    def push(self, text: str, final: bool) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        """Add text; returns the new deltas and, when final, the whole message."""
        self._unparsed += text
        try:
            result = self._stream.push(text, final)
        except BridgeError:
            # The text does not follow the template's format.  More text may mend that; at the end nothing will.
            if not final:
                return [], None
            deltas = [{"content": self._unparsed}] if self._unparsed else []
            for delta in deltas:
                add_delta(self._message, delta)
            return deltas, self._message
        self._unparsed = ""
        for delta in result["deltas"]:
            add_delta(self._message, delta)
        return result["deltas"], result.get("message")
