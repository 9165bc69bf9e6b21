"""One reply being parsed; what the parser cannot read is passed on as text, so that a stream never breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lcpd.chat.mending import continuation, ending, of_call, unread
from lcpd.chat.replay import same_message
from lcpd.chat.replies import add_delta
from lcpd.native.bridge import BridgeError, Request, Stream
from lcpd.native.model import Tokens

Json = dict[str, Any]
_PARTS = ("content", "reasoning_content", "tool_calls")


class ReplyParser:
    """Raw model text in, OpenAI deltas out.

    What llama.cpp passes over without a word (a call of a tool that there is not, text behind a call) is shown as
    text, and a call that it takes back once a part of it was shown is kept: whole replies say what streams do.
    """

    def __init__(self, request: Request, thinking_end_tags: list[str], openings: list[str]) -> None:
        """`thinking_end_tags`: what ends a reasoning block in the raw text; `openings`: what begins a tool call."""
        self._stream = Stream(request)
        self._end_tags = thinking_end_tags
        self._openings = openings
        self._raw = ""
        self._shown_until = 0
        """Where in `_raw` the text ends that has been passed on."""
        self._message: Json = {"role": "assistant", "content": ""}

    def push(self, text: str, final: bool, cut: bool = False) -> tuple[list[Json], Json | None]:
        """Add text; returns the new deltas and, when final, the whole message.

        `cut`: the reply was cut off, so what is open in it is not to be closed.
        """
        self._raw += text
        try:
            result = self._stream.push(text, final)
        except BridgeError:
            # The text does not follow the template's format.  More text may mend that; at the end nothing will.
            return ([], None) if not final else self._give_up()
        deltas: list[Json] = result["deltas"]
        for delta in deltas:
            self._show(delta)
        if not final:
            return deltas, None
        message: Json = result["message"]
        if not any(message.get(part) for part in _PARTS):
            # llama.cpp has made nothing of it, not even a role.
            more, message = self._give_up()
            return deltas + more, message
        shown, read = self._calls, message.get("tool_calls") or []
        more = [self._ended(len(read) - 1)] if read and len(read) == len(shown) and not cut else []
        more += self._as_text(unread(self._behind_reasoning(), self._openings, len(shown)))
        for delta in (more := [delta for delta in more if delta]):
            self._show(delta)
        return deltas + more, self._message if more or len(read) < len(shown) else message

    @property
    def _calls(self) -> list[Json]:
        calls: list[Json] = self._message.get("tool_calls") or []
        return calls

    def _show(self, delta: Json) -> None:
        add_delta(self._message, delta)
        if "tool_calls" in delta:
            self._shown_until = len(self._raw)
        elif shown := delta.get("content") or delta.get("reasoning_content"):
            at = self._raw.find(shown, self._shown_until)
            self._shown_until = at + len(shown) if at >= 0 else self._shown_until

    def _ended(self, index: int) -> Json:
        """A delta that closes what is open in a call's arguments; {} where nothing is, or where that helps nothing."""
        added = ending(self._calls[index]["function"]["arguments"])
        return _arguments(index, added) if added else {}

    def _as_text(self, text: str) -> list[Json]:
        """A delta of what was not read, unless there is nothing, or it is in the content already."""
        content = self._message["content"] or ""
        return [{"content": text.strip()}] if text.strip() and text.strip() not in content else []

    def _behind_reasoning(self) -> str:
        """The raw text behind the reasoning that was read."""
        reasoning = (self._message.get("reasoning_content") or "").strip()
        at = self._raw.find(reasoning)
        return self._raw[at + len(reasoning) :] if at >= 0 else self._raw

    def _give_up(self) -> tuple[list[Json], Json]:
        """The reply ended in something that is no valid format: what has not been shown of it is shown as it is."""
        deltas: list[Json] = []
        calls, raw = len(self._calls), self._behind_reasoning()
        added = None
        if calls:
            added = continuation(self._calls[-1]["function"]["arguments"], of_call(raw, self._openings, calls))
        if added is not None:
            deltas = [_arguments(calls - 1, added)] if added else []
            rest = unread(raw, self._openings, calls)
        else:
            rest = self._raw[self._shown_until :]
            for tag in self._end_tags:
                rest = rest.partition(tag)[2] or rest
            rest = rest.lstrip() if not self._message["content"] else rest
        deltas += [{"content": rest}] if rest.strip() else []
        for delta in deltas:
            add_delta(self._message, delta)
        return deltas, self._message


def _arguments(index: int, more: str) -> Json:
    return {"tool_calls": [{"index": index, "function": {"arguments": more}}]}


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
