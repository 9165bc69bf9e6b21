"""OpenCode: ``opencode.json`` or ``opencode.jsonc`` (https://opencode.ai/docs/config)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lcpd.connect.edits import KEY_VARIABLE, PATIENCE_MS, Edit, Facts, FilePlan, Plan


def plan(facts: Facts, home: Path, environ: Mapping[str, str]) -> Plan:
    """A provider of its own, with the limits without which OpenCode never compacts."""
    provider = ("provider", "lcpd")
    model = (*provider, "models", facts.model)
    edits = [
        Edit((*provider, "npm"), "@ai-sdk/openai-compatible"),
        Edit((*provider, "name"), "lcpd"),
        Edit((*provider, "options", "baseURL"), facts.v1, "url"),
        Edit((*provider, "options", "timeout"), PATIENCE_MS, "at least"),
        Edit((*model, "name"), facts.model),
        Edit((*model, "reasoning"), True),
        Edit((*model, "tool_call"), True),
        # Both, or it loops; less than there is, because it estimates.
        Edit((*model, "limit", "context"), facts.safe_context, "at most", facts.context),
        Edit((*model, "limit", "output"), facts.output, "at most"),
        Edit(("model",), f"lcpd/{facts.model}"),
        Edit(("small_model",), f"lcpd/{facts.model}"),
    ]
    exports: tuple[tuple[str, str], ...] = ()
    if facts.key:
        edits.append(Edit((*provider, "options", "apiKey"), f"{{env:{KEY_VARIABLE}}}", "key"))
        exports = ((KEY_VARIABLE, facts.key_word),)
    return Plan((FilePlan(_file(home, environ), "json", tuple(edits)),), exports)


def _file(home: Path, environ: Mapping[str, str]) -> Path:
    if named := environ.get("OPENCODE_CONFIG"):
        return Path(named)
    folder = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "opencode"
    commented = folder / "opencode.jsonc"
    return commented if commented.exists() else folder / "opencode.json"
