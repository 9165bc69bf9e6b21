"""Qwen Code: ``settings.json`` (https://qwenlm.github.io/qwen-code-docs/en/users/configuration/settings)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lcpd.connect.edits import KEY_VARIABLE, NO_KEY, PATIENCE_MS, Edit, Facts, FilePlan, Member, Plan


def plan(facts: Facts, home: Path, environ: Mapping[str, str]) -> Plan:
    """A model among those of the OpenAI protocol, chosen at the start."""
    model = ("modelProviders", "openai", Member("id", facts.model))
    generation = (*model, "generationConfig")
    edits = (
        Edit((*model, "name"), f"{facts.model} (lcpd)"),
        Edit((*model, "envKey"), KEY_VARIABLE),
        Edit((*model, "baseUrl"), facts.v1, "url"),
        # It hangs up after 120 s otherwise.
        Edit((*generation, "timeout"), PATIENCE_MS, "at least"),
        Edit((*generation, "streamIdleTimeoutMs"), PATIENCE_MS, "at least"),
        Edit((*generation, "contextWindowSize"), facts.safe_context, "at most", facts.context),
        Edit((*generation, "samplingParams", "max_tokens"), facts.output, "at most"),
        Edit(("env", KEY_VARIABLE), facts.key or NO_KEY, "key"),
        # No limit for one whole answer, which is 15 minutes otherwise.
        Edit(("env", "QWEN_STREAM_MAX_LIFETIME_MS"), "0"),
        Edit(("security", "auth", "selectedType"), "openai"),
        Edit(("model", "name"), facts.model),
    )
    return Plan((FilePlan(home / ".qwen" / "settings.json", "json", edits),))
