"""Why tokens of a prompt are computed although something may have known them: pure functions, no I/O.

A report divides what is computed, [begin, prompt), into ranges, each with the one reason that holds for it:

    reason              these tokens                                                                  a miss
    ------              ------------                                                                  ------
    new                 follow where all that was known ended                                         no
    last token          is always computed: logits are not part of a sequence's state                 no
    cold                nothing is known of this prompt, or no more than the first words of a template  yes
    diverged            lie behind a token from which an earlier prompt or reply went on differently  yes
    no checkpoint       have their state somewhere, but nothing can resume that far along             yes
    busy                could have been resumed behind, but in a slot that could not be used          yes
    evicted             were computed before, and their state was given up since                      yes
    engine restarted    were held by a slot when the engine died                                      yes
    fingerprint changed had state of another model, build or kind of KV cache                         yes
    damaged             had state whose bytes are not what was stored                                 yes
    problem             should have been brought back, but the engine could not do it                 yes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, get_args

from lcpd.cache.history import TRIVIAL, WINDOW, LossReason, Past
from lcpd.cache.trie import common_prefix
from lcpd.scheduler.placement import Placement
from lcpd.scheduler.slots import Known, Slot, Span, Tokens, resumes

Reason = Literal[
    "new",
    "last token",
    "cold",
    "diverged",
    "no checkpoint",
    "busy",
    "evicted",
    "engine restarted",
    "fingerprint changed",
    "damaged",
    "problem",
]
MISSES: tuple[Reason, ...] = tuple(reason for reason in get_args(Reason) if reason not in ("new", "last token"))


@dataclass(frozen=True)
class Divergence:
    """Where a prompt left the path of an earlier prompt or reply, and the tokens around."""

    position: int
    role: str
    """Of the message in which it lies; "" where the prompt has no messages."""
    before: tuple[int, ...]
    """The last tokens that both have; this and the following ones at most `WINDOW` long."""
    ours: tuple[int, ...]
    """How this prompt goes on."""
    theirs: tuple[int, ...]
    """How the earlier one went on."""


@dataclass(frozen=True)
class Recomputed:
    """Prompt tokens [begin, end) are computed."""

    begin: int
    end: int
    reason: Reason
    detail: str
    """For people; holds no text of a prompt."""
    divergence: Divergence | None = None
    """For "diverged" only."""

    @property
    def tokens(self) -> int:
        """How many they are."""
        return self.end - self.begin


@dataclass(frozen=True)
class CacheReport:
    """Where a prompt's tokens come from: `vram` + `shared` + `ram` + `disk` + `computed` are all of them.

    Counts of tokens.  To the prompt of a retry belongs what an earlier try had generated.
    """

    prompt: int = 0
    begin: int = 0
    """Where computing begins."""
    vram: int = 0
    """Held by its own slot already."""
    shared: int = 0
    """Shared with another slot."""
    ram: int = 0
    """Brought back from the arena."""
    disk: int = 0
    """Brought back from the arena, after they had been read from disk for this request."""
    computed: int = 0
    known: int = 0
    """That an earlier prompt or reply had as its prefix: what lies behind has to be computed by any cache."""
    matched: int = 0
    """Whose state was somewhere, in a slot or in RAM."""
    checkpoint: bool = False
    """Whether a checkpoint at `begin` was applied."""
    seq: int = -1
    """The slot it runs on."""
    name: str = ""
    """The request's public id."""
    reasons: tuple[Recomputed, ...] = ()
    """Ascending and without gaps: they cover what is computed."""
    normalised: tuple[str, ...] = ()
    """What was put right in the request before it was rendered."""


NOTHING = CacheReport()
"""Of a prompt without tokens."""


@dataclass(frozen=True)
class Facts:
    """What was known when a prompt was placed."""

    tokens: Tokens
    spans: Sequence[Span]
    slots: Sequence[Slot]
    """Before it started."""
    known: Known
    past: Past
    rolls_back: bool
    """Whether a sequence can be truncated anywhere (pure attention)."""
    fetched: tuple[int, int] = (0, 0)
    """Tokens [begin, end) that were brought from disk to RAM for it."""


def report(facts: Facts, placement: Placement, name: str = "", normalised: tuple[str, ...] = ()) -> CacheReport:
    """What a start at `placement` reuses, and why it reuses no more."""
    resume, prompt = placement.resume, len(facts.tokens)
    own = resume.source == placement.seq
    live = [common_prefix(slot.tokens, facts.tokens) for slot in facts.slots]
    matched = max([facts.known.covered, *live])
    past = _past(facts, live)
    disk = max(0, min(resume.begin, facts.fetched[1]) - max(resume.shared, facts.fetched[0]))
    return CacheReport(
        prompt=prompt,
        begin=resume.begin,
        vram=resume.shared if own else 0,
        shared=0 if own else resume.shared,
        ram=resume.restored - disk,
        disk=disk,
        computed=prompt - resume.begin,
        known=past.length,
        matched=matched,
        checkpoint=resume.restore,
        seq=placement.seq,
        name=name,
        reasons=_reasons(facts, placement, matched, past),
        normalised=normalised,
    )


def fallen_back(report: CacheReport, begin: int, problem: str, damaged: bool) -> CacheReport:
    """The report of a start for which the engine had to begin at `begin`, earlier than asked."""
    if begin >= report.begin:
        return report
    reason: Reason = "damaged" if damaged else "problem"
    vram = min(report.vram, begin)
    shared = min(report.shared, begin)
    restored = begin - vram - shared
    return replace(
        report,
        begin=begin,
        vram=vram,
        shared=shared,
        ram=min(report.ram, restored),
        disk=restored - min(report.ram, restored),
        computed=report.prompt - begin,
        checkpoint=False,
        reasons=(Recomputed(begin, report.begin, reason, problem), *report.reasons),
    )


def role_at(spans: Sequence[Span], position: int) -> str:
    """The role of the message in which a position lies.

    What lies before the first message is system text, what follows the last one begins the reply.
    """
    if not spans:
        return ""
    before = [span for span in spans if span.begin <= position]
    if not before:
        return "system"
    last = before[-1]
    return last.role if position < last.begin + last.length or last is not spans[-1] else "assistant"


def _past(facts: Facts, live: Sequence[int]) -> Past:
    """What is remembered, or what a slot holds if that is more; `live`: what each slot shares with the prompt."""
    longest = facts.past
    for slot, length in zip(facts.slots, live, strict=True):
        if length > longest.length:
            longest = replace(longest, length=length, went_on=tuple(slot.tokens[length : length + WINDOW].tolist()))
    if facts.known.covered > longest.length:
        return replace(longest, length=facts.known.covered, went_on=())
    return longest


def _reasons(facts: Facts, placement: Placement, matched: int, past: Past) -> tuple[Recomputed, ...]:
    begin, last = placement.resume.begin, len(facts.tokens) - 1
    known = min(past.length, last)
    best, seq = _best(facts)
    held = min(matched, last)
    resumable = min(max(best, begin), held)
    found = [
        Recomputed(begin, resumable, "busy", _in_slot(facts, seq)),
        Recomputed(max(begin, resumable), held, "no checkpoint", f"no checkpoint between {resumable} and {held}"),
        *_lost(max(begin, held), known, past),
        _novel(facts, max(begin, known), past),
    ]
    return tuple(one for one in found if one.begin < one.end)


def _best(facts: Facts) -> tuple[int, int]:
    """The furthest resume point if all slots could be used, and the slot that offers it; -1: none."""
    sources: list[Slot | None] = [None, *facts.slots]
    points = [
        (resume.begin, source.seq if source else -1)
        for source in sources
        for resume in resumes(facts.tokens, source, own=True, known=facts.known, rolls_back=facts.rolls_back)
    ]
    return max(points, key=lambda point: point[0], default=(0, -1))


def _in_slot(facts: Facts, seq: int) -> str:
    slot = next((slot for slot in facts.slots if slot.seq == seq), None)
    if slot is not None and slot.busy:
        return f"slot {seq}, which holds them, is busy"
    return "to go on from there would have cost more than to compute them, or taken more cells than there are"


def _lost(begin: int, end: int, past: Past) -> list[Recomputed]:
    """Tokens [begin, end), which were computed before, divided by what happened to their state."""
    positions = sorted({begin, end, *(loss.end for loss in past.losses if begin < loss.end < end)})
    found: list[Recomputed] = []
    for at, upto in pairwise(positions):
        loss = next((loss for loss in past.losses if loss.end >= upto), None)
        one = Recomputed(at, upto, "evicted", "computed before, but neither a slot nor RAM has them any more")
        if loss is not None:
            one = Recomputed(at, upto, loss.reason, loss.detail or _LOST[loss.reason])
        if found and (found[-1].reason, found[-1].detail) == (one.reason, one.detail):
            one = replace(one, begin=found.pop().begin)
        found.append(one)
    return found


_LOST: dict[LossReason, str] = {
    "engine restarted": "the engine died with the slot that held them",
    "fingerprint changed": "their state was that of another model, build or kind of KV cache",
    "damaged": "their bytes in RAM were not those that had been stored",
}


def _novel(facts: Facts, begin: int, past: Past) -> Recomputed:
    """Tokens from `begin` on to the end: behind all that is known, or the last one alone."""
    end = len(facts.tokens)
    if past.length >= end:
        return Recomputed(begin, end, "last token", "the last token of a prompt is always computed")
    if past.length < TRIVIAL and past.length < end - past.length:
        return Recomputed(begin, end, "cold", "nothing is known of this prompt")
    if not past.went_on:
        return Recomputed(begin, end, "new", "these tokens follow what was known")
    position = past.length
    divergence = Divergence(
        position,
        role_at(facts.spans, position),
        tuple(facts.tokens[max(0, position - WINDOW) : position].tolist()),
        tuple(facts.tokens[position : position + WINDOW].tolist()),
        past.went_on,
    )
    where = f" in the {divergence.role} message" if divergence.role else ""
    return Recomputed(begin, end, "diverged", f"diverged at token {position}{where}", divergence)
