"""One module for each client: where its files are, and what they must say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lcpd.connect.clients import aider, claude_code, cline, codex, opencode, pi, qwen_code
from lcpd.connect.edits import Facts, Plan


@dataclass(frozen=True)
class Client:
    """A program that can be pointed at the daemon."""

    title: str
    plan: Callable[[Facts, Path, Mapping[str, str]], Plan]
    """Of what the daemon says, the user's home folder and the environment."""


CLIENTS = {
    "aider": Client("aider", aider.plan),
    "claude-code": Client("Claude Code", claude_code.plan),
    "cline": Client("Cline", cline.plan),
    "codex": Client("Codex", codex.plan),
    "opencode": Client("OpenCode", opencode.plan),
    "pi": Client("Pi", pi.plan),
    "qwen-code": Client("Qwen Code", qwen_code.plan),
}
