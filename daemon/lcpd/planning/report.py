"""Everything that `lcpd plan` says about one model and its settings, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lcpd.inspect.shape import ModelShape
from lcpd.planning.automatic import chooser
from lcpd.planning.context import Wanted
from lcpd.planning.drafts import Choice, choices
from lcpd.planning.embedding import embedding
from lcpd.planning.exported import checkpoint_bytes
from lcpd.planning.exported import token_bytes as exported_token_bytes
from lcpd.planning.host import CachePolicy, Conversation, Speeds, conversation
from lcpd.planning.kv import refusal, token_bytes
from lcpd.planning.plan import Machine, MemoryPlan, Part
from lcpd.planning.recurrent import sequence_bytes
from lcpd.planning.remedies import Remedy, remedies
from lcpd.planning.settle import Choose, Measure, settle
from lcpd.planning.solve import Goal, solve
from lcpd.planning.versus import Versus, versus


class CannotPlan(Exception):
    """There is no plan for these settings; the message says why."""


@dataclass(frozen=True)
class Report:
    """The plan and what follows from it.  Sizes in bytes, speeds as in `Speeds`."""

    plan: MemoryPlan
    solved: Goal | None
    """The setting that was chosen as large as fits."""
    token_bytes: int
    """KV of a token on the device."""
    sequence_bytes: int
    """Recurrent state of a sequence."""
    checkpoint_bytes: int
    """At the most."""
    exported_token_bytes: int
    """KV of a token in the prompt cache."""
    speeds: Speeds
    policy: CachePolicy
    conversation: Conversation
    choices: tuple[Choice, ...]
    versus: Versus | None
    remedies: tuple[Remedy, ...]
    embedding: Part | None = None
    """What the first text to embed takes, beside the plan; None where none are embedded."""


@dataclass(frozen=True)
class Question:
    """What is asked."""

    wanted: Wanted
    machine: Machine
    policy: CachePolicy
    speeds: Speeds
    tokens: int
    """Of the conversation that is costed; 0: as many as the context has."""
    goal: Goal | None = None
    automatic: tuple[bool, bool] = (False, False)
    """Whether the context, and the KV type, are to be chosen as a daemon would (without a goal)."""
    projector: int = 0
    """Bytes."""
    arena: int = 0
    """Bytes of RAM that the prompt cache is given: policy.ram, or less where there is not so much."""
    embeddings_ctx: int = 0
    """Tokens of the longest text to embed; 0: none are embedded."""


def report(shape: ModelShape, question: Question, measure: Measure | None = None) -> Report:
    """Plan, and solve for a goal first.

    `measure` finds the compute buffers of settings; it may take seconds, so that the search goes by estimates, and is
    repeated if the result proves too large.  None: estimates are all there is.  Raises CannotPlan.
    """
    wanted = question.wanted
    if reason := refusal(shape, wanted.kv, wanted.flash_attn):
        raise CannotPlan(f"model.kv: {reason}")

    plan, planner = settle(
        shape,
        wanted,
        question.machine,
        measure,
        _choice(shape, question),
        projector=question.projector,
        arena=question.arena,
    )
    context = plan.context
    return Report(
        plan=plan,
        solved=question.goal,
        token_bytes=token_bytes(shape, context.kv, context.flash_attn),
        sequence_bytes=sequence_bytes(shape),
        checkpoint_bytes=checkpoint_bytes(shape, context.cells, context.kv),
        exported_token_bytes=exported_token_bytes(shape, context.kv),
        speeds=question.speeds,
        policy=question.policy,
        conversation=conversation(shape, context.kv, question.tokens or context.ctx, question.policy, question.speeds),
        choices=tuple(choices(shape, plan.wanted, planner)),
        versus=versus(plan),
        remedies=tuple(remedies(plan, planner)),
        embedding=embedding(plan, question.embeddings_ctx) if question.embeddings_ctx else None,
    )


def _choice(shape: ModelShape, question: Question) -> Choose | None:
    goal, wanted = question.goal, question.wanted
    if goal is not None:
        return lambda planner: solve(goal, shape, wanted, planner)
    return chooser(shape, wanted, *question.automatic) if any(question.automatic) else None


def as_json(report: Report) -> dict[str, Any]:
    """The report for programs: all that is shown, in bytes, tokens and seconds."""
    plan = report.plan
    return {
        "model": {
            "name": plan.shape.name,
            "architecture": plan.shape.architecture,
            "unmodelled": plan.shape.unmodelled,
        },
        "settings": asdict(plan.wanted),
        "solved": report.solved,
        "machine": {
            "gpu": plan.machine.gpu,
            "device_bytes": plan.machine.device_bytes,
            "margin": plan.machine.margin,
        },
        "context": asdict(plan.context),
        "parts": [asdict(part) for part in plan.parts],
        "device_bytes": plan.device,
        "host_bytes": plan.host,
        "free_bytes": plan.free,
        "fits": plan.fits,
        "caches": [asdict(cache) for cache in plan.caches],
        "recurrent": asdict(plan.state),
        "token_bytes": report.token_bytes,
        "sequence_bytes": report.sequence_bytes,
        "checkpoint_bytes": report.checkpoint_bytes,
        "exported_token_bytes": report.exported_token_bytes,
        "speeds": asdict(report.speeds),
        "cache": asdict(report.policy),
        "conversation": asdict(report.conversation),
        "drafts": [asdict(choice) for choice in report.choices],
        "paged": _versus(report.versus),
        "remedies": [
            {"text": each.text, "gain_bytes": each.gain, "tokens": each.tokens, "suffices": each.suffices}
            for each in report.remedies
        ],
        "embedding": asdict(report.embedding) if report.embedding else None,
    }


def _versus(versus: Versus | None) -> dict[str, Any] | None:
    if versus is None:
        return None
    paged = [
        {
            "drafts": other.drafts,
            **asdict(other.paging),
            "groups": other.paging.groups,
            "block_bytes": other.paging.block_bytes,
            "blocks": other.paging.blocks(versus.available),
        }
        for other in versus.paged
    ]
    return {"available": versus.available, "paged": paged, "sides": [asdict(side) for side in versus.sides]}
