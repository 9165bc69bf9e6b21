"""One reply being parsed; what the parser cannot read is passed on as text, so that a stream never breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lcpd.chat.replay import same_message
from lcpd.chat.replies import add_delta
from lcpd.native.bridge import BridgeError, Request, Stream
from lcpd.native.model import Tokens

Json = dict[str, Any]


class ReplyParser:
    """Raw model text in, OpenAI deltas out."""

    def __init__(self, request: Request, thinking_end_tags: list[str]) -> None:
        """`thinking_end_tags`: what ends a reasoning block in the raw text."""
        self._stream = Stream(request)
        self._end_tags = thinking_end_tags
        self._raw = ""
        self._shown_until = 0
        """Where in `_raw` the text ends that has been passed on."""
        self._message: Json = {"role": "assistant", "content": None}

    def push(self, text: str, final: bool) -> tuple[list[Json], Json | None]:
        """Add text; returns the new deltas and, when final, the whole message."""
        self._raw += text
        try:
            result = self._stream.push(text, final)
        except BridgeError:
            # The text does not follow the template's format.  More text may mend that; at the end nothing will.
            return ([], None) if not final else self._give_up()
        for delta in result["deltas"]:
            add_delta(self._message, delta)
            self._mark_shown(delta)
        return result["deltas"], result.get("message")

    def _mark_shown(self, delta: Json) -> None:
        if "tool_calls" in delta:
            self._shown_until = len(self._raw)
        elif shown := delta.get("content") or delta.get("reasoning_content"):
            at = self._raw.find(shown, self._shown_until)
            self._shown_until = at + len(shown) if at >= 0 else self._shown_until

    def _give_up(self) -> tuple[list[Json], Json]:
        """The reply ended in something that is no valid format: what has not been shown of it is shown as it is."""
        rest = self._raw[self._shown_until :]
        for tag in self._end_tags:
            rest = rest.partition(tag)[2] or rest
        rest = rest.lstrip() if not self._message["content"] else rest
        deltas: list[Json] = [{"content": rest}] if rest else []
        for delta in deltas:
            add_delta(self._message, delta)
        return deltas, self._message


class Comparison:
    """Whether two replies, each a message's tokens up to its end, say the same."""

    def __init__(self, request: Request, opening: str, read: Callable[[Tokens], bytes]) -> None:
        """`request`: whose format they have; `opening`: its generation prompt; `read`: the text of tokens."""
        self._request = request
        self._opening = opening
        self._read = read

    def __call__(self, written: Tokens, generated: Tokens) -> bool:
        """Whether they are the same text, or the same message to this request's parser."""
        texts = self._read(written), self._read(generated)
        if texts[0] == texts[1]:
            return True
        messages = [self._parsed(text) for text in texts]
        return None not in messages and same_message(messages[0] or {}, messages[1] or {})

    def _parsed(self, text: bytes) -> Json | None:
        """None where it is no whole reply of this format."""
        try:
            reply = text.decode()
            if not self._opening or not reply.startswith(self._opening):
                return None
            return self._request.parse(reply.removeprefix(self._opening))
        except (UnicodeDecodeError, BridgeError):
            return None
