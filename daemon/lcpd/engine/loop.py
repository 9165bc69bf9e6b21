"""The decode loop: commands in order, one `llama_decode` for the next token of all running replies, then prefill.

A prefill batch holds one sequence only, so that where a sequence's batches are cut depends on itself and on the step's
budget alone (:mod:`lcpd.engine.batching`).

    job state     leaves it when                                    then
    ---------     --------------                                    ----
    queued        commands before it and its restoring are done     Started -> prefilling, or decoding after a park;
                                                                    with max_tokens 0 and nothing left to compute
                                                                    Finished("length")
    prefilling    all items but a reply's last one are held         the first token is sampled -> decoding; with
                                                                    max_tokens 0 Finished("length")
    decoding      end of generation, stop string, max_tokens        Finished
    running       Cancel                                            Finished("cancelled")
    running       Park                                              Parked -> parked
    running       sampling or llama_decode fails                    Failed, the sequence is emptied
    parked        Start with the same id                            queued, with its reply and sampler
    parked        Cancel                                            Finished("cancelled")

Running is prefilling or decoding.  A running job for whose batch there are no free cells is *starved*: it waits,
unchanged, until a sequence is emptied or cut, or a job is over or parked.  Cancel and Park of a queued job take effect
when it is started, so that the daemon hears from Started what its sequence holds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from lcpd.cache.arena import ArenaError, ArenaView
from lcpd.engine import protocol as p
from lcpd.engine.batches import Batches
from lcpd.engine.batching import Prefill, plan
from lcpd.engine.commands import CommandQueue, Pieces
from lcpd.engine.damage import DamagedPiece
from lcpd.engine.embedder import Embedder
from lcpd.engine.job import Job
from lcpd.engine.outbox import Outbox
from lcpd.engine.pace import Pace
from lcpd.engine.reply import Replies, Verdict
from lcpd.engine.sampling import Picker
from lcpd.engine.state import StateMover, Stopwatch
from lcpd.native.bridge import BridgeError, Params
from lcpd.native.context import CacheFull, Context, DecodeError, StateError
from lcpd.native.model import Model

Send = Callable[[p.FromWorker], None]


@dataclass
class _Queued:
    """A Start whose turn has not come or whose state is being restored, and what overtook it."""

    command: p.Start
    cancelled: bool = False
    parked: bool = False
    marks: dict[int, p.Extent] = field(default_factory=dict)


class DecodeLoop:
    """Owns the context's sequences and the jobs; belongs to one thread."""

    def __init__(
        self,
        model: Model,
        context: Context,
        params: Params,
        send: Send,
        *,
        arena: ArenaView | None = None,
        emit_interval: float = 0.0,
        max_stall: float = 0.2,
        alignment: int = 1,
        verify_once: bool = False,
        embedder: Embedder | None = None,
    ) -> None:
        """`emit_interval`: seconds for which tokens may be gathered before they are sent; `max_stall`: seconds that
        running replies may wait for a step's prefill; `alignment`: batches end at its multiples; `verify_once`:
        bytes that were found right once are not checked again; `embedder`: None where no texts are embedded."""
        self._context = context
        self._send = send
        self._picker = Picker(model, context)
        self._replies = Replies(model, params, self._picker)
        self._mover = StateMover(context, arena, verify_once)
        self._outbox = Outbox(send, emit_interval)
        self._pace = Pace(context.n_batch, context.n_ubatch, max_stall, alignment)
        self._batches = Batches(context)
        self._embedder = embedder
        self._embedded_last = False
        """Whether the last step with a choice between the two embedded instead of prefilling."""
        self._commands = CommandQueue()
        self._queued: dict[int, _Queued] = {}
        self._jobs: dict[int, Job] = {}
        self._parked: dict[int, Job] = {}
        self._turn = 0
        self._cells_needed = 0
        """By starved jobs, not yet told."""

    @property
    def batches(self) -> int:
        """`llama_decode` calls that were decoded."""
        return self._batches.count + (self._embedder.batches if self._embedder else 0)

    @property
    def tokens(self) -> int:
        """Tokens that were decoded."""
        return self._batches.tokens + (self._embedder.tokens if self._embedder else 0)

    @property
    def running(self) -> int:
        """Requests in prefill or decode that do not wait for cells, and whether texts are embedded."""
        return sum(not job.starved for job in self._jobs.values()) + self._embeds

    @property
    def busy(self) -> bool:
        """Whether a step has something to do: a command, or a job that does not wait for cells."""
        return bool(self._commands) or self.running > 0

    @property
    def _embeds(self) -> bool:
        return self._embedder is not None and self._embedder.busy

    # ---- commands that keep their order ----------------------------------------------------------------

    def start(self, command: p.Start) -> None:
        """Queue a request; sends Started, or Failed for one that cannot be run."""
        queued = self._queued[command.request] = _Queued(command)
        self._commands.add(self._starting(queued))

    def save(self, command: p.Save) -> None:
        """Queue exports of a sequence; sends Saved."""
        self._commands.add(self._saving(command))

    def clear(self, seq: int) -> None:
        """Queue emptying a sequence, which happens if it runs nothing then."""
        self._commands.add(self._clearing(seq))

    def _starting(self, queued: _Queued) -> Pieces:
        command = queued.command
        try:
            job, verdict = self._job_of(command)
        except (BridgeError, ValueError) as error:
            del self._queued[command.request]
            self._empty(command.seq)
            self._send(p.Failed(command.request, "invalid", str(error)))
            return
        watch = Stopwatch()
        problem, damaged = "", False
        try:
            if command.begin:
                yield from self._mover.bring(command, job, watch, lambda: queued.cancelled)
            else:
                self._context.clear(command.seq)
            job.done = command.begin
        except StateError as error:
            job.done, problem, damaged = 0, str(error), isinstance(error, DamagedPiece)
        del self._queued[command.request]
        job.checkpoints = {**command.checkpoints, **queued.marks}
        self._jobs[job.request] = job
        self._retry()
        runs = self._context.runs.count(job.seq, command.shared, job.done) if command.segments else 0
        self._send(p.Started(job.request, job.done, problem, watch.seconds, damaged, runs))
        if not job.prefilling:
            job.decoding_since = time.monotonic()
        if verdict.reason:
            self._finish(job, verdict.reason, verdict.stop)
        elif queued.cancelled:
            self._finish(job, "cancelled")
        elif queued.parked:
            self.park(job.request)
        elif job.max_tokens == 0 and job.done == job.prefill_end:
            self._finish(job, "length")

    def _job_of(self, command: p.Start) -> tuple[Job, Verdict]:
        """The parked job or a new one, on the command's sequence.  Raises ValueError or BridgeError."""
        if not 0 <= command.seq < self._context.scratch:
            raise ValueError(f"there is no sequence {command.seq}")
        if self._runs(command.seq):
            raise ValueError(f"sequence {command.seq} is busy")
        if command.request in self._jobs:
            raise ValueError(f"request {command.request} is running already")
        parked = self._parked.pop(command.request, None)
        job, verdict = self._replies.resume(parked, command) if parked else self._replies.begin(command)
        items = len(job.prompt) + len(job.generated)
        if not 0 <= command.begin <= items - (command.max_tokens > 0):
            raise ValueError(f"begin {command.begin} is outside the prompt and reply of {items} items")
        return job, verdict

    def _saving(self, command: p.Save) -> Pieces:
        saved = yield from self._mover.save(command, lambda: not self._runs(command.seq))
        self._send(saved)

    def _clearing(self, seq: int) -> Pieces:
        self._empty(seq)
        yield from ()

    # ---- commands that take effect at once -------------------------------------------------------------

    def mark(self, command: p.Mark) -> None:
        """Take one more checkpoint of a request, unless it has passed the position."""
        if queued := self._queued.get(command.request):
            queued.marks[command.position] = command.extent
        elif (job := self._jobs.get(command.request)) and job.done <= command.position:
            job.checkpoints[command.position] = command.extent
            self._take_checkpoint(job)

    def cancel(self, request: int) -> None:
        """End a request where it stands; the sequence keeps what was decoded."""
        if queued := self._queued.get(request):
            queued.cancelled = True
        elif job := self._jobs.get(request):
            self._finish(job, "cancelled")
        elif job := self._parked.pop(request, None):
            self._say_finished(job, "cancelled", "", held=[])

    def park(self, request: int) -> None:
        """Take a request off its sequence, which keeps its state."""
        if queued := self._queued.get(request):
            queued.parked = True
        elif job := self._jobs.pop(request, None):
            now = time.monotonic()
            self._outbox.flush(now)
            job.stop_clock(now)
            self._parked[request] = job
            self._retry()
            done = min(job.done, len(job.prompt))
            self._send(p.Parked(request, job.seq, done, _pack(job.held), _pack(job.generated)))

    def embed(self, command: p.Embed) -> None:
        """Queue texts; sends Embedded for each."""
        if self._embedder is None:
            self._send(p.Embedded(command.request, 0, b"", "texts are not embedded here"))
        else:
            self._embedder.add(command)

    def stop_embedding(self, request: int) -> None:
        """Forget the texts of a request that wait."""
        if self._embedder:
            self._embedder.drop(request)

    # ---- steps -----------------------------------------------------------------------------------------

    def step(self) -> None:
        """Carry out commands, decode one token of every running reply, and prefill what the budget allows, or embed.

        While replies run, one piece of heavy work at most is done; otherwise as much as fits `max_stall`.
        """
        begun = time.monotonic()
        if self._commands:
            pieces = 1 if self._replies_run else sys.maxsize
            self._commands.advance(pieces, self._pace.max_stall)
        copying = time.monotonic() - begun
        self._decode_replies()
        waiting = [job for job in self._jobs.values() if job.prefilling and not job.starved]
        if self._embedder and self._embedder.busy and self._embeds_now(self._embedder, waiting):
            self._embedder.step(self._replies_run, copying + self._pace.decode_seconds * self._replies_run)
        else:
            self._prefill(waiting, copying)
        if self._cells_needed and not self._commands:  # commands may free cells
            self._send(p.Starved(self._cells_needed))
            self._cells_needed = 0

    def _decode_replies(self) -> None:
        jobs = [job for job in self._jobs.values() if not job.starved and not job.prefilling]
        if not jobs:
            return
        begun = time.monotonic()
        try:
            self._batches.replies(jobs)
        except CacheFull:
            self._starve(jobs, len(jobs))
            return
        except DecodeError as error:
            self._fail(jobs, "compute", str(error))
            return
        for job in jobs:
            if job.checkpoints:
                self._take_checkpoint(job)
        self._sample(jobs, list(range(len(jobs))))
        self._pace.observe_decode(time.monotonic() - begun)

    @property
    def _replies_run(self) -> bool:
        return any(not job.prefilling for job in self._jobs.values())

    def _embeds_now(self, embedder: Embedder, waiting: list[Job]) -> bool:
        """Whether this step embeds instead of prefilling: what is more urgent goes first, and equals take turns."""
        if not waiting:
            return True
        prefills, embeds = min(job.priority for job in waiting), embedder.priority
        self._embedded_last = embeds < prefills or (embeds == prefills and not self._embedded_last)
        return self._embedded_last

    def _prefill(self, waiting: list[Job], copying: float) -> None:
        """Prefill these jobs; `copying`: seconds that this step has spent on commands."""
        if not waiting:
            return
        replies_run = self._replies_run
        prefills = [Prefill(job.request, job.priority, job.turn, job.done, job.next_cut()) for job in waiting]
        for chunk in plan(prefills, self._pace.budget(replies_run, copying)):
            job = self._jobs[chunk.request]
            if not self._prefill_chunk(job, chunk.end) or not job.prefilling:
                break  # no cells are left, or another reply runs from now on, which the budget does not know

    def _prefill_chunk(self, job: Job, end: int) -> bool:
        """Decode the job's items up to `end`; False when there are no free cells for them."""
        size, at_end = end - job.done, end == job.prefill_end
        samples = at_end and not job.generated and job.max_tokens > 0
        self._turn += 1
        job.turn = self._turn
        self._outbox.flush(time.monotonic())  # this batch may take long
        try:
            seconds = self._batches.prefill(job, end, samples)
        except CacheFull:
            self._starve([job], size)
            return False
        except DecodeError as error:
            self._fail([job], "compute", str(error))
            return True
        self._pace.observe_prefill(size, seconds)
        job.prefill_seconds += seconds
        self._send(p.Prefilled(job.request, end, seconds))
        self._take_checkpoint(job)
        if at_end and job.max_tokens == 0:
            self._finish(job, "length")
            return True
        if at_end:
            job.decoding_since = time.monotonic()
        if samples:
            self._sample([job], [-1])
        return True

    def _sample(self, jobs: list[Job], rows: list[int]) -> None:
        """Sample the next token of each job from the given batch rows, and send what became of it."""
        over: list[tuple[Job, Verdict]] = []
        first = False
        for job, sampled in zip(jobs, self._picker.pick(jobs, rows), strict=True):
            if sampled.token < 0:
                self._fail([job], "invalid", f"sampling failed: {job.sampler.error()}")
                continue
            verdict = self._replies.add(job, sampled.token)
            self._outbox.add(job.request, sampled.token, verdict.text, sampled.probs)
            first = first or len(job.generated) == 1
            if verdict.reason:
                over.append((job, verdict))
        now = time.monotonic()
        if first:
            self._outbox.flush(now)  # a first token is waited for
        else:
            self._outbox.flush_if_due(now)
        for job, verdict in over:
            assert verdict.reason
            self._finish(job, verdict.reason, verdict.stop)

    def _take_checkpoint(self, job: Job) -> None:
        """Take the checkpoint that was asked for where the job stands, if there is one."""
        extent = job.checkpoints.pop(job.done, None)
        if extent is None:
            return
        if not job.prefilling:
            self._outbox.flush(time.monotonic())  # the daemon has to know of which tokens this is the state
        try:
            piece = self._mover.checkpoint(job.seq, extent)
        except (StateError, ArenaError):
            piece = None
        self._send(p.Checkpointed(job.request, job.done, extent, piece))

    # ---- ends ------------------------------------------------------------------------------------------

    def _finish(self, job: Job, reason: p.Reason, stop: str = "") -> None:
        del self._jobs[job.request]
        self._retry()
        self._say_finished(job, reason, stop, job.held)

    def _say_finished(self, job: Job, reason: p.Reason, stop: str, held: list[int]) -> None:
        now = time.monotonic()
        self._outbox.flush(now)
        job.stop_clock(now)
        rest = job.text.finish()
        if rest.stop is not None:
            reason, stop = "stop-string", rest.stop
        self._send(
            p.Finished(
                request=job.request,
                reason=reason,
                text=rest.text,
                stop=stop,
                generated=len(job.generated),
                held=_pack(held),
                prefill_seconds=job.prefill_seconds,
                decode_seconds=job.decode_seconds,
            )
        )

    def _fail(self, jobs: list[Job], code: Literal["invalid", "compute"], message: str) -> None:
        # After a failed decode the state of the batch's sequences is unknown.
        self._outbox.flush(time.monotonic())
        for job in jobs:
            del self._jobs[job.request]
            self._empty(job.seq)
            self._send(p.Failed(job.request, code, message))

    def _empty(self, seq: int) -> None:
        """Empty a sequence, if it is one and runs nothing."""
        if 0 <= seq < self._context.scratch and not self._runs(seq):
            self._context.clear(seq)
            self._retry()

    # ---- cells -----------------------------------------------------------------------------------------

    def _starve(self, jobs: list[Job], cells: int) -> None:
        """These jobs wait until there may be free cells."""
        for job in jobs:
            job.starved = True
        self._cells_needed += cells

    def _retry(self) -> None:
        """Cells may be free now, or fewer be needed."""
        self._cells_needed = 0
        for job in self._jobs.values():
            job.starved = False

    def _runs(self, seq: int) -> bool:
        return any(job.seq == seq for job in self._jobs.values())


def _pack(tokens: list[int]) -> bytes:
    return p.pack(np.array(tokens, np.int32))
