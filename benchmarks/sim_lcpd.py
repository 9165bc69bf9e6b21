"""lcpd's own policies in the simulation: the real scheduler, placement, prompt cache, retention and checkpoint plan.

Only what acts on their decisions is simulated: no engine, no model.  State bytes are real segments in a real arena,
but `SCALE` times smaller than the model's, so that a day of 32 GiB fits into memory; all sizes that are reported are
the model's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.sim_engine import Economics, Job, Placement
from lcpd.cache import checkpoints, retention
from lcpd.cache.arena import Arena, checksum
from lcpd.cache.cache import PromptCache
from lcpd.cache.trie import common_prefix
from lcpd.engine.protocol import Cut, Extent, Piece, Segment, Tokens
from lcpd.scheduler import cells
from lcpd.scheduler import placement as p
from lcpd.scheduler.decide import Evict, Follow, Launch, Running, View, decide
from lcpd.scheduler.policy import EDIT_WORTH_SAVING, Policy
from lcpd.scheduler.queue import Following, Waiting
from lcpd.scheduler.slots import Known, Slot

SCALE = 256
SETTLED = 300.0
"""Seconds after which what is still in RAM would be written to an SSD tier."""
_SCAN = 60.0
"""Seconds between two looks at what is in RAM."""
_CELL = struct.Struct("<iIi")
_HEADER = 64
"""Bytes of a segment that do not belong to a token, at most."""


@dataclass(frozen=True)
class Tuning:
    """What the simulation varies."""

    retention: retention.Economics = field(default_factory=retention.Economics)
    interval: int = checkpoints.INTERVAL
    limit: int = checkpoints.LIMIT
    gap: int | None = None
    """Tokens between two checkpoints, at least; None: what the economics make of it."""
    branches: bool = True
    """Whether checkpoints are taken where prompts parted."""
    ends: bool = True
    """Whether a slot that is saved leaves a checkpoint at its live end."""


class LcpdPolicy:
    """See the module."""

    def __init__(self, economics: Economics, ram: int, tuning: Tuning) -> None:
        """`ram`: bytes of the arena, in the model's size."""
        self._economics = economics
        self._tuning = tuning
        self._gap = tuning.gap or checkpoints.minimum_gap(economics.checkpoint_bytes, economics.copy, economics.prefill)
        self._now = 0.0
        self._arena = Arena(ram // SCALE)
        self.cache = PromptCache(self._arena, clock=lambda: self._now)
        self.cache.configure(
            segment_bytes=(_HEADER, economics.token_bytes // SCALE),
            checkpoint_bytes=economics.checkpoint_bytes // SCALE,
        )
        self._slots = [Slot(seq) for seq in range(economics.slots)]
        self._jobs: dict[int, Job] = {}
        self._following: dict[int, tuple[Following, float]] = {}
        self._served: dict[str, float] = {}
        self._policy = Policy(queue_timeout=float("inf"), checkpoint_interval=tuning.interval)
        self._runs = 0
        self._checkpoints = 0
        """Taken so far; stands for their checksums, which nobody compares here."""
        self._saved = 0
        """Bytes copied for evictions, to be reported with the next start."""
        self.ssd_bytes = 0
        """What a write-behind SSD tier would have written."""
        self._seen: dict[Piece, float | None] = {}
        """What is in RAM: since when, None once it is written."""
        self._scanned = 0.0

    def start(self, waiting: Sequence[Job], running: Sequence[Job], now: float) -> tuple[Job, Placement] | None:
        """Do what the scheduler decides, up to the next start."""
        self._now = now
        known = _memo({job.id: job for job in waiting}, self._known)
        while True:
            match decide(self._view(waiting, running, known), now):
                case Launch(request, placement):
                    job = next(job for job in waiting if job.id == request)
                    return job, self._launch(job, placement)
                case Follow(request, leader, position, mark, until):
                    self._following[request] = Following(leader, position), until
                    if mark:
                        stops = self._jobs[leader].stops
                        stops[:] = sorted({*stops, position})
                case Evict(seq):
                    self._saved += self._save(self._slots[seq])
                    self._slots[seq] = Slot(seq, last_used=self._slots[seq].last_used)
                    known = _memo({job.id: job for job in waiting}, self._known)
                case None:
                    return None
                case other:
                    raise RuntimeError(f"all requests are interactive and have their cells, yet {other}")

    def reached(self, job: Job, position: int, now: float) -> int:
        """Take a checkpoint."""
        self._now = now
        return self._checkpoint(job.request.tokens[:position])

    def finished(self, job: Job, now: float) -> int:
        """The slot keeps prompt and reply."""
        self._now = now
        self._write_behind()
        slot = self._slot_of(job)
        held = job.held
        runs = cells.resized(slot.runs, len(held))
        saved = self.cache.covered(held)
        self.cache.remember(held, job.length)
        self._slots[slot.seq] = Slot(slot.seq, held, runs, None, now, saved)
        del self._jobs[job.id]
        return 0

    def close(self) -> None:
        """Free the arena."""
        self._arena.close()

    def _write_behind(self) -> None:
        if self._now < self._scanned + _SCAN:
            return
        self._scanned = self._now
        self._seen = {piece: self._seen.get(piece, self._now) for piece in self.cache.pieces()}
        for piece, since in self._seen.items():
            if since is not None and self._now - since >= SETTLED:
                self._seen[piece] = None
                self.ssd_bytes += piece.extent.size * SCALE

    # ---- what the scheduler sees -----------------------------------------------------------------------

    def _known(self, job: Job) -> Known:
        tokens = job.request.tokens
        return Known(self.cache.covered(tokens), tuple(self.cache.checkpoints_on(tokens)))

    def _view(self, waiting: Sequence[Job], running: Sequence[Job], known: Callable[[int], Known]) -> View:
        slots = []
        for slot in self._slots:
            job = self._jobs.get(slot.request) if slot.request is not None else None
            slots.append(replace(slot, tokens=job.request.tokens[: int(job.done)]) if job else slot)
        return View(
            policy=self._policy,
            slots=tuple(slots),
            running=tuple(
                Running(
                    request=job.id,
                    seq=self._slot_of(job).seq,
                    tokens=job.request.tokens,
                    done=int(job.done),
                    background=False,
                    waited=0.0,
                    started=True,
                    pending=tuple(job.stops),
                )
                for job in running
            ),
            waiting=tuple(self._waiting(job) for job in waiting),
            capacity=self._economics.cells,
            rolls_back=False,
            marks=True,
            known=known,
            served=self._served,
        )

    def _waiting(self, job: Job) -> Waiting:
        following, until = self._following.get(job.id, (None, None))
        return Waiting(
            request=job.id,
            tokens=job.request.tokens,
            reserve=job.length + len(job.request.reply),
            arrived=job.arrived,
            since=job.arrived,
            client=job.request.client,
            following=following,
            follow_until=until,
        )

    def _slot_of(self, job: Job) -> Slot:
        return next(slot for slot in self._slots if slot.request == job.id)

    # ---- acting ----------------------------------------------------------------------------------------

    def _launch(self, job: Job, placement: p.Placement) -> Placement:
        tokens, resume = job.request.tokens, placement.resume
        known = self._known(job)
        target = self._slots[placement.seq]
        kept = resume.shared if resume.source == target.seq else 0
        lost = len(target.tokens) - kept
        if lost >= (EDIT_WORTH_SAVING if kept else 1):
            self._saved += self._save(target)
        live = max((common_prefix(slot.tokens, tokens) for slot in self._slots), default=0)
        live = max(
            [live, *(common_prefix(other.request.tokens[: int(other.done)], tokens) for other in self._jobs.values())]
        )
        demand = p.Demand(tokens, job.length + len(job.request.reply))
        self._runs += 1
        slots = p.started(self._slots, placement, demand, self._runs)
        self._slots = [replace(slot, request=job.id) if slot.seq == placement.seq else slot for slot in slots]
        self._jobs[job.id] = job
        self._following.pop(job.id, None)
        self._served[job.request.client] = self._now
        self.cache.touch(tokens)
        saved, self._saved = self._saved, 0
        restored = resume.restored * self._economics.token_bytes + resume.restore * self._economics.checkpoint_bytes
        if not resume.begin:
            tier = "nothing"
        elif resume.restored:
            tier = "ram"
        else:
            tier = "slot" if resume.source == placement.seq else "other slot"
        held = max(live, known.covered)
        return Placement(resume.begin, tier, held, held, self._stops(job, resume.begin, known), saved, restored)

    def _stops(self, job: Job, begin: int, known: Known) -> list[int]:
        return checkpoints.plan(
            job.request.spans,
            begin,
            job.length,
            interval=self._tuning.interval,
            limit=self._tuning.limit,
            known=known.checkpoints,
            branches=self.cache.branches_on(job.request.tokens) if self._tuning.branches else (),
            gap=self._gap,
        )

    def _save(self, slot: Slot) -> int:
        """Export what RAM lacks of an idle slot; how many bytes that were."""
        tokens = slot.tokens
        # Reserved first, lest it push out the segments that it belongs to.
        end = None
        if self._tuning.ends and self.cache.covered(tokens) < len(tokens):
            end = self.cache.reserve_checkpoint()
        cuts = self.cache.plan_save(tokens, len(tokens))
        self.cache.add_segments(tokens, cuts, [self._segment(cut) for cut in cuts])
        copied = sum(cut.end - cut.begin for cut in cuts) * self._economics.token_bytes
        if end is not None:
            copied += self._keep(tokens, end)
        return copied

    def _segment(self, cut: Cut) -> Segment:
        count = cut.end - cut.begin
        data = segment(cut.begin, count, self._economics.token_bytes // SCALE)
        extent = Extent(cut.extent.offset, len(data))
        with self._arena.view(extent) as view:
            view[:] = data
        return Segment(cut.begin, cut.end, Piece(extent, checksum(data)))

    def _checkpoint(self, tokens: Tokens) -> int:
        extent = self.cache.reserve_checkpoint()
        return 0 if extent is None else self._keep(tokens, extent)

    def _keep(self, tokens: Tokens, extent: Extent) -> int:
        self._checkpoints += 1
        self.cache.add_checkpoint(tokens, extent, Piece(extent, self._checkpoints.to_bytes(16, "little")))
        return self._economics.checkpoint_bytes


def segment(begin: int, count: int, token_bytes: int) -> bytes:
    """An exported segment of `count` tokens of a model with one tiny layer: `token_bytes` for each, and a header."""
    row = (token_bytes - _CELL.size) // 2
    meta = np.zeros((count, 3), "<i4")
    meta[:, 0] = np.arange(begin, begin + count)
    meta[:, 1] = 1
    rows = struct.pack("<iQ", 0, row) + bytes(row * count)
    return (
        struct.pack("<Ii", 0xAF143CD8, 0) + struct.pack("<II", 1, count) + meta.tobytes() + struct.pack("<II", 0, 1)
    ) + 2 * rows


def _memo(jobs: dict[int, Job], known: Callable[[Job], Known]) -> Callable[[int], Known]:
    """`known` by the request's id, asked for once each."""
    found: dict[int, Known] = {}

    def answer(request: int) -> Known:
        if request not in found:
            found[request] = known(jobs[request])
        return found[request]

    return answer
