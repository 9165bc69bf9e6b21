"""The steps, their order and their time limits: pure decisions.  Times are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TOTAL = 540.0
"""For everything, so that a run fits into ten minutes with room for starting and ending."""


@dataclass(frozen=True)
class Step:
    """One process."""

    name: str
    module: str
    limit: float
    needs: tuple[str, ...]
    """Steps that must have passed."""
    cpu_only: bool = False
    """The GPU is hidden from it."""


STEPS = (
    # About an hour of CPU time, so it takes 16 cores or a finished build; what is left is enough for the short steps.
    Step("build", "check_gpu.build_step", 420.0, ()),
    Step("self-test", "check_gpu.selftest_step", 60.0, ("build",)),
    Step("reference", "check_gpu.reference_step", 60.0, ("build",), cpu_only=True),
    Step("text", "check_gpu.text_step", 60.0, ("reference", "self-test")),
    Step("state", "check_gpu.state_step", 60.0, ("self-test",)),
    Step("copy", "check_gpu.copy_step", 90.0, ("self-test",)),
    Step("speed", "check_gpu.speed_step", 60.0, ("self-test",)),
)


def allowance(step: Step, remaining: float) -> float:
    """How long the step may run when this much of the total is left; zero or less: not at all."""
    return min(step.limit, remaining)


def obstacle(step: Step, statuses: Mapping[str, str], passed: str) -> str | None:
    """Why the step cannot run after what became of the earlier ones, or None."""
    missing = [name for name in step.needs if statuses.get(name) != passed]
    return f"it needs {' and '.join(missing)}" if missing else None
