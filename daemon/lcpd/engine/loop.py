"""The decode loop: one `llama_decode` for the next token of all running sequences, then one prefill batch.

A prefill batch holds one sequence only, so that where a sequence's batches are cut depends on itself alone, and the
same request gives the same logits whoever else is running.

    job state     leaves it when                                    then
    ---------     --------------                                    ----
    prefilling    the last prompt item is decoded                   the first token is sampled -> decoding
    decoding      end of generation, stop string, max_tokens        Finished
    either        Cancel                                            Finished("cancelled")
    either        sampling or llama_decode fails                    Failed, the sequence is emptied
    prefilling    no free cells, older prompts or replies run       waits for them, or begins again after them
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import numpy as np

from lcpd.engine import protocol as p
from lcpd.engine.job import Job
from lcpd.engine.outbox import Outbox
from lcpd.engine.pace import PrefillPace
from lcpd.engine.stops import TextFilter
from lcpd.native.bridge import BridgeError, Params, Request, Sampler, step_many
from lcpd.native.context import Bytes, CacheFull, Context, DecodeError, StateError
from lcpd.native.model import Model

Send = Callable[[p.FromWorker], None]


class DecodeLoop:
    """Owns the context's sequences, the running jobs and the checkpoints; belongs to one thread."""

    def __init__(self, model: Model, context: Context, params: Params, send: Send, emit_interval: float = 0.0) -> None:
        """`emit_interval`: seconds for which tokens may be gathered before they are sent."""
        self._model = model
        self._context = context
        self._params = params
        self._send = send
        self._jobs: dict[int, Job] = {}
        self._checkpoints: dict[int, Bytes] = {}
        self._last_used: dict[int, float] = {}
        self._pieces: dict[tuple[int, bool], bytes] = {}
        self._turn = 0
        self._outbox = Outbox(send, emit_interval)
        self._pace = PrefillPace(context.n_batch, context.n_ubatch)
        self.batches = 0
        self.tokens = 0

    @property
    def running(self) -> int:
        """Requests in prefill or decode."""
        return len(self._jobs)

    # ---- commands --------------------------------------------------------------------------------------

    def start(self, command: p.Start) -> None:
        """Begin a request; sends Started, or Failed for a request that cannot be run."""
        try:
            job = self._make_job(command)
        except (BridgeError, ValueError) as error:
            self.clear(command.seq)
            self._send(p.Failed(command.request, "invalid", str(error)))
            return
        job.done = self._resume(command, job)
        self._jobs[command.request] = job
        self._send(p.Started(command.request, job.done))

    def cancel(self, request: int) -> None:
        """End a request where it stands; the sequence keeps what was decoded."""
        if job := self._jobs.get(request):
            self._finish(job, "cancelled")

    def drop(self, checkpoints: list[int]) -> None:
        """Forget checkpoints."""
        for checkpoint in checkpoints:
            self._checkpoints.pop(checkpoint, None)

    def clear(self, seq: int) -> None:
        """Empty a sequence that runs nothing."""
        if all(job.seq != seq for job in self._jobs.values()):
            self._context.clear(seq)

    def _make_job(self, command: p.Start) -> Job:
        prompt = p.unpack(command.tokens)
        if not 0 <= command.begin < len(prompt):
            raise ValueError(f"begin {command.begin} is outside the prompt of {len(prompt)} items")
        if any(job.seq == command.seq for job in self._jobs.values()):
            raise ValueError(f"sequence {command.seq} is busy")
        request = Request(self._params, self._model.handle, command.fields)
        info = request.info()
        sampler = Sampler(request, self._model.handle)
        sampler.accept_prompt(prompt[prompt >= 0])
        positions = p.unpack(command.positions) if command.positions else np.arange(len(prompt), dtype=np.int32)
        return Job(
            request=command.request,
            seq=command.seq,
            prompt=prompt,
            positions=positions,
            embeddings=command.embeddings,
            checkpoints=dict(command.checkpoints),
            sampler=sampler,
            text=TextFilter(info["stop"]),
            preserved=frozenset(info["preserved_tokens"]),
            ends_reply=not info["ignore_eos"],
            max_tokens=command.max_tokens,
            done=command.begin,
        )

    def _resume(self, command: p.Start, job: Job) -> int:
        """Bring the sequence to `command.begin`; returns where it really stands (0 when it had to be cleared)."""
        begin, seq = command.begin, command.seq
        try:
            if begin == 0:
                raise StateError("nothing to resume")
            expected = int(job.positions[begin - 1])
            if self._context.last_position(seq) < expected:
                raise StateError("the sequence holds less than expected")
            if command.restore >= 0:
                checkpoint = self._checkpoints.get(command.restore)
                if checkpoint is None:
                    raise StateError("the checkpoint is gone")
                self._context.restore_checkpoint(seq, checkpoint, expected + 1)
            elif self._context.last_position(seq) > expected:
                self._context.truncate(seq, expected + 1)
        except StateError:
            self._context.clear(seq)
            return 0
        return begin

    # ---- steps -----------------------------------------------------------------------------------------

    def step(self) -> None:
        """Decode one token for every decoding job, then one batch of a prefilling job; those take turns."""
        self._decode_step()
        if prefilling := [job for job in self._jobs.values() if job.prefilling]:
            self._turn += 1
            first = self._turn % len(prefilling)
            for job in prefilling[first:] + prefilling[:first]:
                if self._prefill_step(job):
                    break

    def _decode_step(self) -> None:
        jobs = [job for job in self._jobs.values() if not job.prefilling]
        if not jobs:
            return
        tokens = [job.generated[-1] for job in jobs]
        positions = [job.position for job in jobs]
        seqs = [job.seq for job in jobs]
        try:
            self._context.decode(tokens, positions, seqs, logits=1)
        except CacheFull:
            # Room from idle sequences, then from prompts under way; then the longest reply ends here.
            if not self._evict_idle() and not self._put_back(keep=None):
                self._finish(max(jobs, key=lambda job: job.position), "length")
            return
        except DecodeError as error:
            self._fail(jobs, "compute", str(error))
            return
        self._count(len(jobs))
        self._sample(jobs, list(range(len(jobs))))

    def _prefill_step(self, job: Job) -> bool:
        """Decode the job's next prefill batch; False when it has to wait for free cells."""
        others_decode = any(not other.prefilling for other in self._jobs.values())
        end = job.chunk_end(self._pace.batch(others_decode))
        positions = job.positions[job.done : end]
        last = end == len(job.prompt)
        begun = time.monotonic()
        self._outbox.flush(begun)  # this batch may take long
        try:
            vectors = job.vectors(end, self._context.n_embd)
            if vectors is not None:
                self._context.decode_embeddings(vectors, positions, job.seq, last)
            else:
                logits = np.zeros(end - job.done, np.int8)
                logits[-1] = last
                self._context.decode(job.prompt[job.done : end], positions, job.seq, logits)
            self._context.synchronize()
        except CacheFull as error:
            if self._evict_idle():
                return True
            # The oldest prompt goes first: younger ones give their cells back and begin again after it.
            oldest = next(other for other in self._jobs.values() if other.prefilling)
            if job is oldest and not self._put_back(keep=job) and len(self._jobs) == 1:
                self._fail([job], "compute", str(error))
            return False
        except DecodeError as error:
            self._fail([job], "compute", str(error))
            return True
        seconds = time.monotonic() - begun
        self._count(end - job.done)
        self._pace.observe(end - job.done, seconds)
        job.done = end
        job.prefill_seconds += seconds
        self._send(p.Prefilled(job.request, end, seconds))
        if (checkpoint := job.checkpoints.pop(end, None)) is not None:
            data = self._context.take_checkpoint(job.seq)
            self._checkpoints[checkpoint] = data
            self._send(p.Checkpointed(job.request, checkpoint, end, len(data)))
        if last:
            job.first_token_at = time.monotonic()
            self._sample([job], [-1])
        return True

    def _sample(self, jobs: list[Job], rows: list[int]) -> None:
        """Sample the next token of each job from the given batch rows, and send what became of it."""
        tokens = step_many([job.sampler for job in jobs], self._context.handle, rows)
        over = []
        for job, token in zip(jobs, tokens, strict=True):
            if token < 0:
                self._fail([job], "invalid", f"sampling failed: {job.sampler.error()}")
                continue
            job.generated.append(token)
            released = job.text.push(self._piece(token, token in job.preserved))
            reason: p.Reason | None = None
            if released.stop is not None:
                reason = "stop-string"
            elif job.ends_reply and token in self._model.end_tokens:
                reason = "stop"
            elif len(job.generated) >= job.max_tokens:
                reason = "length"
            self._outbox.add(job.request, token, released.text)
            if reason:
                over.append((job, reason, released.stop or ""))
        now = time.monotonic()
        if any(len(job.generated) == 1 for job in jobs):
            self._outbox.flush(now)  # a first token is waited for
        else:
            self._outbox.flush_if_due(now)
        for job, reason, stop in over:
            self._finish(job, reason, stop)

    # ---- ends ------------------------------------------------------------------------------------------

    def _finish(self, job: Job, reason: p.Reason, stop: str = "") -> None:
        del self._jobs[job.request]
        self._last_used[job.seq] = now = time.monotonic()
        self._outbox.flush(now)
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
                held=p.pack(np.array(job.generated[:-1], np.int32)),
                prefill_seconds=job.prefill_seconds,
                decode_seconds=now - job.first_token_at if job.generated else 0.0,
            )
        )

    def _fail(self, jobs: list[Job], code: Literal["invalid", "compute"], message: str) -> None:
        # After a failed decode the state of the batch's sequences is unknown.
        self._outbox.flush(time.monotonic())
        for job in jobs:
            del self._jobs[job.request]
            self._context.clear(job.seq)
            self._send(p.Failed(job.request, code, message))

    def _evict_idle(self) -> bool:
        """Empty the idle sequence that was used longest ago; False when there is none."""
        busy = {job.seq for job in self._jobs.values()}
        idle = [seq for seq in self._last_used if seq not in busy and self._context.last_position(seq) >= 0]
        if not idle:
            return False
        seq = min(idle, key=self._last_used.__getitem__)
        self._context.clear(seq)
        self._send(p.Evicted(seq))
        return True

    def _put_back(self, keep: Job | None) -> bool:
        """Empty the sequence of the youngest prompt under way but `keep`, which begins again; False without one."""
        candidates = [job for job in self._jobs.values() if job.prefilling and job.done and job is not keep]
        if not candidates:
            return False
        job = candidates[-1]
        self._context.clear(job.seq)
        job.done = 0
        self._send(p.Started(job.request, 0))
        return True

    def _count(self, tokens: int) -> None:
        self.batches += 1
        self.tokens += tokens

    def _piece(self, token: int, special: bool) -> bytes:
        key = (token, special)
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = self._model.piece(token, special)
        return piece
