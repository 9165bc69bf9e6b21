"""Who asks, and how urgently: what the scheduler needs to be fair.  Pure functions, and one small memory.

The class of a request is what its header or field says.  Where neither says anything, a chat without tools of a
program that has sent tools within the last ten minutes is a side request of an agent (a title, a summary, a
compaction), which must not hold up the conversation: it is a background one.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from lcpd.api.errors import bad_request
from lcpd.scheduler.generation import Priority

Json = dict[str, Any]
PRIORITY_HEADER = "x-lcpd-priority"
_SESSION_HEADERS = ("x-session-id", "x-session-affinity", "session-id", "thread-id", "x-claude-code-session-id")
_SIDE_REQUEST_SECONDS = 600.0
_MOST_PROGRAMS = 1000
OTHER = "other"
_SIGNS = (
    # Agents first: many of them name the library that they use, too.
    ("claude-cli", "claude-code"),
    ("codex", "codex"),
    ("opencode", "opencode"),
    ("qwencode", "qwen-code"),
    ("qwen-code", "qwen-code"),
    ("roocode", "roo-code"),
    ("cline", "cline"),
    ("aider", "aider"),
    ("litellm", "litellm"),
    ("ai-sdk", "ai-sdk"),
    ("openai", "openai-sdk"),
    ("anthropic", "anthropic-sdk"),
    ("curl/", "curl"),
    ("mozilla/", "browser"),
    ("prometheus/", "prometheus"),
)
"""What the User-Agent of a kind of program has in it, in lower case."""
PROGRAMS = (*dict.fromkeys(kind for _, kind in _SIGNS), OTHER)


@dataclass(frozen=True)
class Client:
    """Whom a request is for.  Neither value holds a key or anything else that a client sent as it is."""

    conversation: str
    """Those take turns in the queue: the key's name or the address, and the session where the client names one."""
    program: str
    """The key's name or the address, and the program that runs there."""
    kind: str
    """The kind of that program, see `program_of`."""


def identify(headers: Mapping[str, str], body: Json, key: str | None, address: str) -> Client:
    """The client of a request with the valid API key of this name, if keys are asked for, from this address.

    `headers` looks names up without regard to case.
    """
    who = key or address
    session = session_hint(headers, body)
    return Client(
        conversation=f"{who} {_digest(session)}" if session else who,
        program=f"{who} {_digest(headers.get('User-Agent', ''))}",
        kind=program_of(headers.get("User-Agent", "")),
    )


def program_of(user_agent: str) -> str:
    """The kind of program that calls itself so: one of `PROGRAMS`, or other."""
    agent = user_agent.lower()
    return next((kind for sign, kind in _SIGNS if sign in agent), OTHER)


def session_hint(headers: Mapping[str, str], body: Json) -> str | None:
    """What the client calls its conversation: the first of the headers and fields that clients use for it."""
    metadata = body.get("metadata")
    user_id = metadata.get("user_id") if isinstance(metadata, dict) else None
    hints = [headers.get(name) for name in _SESSION_HEADERS]
    hints += [body.get("prompt_cache_key"), body.get("user"), user_id]
    return next((hint for hint in hints if isinstance(hint, str) and hint), None)


def stated_priority(headers: Mapping[str, str], body: Json) -> Priority | None:
    """The class that the header or else the field `priority` names.  Raises ApiError for what is no class."""
    for name, value in ((PRIORITY_HEADER, headers.get(PRIORITY_HEADER)), ("priority", body.get("priority"))):
        if value is None:
            continue
        for priority in get_args(Priority):
            if value == priority:
                known: Priority = priority
                return known
        raise bad_request(f"{name} must be interactive or background, not {value!r}.", name)
    return None


def is_side_request(has_tools: bool, seconds_since_tools: float | None) -> bool:
    """Whether a chat is an agent's side request; `seconds_since_tools`: since the program last sent tools."""
    return not has_tools and seconds_since_tools is not None and seconds_since_tools <= _SIDE_REQUEST_SECONDS


class ToolUsers:
    """Remembers when each program last sent tools; forgets those that did so longest ago."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def priority(self, client: Client, has_tools: bool) -> Priority:
        """The class of a chat whose client states none; a chat with tools is remembered."""
        now = self._clock()
        if has_tools:
            self._last[client.program] = now
            self._last.move_to_end(client.program)
            if len(self._last) > _MOST_PROGRAMS:
                self._last.popitem(last=False)
        last = self._last.get(client.program)
        side = is_side_request(has_tools, None if last is None else now - last)
        return "background" if side else "interactive"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
