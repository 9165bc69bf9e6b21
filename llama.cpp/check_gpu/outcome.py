"""What the steps found: values, the table for people, and the exit code.  No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

PASSED, FAILED, LEFT_OUT = "passed", "failed", "left out"


@dataclass(frozen=True)
class Check:
    """One thing that must hold."""

    name: str
    passed: bool
    detail: str
    """The measured value beside its bound."""


@dataclass(frozen=True)
class Figure:
    """One measurement, which is neither right nor wrong."""

    name: str
    value: float
    unit: str


@dataclass
class Findings:
    """What one step's process writes down; collected while it runs."""

    checks: list[Check] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What the reader has to know to judge the rest, such as what could not be measured here."""
    values: dict[str, str] = field(default_factory=dict)
    """For later steps."""

    def check(self, name: str, passed: bool, detail: str) -> None:
        """Add a check."""
        self.checks.append(Check(name, bool(passed), detail))

    def figure(self, name: str, value: float, unit: str) -> None:
        """Add a measurement."""
        self.figures.append(Figure(name, float(value), unit))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Findings:
        return cls(
            [Check(**c) for c in data["checks"]],
            [Figure(**f) for f in data["figures"]],
            list(data["notes"]),
            dict(data["values"]),
        )


@dataclass(frozen=True)
class StepOutcome:
    """How a step ended."""

    name: str
    status: str
    """`PASSED`, `FAILED` or `LEFT_OUT`."""
    seconds: float
    reason: str
    """Why it failed or was left out; empty when it passed."""
    findings: Findings


def judge(name: str, seconds: float, findings: Findings) -> StepOutcome:
    """The outcome of a step that ran to its end: a step without any check has shown nothing and fails."""
    failed = [c.name for c in findings.checks if not c.passed]
    if failed:
        return StepOutcome(name, FAILED, seconds, "; ".join(failed), findings)
    if not findings.checks:
        return StepOutcome(name, FAILED, seconds, "it checked nothing", findings)
    return StepOutcome(name, PASSED, seconds, "", findings)


def all_passed(outcomes: Sequence[StepOutcome]) -> bool:
    """Whether every step ran and passed."""
    return bool(outcomes) and all(o.status == PASSED for o in outcomes)


def table(title: str, outcomes: Sequence[StepOutcome]) -> str:
    """The report for people."""
    lines = [title, "", *_columns([["step", "result", "s", ""], *([_step_row(o) for o in outcomes])])]
    checks = [[o.name, "ok" if c.passed else "FAILED", c.name, c.detail] for o in outcomes for c in o.findings.checks]
    if checks:
        lines += ["", *_columns([["step", "", "check", "found"], *checks])]
    figures = [[o.name, f.name, _number(f.value), f.unit] for o in outcomes for f in o.findings.figures]
    if figures:
        lines += ["", *_columns([["step", "figure", "value", "unit"], *figures])]
    notes = [f"note ({o.name}): {n}" for o in outcomes for n in o.findings.notes]
    if notes:
        lines += ["", *notes]
    left_out = [o.name for o in outcomes if o.status == LEFT_OUT]
    if left_out:
        lines += ["", f"NOT RUN: {', '.join(left_out)}"]
    lines += ["", "check-gpu: PASSED" if all_passed(outcomes) else "check-gpu: FAILED"]
    return "\n".join(lines) + "\n"


def _step_row(outcome: StepOutcome) -> list[str]:
    return [outcome.name, outcome.status, f"{outcome.seconds:.1f}", outcome.reason]


def _columns(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
