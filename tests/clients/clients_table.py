"""The clients: what is different about each.  What Codex alone has is in test_clients_codex.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from clients_run import npm_program, pypi_program

PATIENCE_MS = 2000
"""What the patience of each client is scaled down to."""


@dataclass(frozen=True)
class Impatience:
    """A value in a client's configuration that makes it wait less."""

    file: str
    """In the home folder."""
    place: tuple[str | int, ...]
    value: object = PATIENCE_MS


@dataclass(frozen=True)
class Headless:
    """A client as it is run without a terminal."""

    program: Callable[[], Path]
    first: tuple[str, ...]
    """Arguments, before the text, that begin a session."""
    again: tuple[str, ...]
    """The same that go on with the last one; (): only its terminal interface can."""
    prompt: int
    """Bytes of its first prompt, about."""
    tool: str = ""
    """The tool that runs a command; "": it has none."""
    arguments: Callable[[str], dict[str, object]] = lambda command: {"command": command}
    """The tool's, for a command."""
    forgets: str = ""
    """Where a resumed prompt parts from the one before: what it leaves out then; "": nothing."""
    own: str = ""
    """Where it has no tool: what the prompts of its conversation have in them."""
    side: str = ""
    """What is in the prompts of an agent of its own, which has the same tool; "": there is none."""
    compaction: str = ""
    """What is in the prompt that asks for a summary of the conversation; "": it asks for none."""
    refused: int = 0
    """The exit status of a run in which a prompt did not fit, although it went on."""
    variables: dict[str, str] = field(default_factory=dict)
    """Environment that a run without network or terminal needs; the configuration is that of ``lcpd connect``."""
    impatience: tuple[Impatience, ...] = ()
    config: str = ""
    """The file in the home folder in which ``lcpd connect`` sets how long it waits; "": it has no limit."""
    patience: tuple[str, ...] = ()
    """The names under which it does."""


_QWEN_MODEL = ("modelProviders", "openai", 0, "generationConfig")
_AIDER = ("--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings", "--analytics-disable")
CODEX = "0.171.0"
_CODEX = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
HEADLESS = {
    "claude-code": Headless(
        lambda: npm_program("@anthropic-ai/claude-code", "2.1.332", "claude"),
        ("--allowedTools", "Bash", "--print"),
        ("--allowedTools", "Bash", "--continue", "--print"),
        46_000,
        "Bash",
        lambda command: {"command": command, "description": "Print the sum"},
        compaction="Your task is to create a detailed summary",
        variables={"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CODE_MAX_RETRIES": "0"},
        # It waits for minutes whatever CLAUDE_STREAM_IDLE_TIMEOUT_MS says, so its patience cannot be scaled down.
        config=".claude/settings.json",
        patience=("CLAUDE_STREAM_IDLE_TIMEOUT_MS", "API_TIMEOUT_MS", "API_FORCE_IDLE_TIMEOUT"),
    ),
    "opencode": Headless(
        lambda: npm_program("opencode-ai", "1.18.33", "opencode"),
        ("run", "--auto"),
        ("run", "--auto", "--continue"),
        30_000,
        "bash",
        lambda command: {"command": command, "description": "Print the sum"},
        compaction="You are a context summarization agent",
        refused=1,
        variables={"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"},
        impatience=(Impatience(".config/opencode/opencode.json", ("provider", "lcpd", "options", "chunkTimeout")),),
        config=".config/opencode/opencode.json",
        patience=("timeout",),
    ),
    "qwen-code": Headless(
        lambda: npm_program("@qwen-code/qwen-code", "0.24.4", "qwen"),
        ("--yolo",),
        ("--yolo", "--continue"),
        75_000,
        "run_shell_command",
        lambda command: {"command": command, "is_background": False},
        side="memory extraction subagent",
        compaction="You are the component that summarizes a conversation",
        forgets="<system-reminder>\nThe current date is",
        impatience=(
            # For the headers.  Its streamIdleTimeoutMs counts chunks alone, not comments.
            Impatience(".qwen/settings.json", (*_QWEN_MODEL, "timeout")),
        ),
        config=".qwen/settings.json",
        patience=("timeout", "streamIdleTimeoutMs", "QWEN_STREAM_MAX_LIFETIME_MS"),
    ),
    "pi": Headless(
        lambda: npm_program("@mariozechner/pi-coding-agent", "0.73.1", "pi"),
        ("--offline", "--print"),
        ("--offline", "--continue", "--print"),
        6_000,
        "bash",
        compaction="You are a context summarization assistant",
    ),
    "cline": Headless(
        lambda: npm_program("cline", "3.0.65", "cline"),
        (),
        (),
        20_000,
        "run_commands",
        lambda command: {"commands": [command]},
        impatience=(
            Impatience(
                ".cline/data/settings/providers.json", ("providers", "openai-compatible", "settings", "timeout")
            ),
        ),
        config=".cline/data/settings/providers.json",
        patience=("timeout",),
    ),
    "aider": Headless(
        lambda: pypi_program("aider-chat", "0.86.1", "aider"),
        (*_AIDER, "--message"),
        (*_AIDER, "--restore-chat-history", "--message"),
        3_000,
        own="I am not sharing any files",
        config=".aider.conf.yml",
        patience=("timeout",),
    ),
    "codex": Headless(
        lambda: npm_program("@openai/codex", CODEX, "codex"),
        ("exec", *_CODEX),
        ("exec", *_CODEX, "resume", "--last"),
        35_000,
        "exec_command",
        lambda command: {"cmd": command},
        config=".codex/config.toml",
        patience=("stream_idle_timeout_ms",),
    ),
}
WITH_TOOLS = [name for name, facts in HEADLESS.items() if facts.tool]
BUT_CODEX = [name for name in HEADLESS if name != "codex"]
