"""Cline's command line: ``providers.json``, as ``cline auth`` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lcpd.connect.edits import NO_KEY, PATIENCE_MS, Edit, Facts, FilePlan, Plan

_PROVIDER = "openai-compatible"
_SOME_TIME = "2026-01-01T00:00:00.000Z"


def plan(facts: Facts, home: Path, environ: Mapping[str, str]) -> Plan:
    """The settings of the provider, and that it is the one to use."""
    provider = ("providers", _PROVIDER)
    settings = (*provider, "settings")
    edits = (
        Edit(("version",), 1),
        Edit(("lastUsedProvider",), _PROVIDER),
        Edit((*settings, "provider"), _PROVIDER),
        Edit((*settings, "apiKey"), facts.key or NO_KEY, "key"),
        Edit((*settings, "model"), facts.model),
        Edit((*settings, "baseUrl"), facts.v1, "url"),
        Edit((*settings, "contextWindow"), facts.safe_context, "at most", facts.context),
        Edit((*settings, "maxTokens"), facts.output, "at most"),
        Edit((*settings, "timeout"), PATIENCE_MS, "at least"),
        # Without these two it takes the whole entry for damaged.
        Edit((*provider, "tokenSource"), "manual"),
        Edit((*provider, "updatedAt"), _SOME_TIME, "any"),
    )
    data = Path(environ.get("CLINE_DATA_DIR") or Path(environ.get("CLINE_DIR") or home / ".cline") / "data")
    return Plan((FilePlan(data / "settings" / "providers.json", "json", edits),))
