"""Claude Code: the ``env`` block of ``settings.json`` (https://docs.claude.com/en/docs/claude-code/settings)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lcpd.connect.edits import NO_KEY, PATIENCE_MS, Check, Edit, Facts, FilePlan, Plan

_LEAST_WINDOW = 100_000
"""Tokens; a smaller window is taken for this one."""
_MOST_RESERVED = 20_000
"""Tokens that are set aside for the reply at most."""
_FIRST_PROMPT = 21_000
"""Tokens of the system text and the tools, before anything was asked."""


def plan(facts: Facts, home: Path, environ: Mapping[str, str]) -> Plan:
    """Environment variables, which the settings can hold."""
    window = max(_LEAST_WINDOW, facts.context)
    values: list[tuple[str, str, Check]] = [
        ("ANTHROPIC_BASE_URL", facts.url, "url"),
        ("ANTHROPIC_AUTH_TOKEN", facts.key or NO_KEY, "key"),
        ("ANTHROPIC_MODEL", facts.model, "same"),
        # For its side requests, and for what agents and /model call by these names.
        *((f"ANTHROPIC_DEFAULT_{name}_MODEL", facts.model, "same") for name in ("HAIKU", "SONNET", "OPUS")),
        # Its value changes with every session and stands before all else, so nothing would be reused.
        ("CLAUDE_CODE_ATTRIBUTION_HEADER", "0", "same"),
        ("CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS", "1", "same"),
        ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", str(facts.output), "at most"),
        # Without a window an unknown model never compacts.
        ("CLAUDE_CODE_AUTO_COMPACT_WINDOW", str(window), "at most"),
        ("CLAUDE_STREAM_IDLE_TIMEOUT_MS", str(PATIENCE_MS // 2), "at least"),
        ("API_TIMEOUT_MS", str(PATIENCE_MS), "at least"),
        ("API_FORCE_IDLE_TIMEOUT", "0", "same"),
    ]
    if facts.context < _LEAST_WINDOW:
        values.append(("CLAUDE_AUTOCOMPACT_PCT_OVERRIDE", str(compact_percent(facts)), "at most"))
    folder = Path(environ.get("CLAUDE_CONFIG_DIR") or home / ".claude")
    edits = tuple(Edit(("env", name), value, check) for name, value, check in values)
    notes: tuple[str, ...] = ()
    if compact_at(facts) < _FIRST_PROMPT:
        notes = (
            f"Claude Code begins with about {_FIRST_PROMPT} tokens: a context of {facts.context} makes it compact all"
            " the time. Give the model 49152 or more (model.ctx).",
        )
    shell = tuple((name, value) for name, value, check in values if check != "key")
    return Plan(
        (FilePlan(folder / "settings.json", "json", edits),),
        instead=(*shell, ("ANTHROPIC_AUTH_TOKEN", facts.key_word or NO_KEY)),
        notes=notes,
    )


def compact_at(facts: Facts) -> int:
    """Tokens at which to compact: a reply has room, and so has what the tools of one more turn bring."""
    return max(1, facts.context - 2 * facts.output)


def compact_percent(facts: Facts) -> int:
    """The share of what it takes for its window (less a reply) at which it is to compact, for a context below that."""
    reserved = min(_MOST_RESERVED, facts.output)
    return max(1, compact_at(facts) * 100 // (_LEAST_WINDOW - reserved))
