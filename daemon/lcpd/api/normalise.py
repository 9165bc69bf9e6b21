"""What is put right in a body before it is rendered, because llama.cpp's own conversion ignores or refuses it.

Pure functions over plain JSON; they return new bodies and change none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from lcpd.api.errors import bad_request
from lcpd.api.media import text_only

Json = dict[str, Any]
ATTRIBUTION = "attribution"
"""What reports call the rule of `without_attribution`."""
_ATTRIBUTION = re.compile(r"\Ax-anthropic-billing-header:(?:\s*[\w.-]+=[^;\n]*(?:;|\Z|(?=\n)))*\s*")


def chat_body(plain: Json) -> Json:
    """A chat-completions body with a named tool_choice enforced and tool-call arguments that can be rendered."""
    changed = dict(plain)
    choice = plain.get("tool_choice")
    if isinstance(choice, dict):
        name = (choice.get("function") or {}).get("name")
        changed |= only_tool(plain, name, lambda tool: (tool.get("function") or {}).get("name"))
        # llama.cpp takes "auto" for an object; one tool and "required" is what is meant.
        changed["tool_choice"] = "required"
    messages = [text_only(message, f"messages[{i}]") for i, message in enumerate(plain["messages"])]
    changed["messages"] = [_with_readable_calls(message) for message in messages]
    return changed


def messages_body(plain: Json) -> tuple[Json, Json]:
    """An Anthropic body, and fields for the chat body that it is converted to."""
    changed: Json = dict(plain)
    overrides: Json = {}
    choice = plain.get("tool_choice") or {}
    if choice.get("type") == "none":
        overrides["tool_choice"] = "none"
    elif choice.get("type") == "tool":
        changed |= only_tool(plain, choice.get("name"), lambda tool: tool.get("name"))
    if (plain.get("thinking") or {}).get("type") == "disabled":
        kwargs = plain.get("chat_template_kwargs")
        overrides["chat_template_kwargs"] = {**(kwargs if isinstance(kwargs, dict) else {}), "enable_thinking": False}
    changed["messages"] = [text_only(message, f"messages[{i}]") for i, message in enumerate(plain["messages"])]
    return changed, overrides


def without_attribution(plain: Json) -> Json:
    """An Anthropic body without the line in front of the system text by which Claude Code says who pays.

    It differs from session to session, so all that follows would be new each time.  The same body where there is none.
    """
    system = plain.get("system")
    if isinstance(system, str):
        rest = _ATTRIBUTION.sub("", system)
        return plain if rest == system else {**plain, "system": rest}
    if not isinstance(system, list) or not any(map(_is_attributed, system)):
        return plain
    blocks = [{**b, "text": _ATTRIBUTION.sub("", b["text"])} if _is_attributed(b) else b for b in system]
    return {**plain, "system": [block for block in blocks if block.get("text") != ""]}


def _is_attributed(block: Any) -> bool:
    return isinstance(block, dict) and isinstance(block.get("text"), str) and bool(_ATTRIBUTION.match(block["text"]))


def only_tool(plain: Json, name: Any, name_of: Callable[[Json], Any]) -> Json:
    """The tools of a body without all but the named one.  Raises ApiError where there is no such tool."""
    tools = [tool for tool in plain.get("tools") or [] if name_of(tool) == name]
    if not tools:
        raise bad_request(f"tool_choice names the tool {name!r}, which is not among the tools.", "tool_choice")
    return {"tools": tools}


def _with_readable_calls(message: Json) -> Json:
    """A message whose tool calls' arguments are JSON objects.

    A call that was cut off comes back as it was sent, and some clients send "" for no arguments; templates need an
    object, and a conversation must not be refused for ever because of one such call.
    """
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_with_readable_arguments(call) for call in calls]}


def _with_readable_arguments(call: Json) -> Json:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(arguments := function.get("arguments"), str):
        return call
    try:
        if isinstance(msgspec.json.decode(arguments), dict):
            return call
    except (msgspec.DecodeError, RecursionError):  # the latter: nested too deep to be read
        pass
    readable = {"arguments": arguments} if arguments.strip() else {}
    return {**call, "function": {**function, "arguments": msgspec.json.encode(readable).decode()}}
