"""A request's cache report in the API's shapes: in a header, in ``timings``, and in full.  Pure functions.

Ids of tokens are as good as their text, so what shows either is only for those who may see texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lcpd.scheduler.report import CacheReport, Divergence, Recomputed

Json = dict[str, Any]


def header(report: CacheReport) -> str:
    """One line: ``hit=7; vram=7; shared=0; ram=0; disk=0; computed=3; why="diverged@7:2,last-token:1"``.

    At its end ``normalised="tool-order"`` where something was put right in the request.
    """
    numbers = "; ".join(f"{name}={count}" for name, count in _counts(report).items())
    normalised = f'; normalised="{",".join(report.normalised)}"' if report.normalised else ""
    return f'{numbers}; why="{",".join(map(_word, report.reasons))}"{normalised}'


def _counts(report: CacheReport) -> Json:
    return {
        "hit": report.begin,
        "vram": report.vram,
        "shared": report.shared,
        "ram": report.ram,
        "disk": report.disk,
        "computed": report.computed,
    }


def _word(reason: Recomputed) -> str:
    place = f"@{reason.divergence.position}" if reason.divergence else ""
    return f"{reason.reason.replace(' ', '-')}{place}:{reason.tokens}"


def brief(report: CacheReport) -> Json:
    """For ``timings``: counts, ranges with their reasons, and what was put right in the request, if anything."""
    return {
        **_counts(report),
        "why": [_range(reason) for reason in report.reasons],
        **({"normalised": list(report.normalised)} if report.normalised else {}),
    }


def whole(report: CacheReport, texts: Sequence[str] | None = None) -> Json:
    """All of a report; `texts`: those of `windows`, for callers who may see them."""
    remaining = iter(texts) if texts is not None else None
    why = []
    for reason in report.reasons:
        entry = {**_range(reason), "detail": reason.detail}
        if (divergence := reason.divergence) and remaining is not None:
            entry["text"] = {name: next(remaining) for name in ("before", "ours", "theirs")}
            entry["tokens"] = {name: list(getattr(divergence, name)) for name in ("before", "ours", "theirs")}
        why.append(entry)
    return {
        **brief(report),
        "id": report.name,
        "prompt": report.prompt,
        "known": report.known,
        "matched": report.matched,
        "checkpoint": report.checkpoint,
        "slot": report.seq,
        "why": why,
    }


def windows(report: CacheReport) -> list[tuple[int, ...]]:
    """The tokens around where the prompt parted from others: before, ours and theirs, for each place."""
    found: list[Divergence] = [reason.divergence for reason in report.reasons if reason.divergence]
    return [window for one in found for window in (one.before, one.ours, one.theirs)]


def _range(reason: Recomputed) -> Json:
    entry: Json = {"reason": reason.reason, "begin": reason.begin, "end": reason.end}
    if reason.divergence:
        entry |= {"position": reason.divergence.position, "role": reason.divergence.role}
    return entry
