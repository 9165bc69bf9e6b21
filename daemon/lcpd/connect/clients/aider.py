"""aider: ``.aider.conf.yml`` and ``.aider.model.metadata.json`` (https://aider.chat/docs/config.html)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lcpd.connect.edits import NO_KEY, PATIENCE_MS, Edit, Facts, FilePlan, Plan


def plan(facts: Facts, home: Path, environ: Mapping[str, str]) -> Plan:
    """The model under a name that aider takes for the OpenAI protocol, and its limits."""
    name = f"openai/{facts.model}"
    settings = [
        Edit(("model",), name),
        Edit(("weak-model",), name),
        Edit(("openai-api-base",), facts.v1, "url"),
        Edit(("timeout",), PATIENCE_MS // 1000, "at least"),
    ]
    exports: tuple[tuple[str, str], ...] = ()
    if facts.key:
        exports = (("OPENAI_API_KEY", facts.key_word),)
    else:
        settings.append(Edit(("openai-api-key",), NO_KEY, "key"))
    limits = (
        Edit((name, "max_tokens"), facts.output, "at most"),
        Edit((name, "max_output_tokens"), facts.output, "at most"),
        Edit((name, "max_input_tokens"), facts.safe_context, "at most", facts.context),
        Edit((name, "litellm_provider"), "openai"),
        Edit((name, "mode"), "chat"),
    )
    return Plan(
        (
            FilePlan(home / ".aider.conf.yml", "yaml", tuple(settings)),
            FilePlan(home / ".aider.model.metadata.json", "json", limits),
        ),
        exports,
    )
