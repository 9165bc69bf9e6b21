"""Pi: ``models.json`` and ``settings.json`` (docs/models.md and docs/settings.md of its package)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lcpd.connect.edits import KEY_VARIABLE, NO_KEY, Edit, Facts, FilePlan, Member, Plan

_MOST_KEPT = 20_000
"""Tokens of the latest messages that a compaction leaves as they are at most: as many as Pi does by itself."""


def plan(facts: Facts, home: Path, environ: Mapping[str, str]) -> Plan:
    """A provider of its own, and that its model is the one to use."""
    provider = ("providers", "lcpd")
    model = (*provider, "models", Member("id", facts.model))
    models = (
        Edit((*provider, "baseUrl"), facts.v1, "url"),
        Edit((*provider, "api"), "openai-completions"),
        # The name of a variable is taken for its value.
        Edit((*provider, "apiKey"), KEY_VARIABLE if facts.key else NO_KEY, "key"),
        Edit((*model, "name"), f"{facts.model} (lcpd)"),
        Edit((*model, "reasoning"), True),
        Edit((*model, "contextWindow"), facts.safe_context, "at most", facts.context),
        Edit((*model, "maxTokens"), facts.output, "at most"),
    )
    chosen = (
        Edit(("defaultProvider",), "lcpd"),
        Edit(("defaultModel",), facts.model),
        # What it reserves and keeps as it comes (16384 and 20000) leaves a small context nothing to compact.
        Edit(("compaction", "reserveTokens"), facts.output, "at least"),
        Edit(("compaction", "keepRecentTokens"), min(_MOST_KEPT, facts.context // 8), "at most"),
    )
    folder = Path(environ.get("PI_CODING_AGENT_DIR") or home / ".pi" / "agent")
    return Plan(
        (FilePlan(folder / "models.json", "json", models), FilePlan(folder / "settings.json", "json", chosen)),
        exports=((KEY_VARIABLE, facts.key_word),) if facts.key else (),
    )
