"""Codex: ``config.toml`` (https://developers.openai.com/codex/config-reference)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lcpd.connect.edits import KEY_VARIABLE, PATIENCE_MS, Edit, Facts, FilePlan, Plan


def plan(facts: Facts, home: Path, environ: Mapping[str, str]) -> Plan:
    """A provider of its own; Codex compacts by itself when the window it is told fills."""
    provider = ("model_providers", "lcpd")
    edits = [
        Edit(("model",), facts.model),
        Edit(("model_provider",), "lcpd"),
        Edit(("model_context_window",), facts.context, "at most"),
        Edit((*provider, "name"), "lcpd"),
        Edit((*provider, "base_url"), facts.v1, "url"),
        Edit((*provider, "wire_api"), "responses"),
        Edit((*provider, "stream_idle_timeout_ms"), PATIENCE_MS, "at least"),
    ]
    exports: tuple[tuple[str, str], ...] = ()
    if facts.key:
        # Only then: Codex does not start where the variable is not set.
        edits.append(Edit((*provider, "env_key"), KEY_VARIABLE, "key"))
        exports = ((KEY_VARIABLE, facts.key_word),)
    folder = Path(environ.get("CODEX_HOME") or home / ".codex")
    return Plan((FilePlan(folder / "config.toml", "toml", tuple(edits)),), exports)
