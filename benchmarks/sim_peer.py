"""llama-server's cache policy, with its default settings (n_parallel auto: a unified KV cache, idle slots cleared).

What it does when a request comes: it takes the idle slot whose tokens are most like the prompt (at least a tenth of
it), else the least recently used one.  Where the slot would lose more than half of its tokens it is saved to the host
cache as a whole, with all of its checkpoints, and a better prompt from there takes its place, which leaves the
cache; prompts of which less than a quarter would be kept are passed over.  All other idle slots are saved and
emptied.  The cache drops its oldest prompts where it is full.  Kinder than the real one in one respect: a request
that finds too few free cells waits here, where llama-server fails all running ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.sim_engine import Economics, Job, Placement
from benchmarks.sim_traffic import Tokens
from lcpd.cache.trie import common_prefix

N_BATCH, N_UBATCH = 2048, 512
MAX_CHECKPOINTS, MIN_STEP = 32, 8192
SIMILAR, KEEP_SLOT, KEEP_CACHED = 0.1, 0.5, 0.25
_NOTHING: Tokens = np.empty(0, np.int32)


@dataclass(frozen=True)
class Checkpoint:
    """Recurrent state after `position` tokens, taken for request `task`."""

    position: int
    task: int


@dataclass
class Cached:
    """A prompt with its checkpoints: in a slot, or in the host cache."""

    tokens: Tokens = field(default_factory=lambda: _NOTHING)
    checkpoints: list[Checkpoint] = field(default_factory=list)


@dataclass
class Slot:
    """A sequence."""

    prompt: Cached = field(default_factory=Cached)
    job: Job | None = None
    used: float = -1.0


class PeerPolicy:
    """See the module."""

    def __init__(self, economics: Economics, ram: int) -> None:
        """`ram`: bytes of the host cache (--cache-ram)."""
        self._economics = economics
        self._ram = ram
        self._slots = [Slot() for _ in range(economics.slots)]
        self._cache: deque[Cached] = deque()
        self._saved = 0
        self._restored = 0
        self.uncounted = 0
        """Most bytes of checkpoints that belonged to slots, which --cache-ram does not count."""

    def start(self, waiting: Sequence[Job], running: Sequence[Job], now: float) -> tuple[Job, Placement] | None:
        """The first job that finds an idle slot and cells."""
        return next(((job, placed) for job in waiting if (placed := self._place(job))), None)

    def _place(self, job: Job) -> Placement | None:
        idle = [slot for slot in self._slots if slot.job is None]
        busy = sum(len(slot.job.request.tokens) + len(slot.job.request.reply) for slot in self._slots if slot.job)
        if not idle or busy + job.length + len(job.request.reply) > self._economics.cells:
            return None
        self._saved = self._restored = 0
        anywhere = max(
            common_prefix(one.tokens, job.request.tokens)
            for one in [*(slot.prompt for slot in self._slots), *self._cache]
        )
        slot, update = self._choose(idle, job.request.tokens)
        if update:
            self._save(slot)
            self._load(slot, job.request.tokens)
        slot.job = job
        for other in self._slots:
            if other.job is None and len(other.prompt.tokens):
                self._save(other)
                other.prompt = Cached()
        held = common_prefix(slot.prompt.tokens, job.request.tokens)
        begin = self._resume(slot.prompt, held, job.length)
        tier = "nothing" if not begin else "ram" if self._restored else "slot"
        # Tokens beyond this are computed now; they are complete once the job is finished.
        slot.prompt.tokens = job.request.tokens[:begin]
        users = [span.begin for span in job.request.spans if span.role == "user"]
        latest = slot.prompt.checkpoints[-1].position if slot.prompt.checkpoints else None
        stops = checkpoint_stops(begin, job.length, users, latest)
        # The first batch's checkpoint is of where the sequence stands already.
        if stops and stops[0] == begin:
            self._saved += self._checkpoint(slot.prompt, begin, job.id)
        return Placement(begin, tier, held, anywhere, stops, self._saved, self._restored)

    def reached(self, job: Job, position: int, now: float) -> int:
        """Take a checkpoint."""
        slot = self._of(job)
        slot.prompt.tokens = job.request.tokens[:position]
        copied = self._checkpoint(slot.prompt, position, job.id)
        size = self._economics.checkpoint_bytes * sum(len(slot.prompt.checkpoints) for slot in self._slots)
        self.uncounted = max(self.uncounted, size)
        return copied

    def finished(self, job: Job, now: float) -> int:
        """The slot keeps prompt and reply."""
        slot = self._of(job)
        slot.prompt.tokens = job.held
        slot.job = None
        slot.used = now
        return 0

    def _of(self, job: Job) -> Slot:
        return next(slot for slot in self._slots if slot.job is job)

    def _choose(self, idle: list[Slot], tokens: Tokens) -> tuple[Slot, bool]:
        """The slot, and whether the host cache is to be asked."""
        best, best_lcp = None, SIMILAR * len(tokens)
        for slot in idle:
            lcp = common_prefix(slot.prompt.tokens, tokens)
            if lcp > best_lcp:
                best, best_lcp = slot, lcp
        if best is not None:
            return best, best_lcp / len(best.prompt.tokens) < KEEP_SLOT
        return min(idle, key=lambda slot: slot.used), True

    def _size(self, prompt: Cached) -> int:
        states = 1 + len(prompt.checkpoints)
        return len(prompt.tokens) * self._economics.token_bytes + states * self._economics.checkpoint_bytes

    def _save(self, slot: Slot) -> None:
        prompt = slot.prompt
        if not len(prompt.tokens):
            return
        shared = [(one, common_prefix(one.tokens, prompt.tokens)) for one in self._cache]
        size = self._size(prompt)
        if any(lcp == len(prompt.tokens) for _, lcp in shared) or size > self._ram:
            return
        self._cache = deque(one for one, lcp in shared if lcp < len(one.tokens))
        while self._cache and sum(map(self._size, self._cache)) + size > self._ram:
            self._cache.popleft()
        self._cache.append(Cached(prompt.tokens, list(prompt.checkpoints)))
        self._saved += len(prompt.tokens) * self._economics.token_bytes + self._economics.checkpoint_bytes

    def _load(self, slot: Slot, tokens: Tokens) -> None:
        """Put the best prompt of the host cache into the slot, where there is a better one."""
        lcp = common_prefix(slot.prompt.tokens, tokens)
        keep = lcp / len(slot.prompt.tokens) if len(slot.prompt.tokens) else -1.0
        similar = lcp / len(tokens)
        best = None
        for one in self._cache:
            lcp = common_prefix(one.tokens, tokens)
            if lcp >= KEEP_CACHED * len(one.tokens) and keep < lcp / len(one.tokens) and similar < lcp / len(tokens):
                best, keep, similar = one, lcp / len(one.tokens), lcp / len(tokens)
        if best is not None:
            self._cache = deque(one for one in self._cache if one is not best)
            slot.prompt = best
            self._restored += len(best.tokens) * self._economics.token_bytes + self._economics.checkpoint_bytes

    def _resume(self, prompt: Cached, held: int, length: int) -> int:
        """Where computing begins; checkpoints beyond are dropped."""
        begin = held
        if held < len(prompt.tokens) or held == length:
            usable = [one.position for one in prompt.checkpoints if one.position <= min(held, length - 1)]
            begin = usable[-1] if usable else 0
            if usable:
                self._restored += self._economics.checkpoint_bytes
        prompt.checkpoints = [one for one in prompt.checkpoints if one.position <= begin]
        return begin

    def _checkpoint(self, prompt: Cached, position: int, task: int) -> int:
        kept = prompt.checkpoints
        last, index = -1, 0
        while len(kept) + 1 >= MAX_CHECKPOINTS and index < len(kept):
            if kept[index].task != task and last >= 0 and kept[index].position <= last + MIN_STEP:
                del kept[index]
            else:
                last = kept[index].position
                index += 1
        del kept[: max(0, len(kept) - MAX_CHECKPOINTS + 1)]
        prompt.checkpoints = [*(one for one in kept if one.position != position), Checkpoint(position, task)]
        return self._economics.checkpoint_bytes


def checkpoint_stops(begin: int, length: int, users: list[int], latest: int | None) -> list[int]:
    """Where checkpoints are taken: before batches that begin at a user message or lie near the prompt's end.

    `users`: where user messages begin.  `latest`: the last checkpoint that there is already.
    """
    found, at = [], begin
    last_user = users[-1] if users else -1
    while at < length:
        far = [u for u in users if u == last_user or latest is None or u > latest + MIN_STEP]
        ends = [at + N_BATCH, length, *far, length - 4 - N_UBATCH, length - 4]
        end = min(end for end in ends if end > at)
        near_end = length < end + N_UBATCH
        wanted = at > 0 and (end == length or at in users or near_end)
        if wanted and (latest is None or at == last_user or near_end or at > latest + MIN_STEP):
            found.append(at)
            latest = at
        at = end
    return found
