"""Runs CMake and ninja: progress from ninja's step count, everything into a log, the usual cause on failure."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from lcpd.build.diagnose import diagnose
from lcpd.build.errors import BuildError

TAIL_LINES = 30
# Causes such as a killed compiler are named well before the end when several jobs run at once.
_DIAGNOSIS_LINES = 400
_STEP = re.compile(r"\[(\d+)/(\d+)\]")


def parse_step(line: str) -> tuple[int, int] | None:
    """(done, total) from ninja's ``[12/214] Building ...``."""
    match = _STEP.match(line)
    return (int(match[1]), int(match[2])) if match else None


def run_logged(
    command: list[str],
    log: TextIO,
    on_step: Callable[[int, int], None] = lambda done, total: None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Runs the command with its output in the log.

    Raises `BuildError` with the last lines and the usual cause when it fails.  When the caller is interrupted, the
    command is ended too; what it has compiled is kept and the next build goes on from there.
    """
    log.write(f"$ {shlex.join(command)}\n")
    log.flush()
    tail: deque[str] = deque(maxlen=_DIAGNOSIS_LINES)
    process = subprocess.Popen(
        command,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **(environment or {}), "NINJA_STATUS": "[%f/%t] "},
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            log.write(line)
            tail.append(line.rstrip("\n"))
            step = parse_step(line)
            if step is not None:
                on_step(*step)
        returncode = process.wait()
    except BaseException:
        process.terminate()  # ninja ends its compilers in turn
        process.wait()
        raise
    finally:
        log.flush()
    if returncode != 0:
        raise BuildError(failure_text(command, list(tail), returncode, Path(log.name)))


def failure_text(command: list[str], tail: list[str], returncode: int, log: Path) -> str:
    """What the user reads about a failed command."""
    cause = diagnose("\n".join(tail), returncode)
    lines = [*tail[-TAIL_LINES:], f"{Path(command[0]).name} failed with exit code {returncode}; the whole log is {log}"]
    if cause is not None:
        lines.append(f"usual cause: {cause.name}. Remedy: {cause.remedy}")
    return "\n".join(lines)
