"""Conversations of the kind that the embedded model was trained on."""

from __future__ import annotations

from typing import Any


def _tool(name: str, description: str, *parameters: str) -> dict[str, Any]:
    properties = {parameter: {"type": "string"} for parameter in parameters}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = (
    _tool("read_file", "Read a text file.", "path"),
    _tool("list_dir", "List the entries of a folder.", "path"),
    _tool("search", "Search files for a text.", "pattern", "path"),
    _tool("run_command", "Run a shell command.", "command"),
    _tool("write_file", "Write text to a file.", "path", "content"),
)

_REQUESTS = (
    "Read the file src/cache.py",
    "List the files in lib/",
    "Search for retry in src/",
    "Run the command make test",
    "Read the file docs/design.md",
    "Write hello to notes.txt",
    "List the files in tests/",
)

_AFTER_A_TOOL: list[dict[str, Any]] = [
    {"role": "user", "content": "Read the file src/slots.py"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "read_file", "arguments": '{"path": "src/slots.py"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "def free(slots):\n    return slots[0]\n"},
]

CONVERSATIONS: tuple[list[dict[str, Any]], ...] = (
    *([{"role": "user", "content": text}] for text in _REQUESTS),
    _AFTER_A_TOOL,
)
