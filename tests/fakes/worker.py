"""A worker process without a model: it speaks :mod:`lcpd.engine.protocol` and follows a script.

In a test::

    WorkerSettings(load=fakes.worker.load(), command=worker_command(kind="hybrid"))
    worker_command(faults=[Fault("token:3", "kill", once=str(tmp_path / "crashed"))])

Its sequences hold token lists, and it treats them as the real worker treats its KV cache: it begins at 0 where a
sequence holds less than expected, where a checkpoint is gone, and where a model that cannot roll back would have to;
it empties idle sequences when cells run out.  Beyond that it compares the tokens themselves: a Start whose first
`begin` tokens are not what the sequence (or the checkpoint) holds is answered with Failed, because the real worker
would generate nonsense.  The reply depends on every token that the sequence holds (:func:`fakes.vocab.reply_text`)
and comes one byte a token.  It honours ``stop`` and ``ignore_eos`` (an endless reply) of a request's fields.

A fault happens at one point of the worker's life and does one thing:

    at            when
    --            ----
    start         before the hello
    load          after the first LoadProgress
    loaded        right after Loaded
    request:N     on the N-th Start of this life, before Started
    prefill:N     after the N-th prefill batch of this life, before Prefilled
    token:N       after the N-th token of this life was sent

    do            what
    --            ----
    kill          SIGKILL
    exit:N        exit with status N
    hang[:S]      no sign of life, for ever or for S seconds
    stall[:S]     beats, but no batch, for ever or for S seconds
    garbage       bytes that are no frame
    nonsense      a frame that is no message

With `once` (a path) a fault happens only while that file does not exist, and creates it: in the first life only.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from fakes import command, vocab
from lcpd.engine import protocol as p
from lcpd.engine.stops import TextFilter
from lcpd.ipc.channel import ChannelClosed, ChildChannel
from lcpd.ipc.child import child_socket
from lcpd.ipc.handshake import Refused, answer

Kind = Literal["attention", "swa", "hybrid", "recurrent"]
CHECKPOINT_BYTES = 1000
"""What each checkpoint claims to weigh."""
_Point = Literal["start", "load", "loaded", "request", "prefill", "token"]
_Action = Literal["kill", "exit", "hang", "stall", "garbage", "nonsense"]


class Fault(msgspec.Struct, forbid_unknown_fields=True):
    """Something goes wrong; see the module's tables."""

    at: str
    do: str
    once: str = ""

    def __post_init__(self) -> None:
        if self.at.partition(":")[0] not in get_args(_Point) or self.do.partition(":")[0] not in get_args(_Action):
            raise ValueError(f"no such fault: {self.do!r} at {self.at!r}")


class Script(msgspec.Struct, forbid_unknown_fields=True):
    """What the worker is like.  Times in seconds."""

    kind: Kind = "attention"
    n_ctx: int = 0
    """Cells shared by all sequences; 0: as Load asks."""
    reply: str | None = None
    """The text of every reply; None: `vocab.reply_text`."""
    load_seconds: float = 0.0
    load_failure: str = ""
    """Answer Load with LoadFailed and this reason."""
    refuse: str = ""
    """Refuse the daemon's hello with this reason."""
    say: list[str] = []
    """Lines to print at the start."""
    ignore_sigterm: bool = False
    beat_seconds: float = 0.1
    prefill_seconds: float = 0.0
    """What each prefill batch takes."""
    decode_seconds: float = 0.0
    """What each decode step takes."""
    faults: list[Fault] = []


def worker_command(**script: Any) -> tuple[str, ...]:
    """`WorkerSettings.command` for a fake worker; the arguments are fields of `Script`."""
    return command("fakes.worker", Script(**script))


def load(slots: int = 2, n_ctx: int = 4096, n_batch: int = 64, model: str = "fake") -> p.Load:
    """A Load message that the fake understands (it reads no file)."""
    context = p.ContextSettings(
        n_ctx=n_ctx,
        n_ctx_cap=4096,
        slots=slots,
        n_batch=n_batch,
        n_ubatch=n_batch,
        threads=1,
        kv_type="f16",
        flash_attn="auto",
        gpu_layers=0,
        tensor_split=[],
        main_gpu=0,
        mmap=True,
        mlock=False,
    )
    return p.Load(model=model, path="fake.gguf", context=context)


def model_info(load: p.Load, kind: Kind = "attention", n_ctx: int = 0) -> p.ModelInfo:
    """What the fake says that it has loaded; `n_ctx` as in `Script`."""
    context = load.context
    n_ctx = n_ctx or context.n_ctx or context.n_ctx_cap
    return p.ModelInfo(
        description="a fake model",
        kind=kind,
        n_params=1000,
        size_bytes=2000,
        n_ctx=n_ctx,
        n_ctx_train=8192,
        n_vocab=vocab.N_VOCAB,
        n_embd=8,
        n_batch=min(context.n_batch, n_ctx),
        n_ubatch=min(context.n_ubatch, n_ctx),
        threads=context.threads,
        devices={"CPU": 2},
        system="fake",
        build="fake",
    )


class CacheFull(Exception):
    """There are not enough free cells."""


class Mismatch(ValueError):
    """The daemon believes that a sequence holds other tokens than it does."""


class Sequences:
    """What each sequence holds, and the checkpoints."""

    def __init__(self, kind: Kind, cells: int) -> None:
        self._rolls_back = kind == "attention"
        self._cells = cells
        self._held: dict[int, list[int]] = {}
        self._checkpoints: dict[int, list[int]] = {}

    def held(self, seq: int) -> list[int]:
        """The tokens of a sequence."""
        return self._held.setdefault(seq, [])

    def resume(self, seq: int, tokens: list[int], begin: int, restore: int) -> int:
        """Keep the first `begin` tokens; returns how many were kept, which is 0 where that is impossible."""
        held = self.held(seq)
        checkpoint = self._checkpoints.get(restore)
        must_cut = len(held) > begin
        impossible = checkpoint is None if restore >= 0 else must_cut and not self._rolls_back
        if begin == 0 or len(held) < begin or impossible:
            held.clear()
            return 0
        if held[:begin] != tokens[:begin]:
            raise Mismatch(f"sequence {seq} does not hold the first {begin} tokens of the prompt")
        if checkpoint is not None and checkpoint != tokens[:begin]:
            raise Mismatch(f"checkpoint {restore} was not taken after the first {begin} tokens of the prompt")
        del held[begin:]
        return begin

    def extend(self, seq: int, tokens: list[int]) -> None:
        """Decode tokens; raises CacheFull, and then nothing has changed."""
        if sum(map(len, self._held.values())) + len(tokens) > self._cells:
            raise CacheFull(f"no {len(tokens)} free cells")
        self.held(seq).extend(tokens)

    def take_checkpoint(self, seq: int, checkpoint: int) -> None:
        """Remember how the sequence stands."""
        self._checkpoints[checkpoint] = list(self.held(seq))

    def drop(self, checkpoints: list[int]) -> None:
        """Forget checkpoints; an id that there is not is the daemon's mistake."""
        for checkpoint in checkpoints:
            del self._checkpoints[checkpoint]


@dataclass
class Job:
    """A running request."""

    start: p.Start
    prompt: list[int]
    fields: dict[str, Any]
    text: TextFilter
    done: int
    reply: Iterator[int] = field(default_factory=lambda: iter(()))
    """The tokens still to be sampled."""
    generated: list[int] = field(default_factory=list)


class Worker:
    """The loop: one decode step for all, then one prefill batch of the oldest request that can go on."""

    def __init__(self, script: Script, load: p.Load, send: Callable[[p.FromWorker], None], faults: Faults) -> None:
        self.info = model_info(load, script.kind, script.n_ctx)
        self._script = script
        self._load = load
        self._send = send
        self._faults = faults
        self._sequences = Sequences(script.kind, self.info.n_ctx)
        self._jobs: dict[int, Job] = {}
        self._last_used: dict[int, float] = {}
        self._starts = 0
        self._prefills = 0
        self._tokens = 0
        self._batches = 0

    @property
    def running(self) -> int:
        """Requests in prefill or decode."""
        return len(self._jobs)

    def beat(self) -> p.Beat:
        """The sign of life that is due now."""
        return p.Beat(self._batches, self._tokens, self.running)

    def obey(self, message: p.ToWorker) -> None:
        """Carry out a command."""
        if not isinstance(message, p.Quit) and message.model != self._load.model:
            raise RuntimeError(f"{message!r} names another model than {self._load.model!r}")
        match message:
            case p.Start():
                self._starts += 1
                self._faults.pass_point("request", self._starts)
                try:
                    self._begin(message)
                except ValueError as error:
                    self._sequences.held(message.seq).clear()
                    self._send(p.Failed(message.request, "invalid", str(error)))
            case p.Cancel(request=request):
                if job := self._jobs.get(request):
                    self._finish(job, "cancelled")
            case p.Drop(checkpoints=checkpoints):
                self._sequences.drop(checkpoints)
            case p.Clear(seq=seq):
                if seq not in self._busy():
                    self._sequences.held(seq).clear()
            case p.Load() | p.Quit():
                raise RuntimeError(f"{message!r} is out of place")

    def _begin(self, start: p.Start) -> None:
        prompt = p.unpack(start.tokens).tolist()
        if not 0 <= start.begin < len(prompt):
            raise ValueError(f"begin {start.begin} is outside the prompt of {len(prompt)} items")
        if not 0 <= start.seq < self._load.context.slots:
            raise ValueError(f"there is no sequence {start.seq}")
        if start.seq in self._busy():
            raise ValueError(f"sequence {start.seq} is busy")
        fields = msgspec.json.decode(start.fields) if start.fields else {}
        done = self._sequences.resume(start.seq, prompt, start.begin, start.restore)
        stops = fields.get("stop") or []
        text = TextFilter([stops] if isinstance(stops, str) else stops)
        self._jobs[start.request] = Job(start, prompt, fields, text, done)
        self._send(p.Started(start.request, done))

    def step(self) -> None:
        """One round of the loop."""
        self._decode()
        for job in [job for job in self._jobs.values() if job.done < len(job.prompt)]:
            if self._prefill(job):
                break

    def _decode(self) -> None:
        jobs = [job for job in self._jobs.values() if job.done == len(job.prompt)]
        if not jobs:
            return
        time.sleep(self._script.decode_seconds)
        try:
            for job in jobs:
                self._sequences.extend(job.start.seq, job.generated[-1:])
        except CacheFull:
            if not self._evict():
                self._finish(max(jobs, key=lambda job: len(job.prompt) + len(job.generated)), "length")
            return
        self._batches += 1
        self._sample(jobs)

    def _prefill(self, job: Job) -> bool:
        """One batch; False when it has to wait for free cells."""
        end = min(job.done + self.info.n_batch, len(job.prompt))
        end = min((at for at in job.start.checkpoints if job.done < at < end), default=end)
        try:
            self._sequences.extend(job.start.seq, job.prompt[job.done : end])
        except CacheFull as error:
            if self._evict():
                return True
            if len(self._jobs) == 1:
                self._fail(job, str(error))
            return False
        time.sleep(self._script.prefill_seconds)
        self._batches += 1
        self._prefills += 1
        self._faults.pass_point("prefill", self._prefills)
        job.done = end
        self._send(p.Prefilled(job.start.request, end, self._script.prefill_seconds))
        if (checkpoint := job.start.checkpoints.get(end)) is not None:
            self._sequences.take_checkpoint(job.start.seq, checkpoint)
            self._send(p.Checkpointed(job.start.request, checkpoint, end, CHECKPOINT_BYTES))
        if end == len(job.prompt):
            job.reply = self._reply(job)
            self._sample([job])
        return True

    def _reply(self, job: Job) -> Iterator[int]:
        held = self._sequences.held(job.start.seq)
        text = vocab.reply_text(held) if self._script.reply is None else self._script.reply
        if job.fields.get("ignore_eos"):
            return itertools.cycle(vocab.encode(text))
        return iter([*vocab.encode(text), vocab.END])

    def _sample(self, jobs: list[Job]) -> None:
        outputs: list[p.Output] = []
        over: list[tuple[Job, p.Reason, str]] = []
        for job in jobs:
            token = next(job.reply)
            job.generated.append(token)
            released = job.text.push(vocab.piece(token))
            outputs.append(p.Output(job.start.request, [token], released.text))
            if released.stop is not None:
                over.append((job, "stop-string", released.stop))
            elif token == vocab.END:
                over.append((job, "stop", ""))
            elif len(job.generated) >= job.start.max_tokens:
                over.append((job, "length", ""))
        self._send(p.Step(outputs))
        for job, reason, stop in over:
            self._finish(job, reason, stop)
        for _ in outputs:
            self._tokens += 1
            self._faults.pass_point("token", self._tokens)

    def _finish(self, job: Job, reason: p.Reason, stop: str = "") -> None:
        del self._jobs[job.start.request]
        self._last_used[job.start.seq] = time.monotonic()
        rest = job.text.finish()
        if rest.stop is not None:
            reason, stop = "stop-string", rest.stop
        self._send(
            p.Finished(
                request=job.start.request,
                reason=reason,
                text=rest.text,
                stop=stop,
                generated=len(job.generated),
                held=p.pack(np.array(job.generated[:-1], np.int32)),
                prefill_seconds=self._script.prefill_seconds,
                decode_seconds=self._script.decode_seconds,
            )
        )

    def _fail(self, job: Job, message: str) -> None:
        del self._jobs[job.start.request]
        self._sequences.held(job.start.seq).clear()
        self._send(p.Failed(job.start.request, "compute", message))

    def _evict(self) -> bool:
        idle = [seq for seq in self._last_used if seq not in self._busy() and self._sequences.held(seq)]
        if not idle:
            return False
        seq = min(idle, key=self._last_used.__getitem__)
        self._sequences.held(seq).clear()
        self._send(p.Evicted(seq))
        return True

    def _busy(self) -> set[int]:
        return {job.start.seq for job in self._jobs.values()}


class Faults:
    """Makes the script's faults happen."""

    def __init__(self, faults: list[Fault], sock: socket.socket) -> None:
        self._faults = faults
        self._sock = sock
        self._stalled_until = 0.0

    @property
    def stalled(self) -> bool:
        """Whether the loop is to turn without getting anywhere."""
        return time.monotonic() < self._stalled_until

    def pass_point(self, point: _Point, count: int | None = None) -> None:
        """The worker passes a point of its life."""
        name = point if count is None else f"{point}:{count}"
        for fault in self._faults:
            if fault.at != name or (fault.once and Path(fault.once).exists()):
                continue
            if fault.once:
                Path(fault.once).touch()
            self._happen(fault)

    def _happen(self, fault: Fault) -> None:
        action, _, argument = fault.do.partition(":")
        seconds = float(argument or "inf")
        match action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                sys.exit(int(argument))
            case "hang":
                time.sleep(min(seconds, 1e6))
            case "stall":
                self._stalled_until = time.monotonic() + seconds
            case "garbage":
                self._sock.sendall(b"\xff" * 64)
            case "nonsense":
                self._sock.sendall(struct.pack("<I", 5) + b"hello")


def main() -> int:
    """Run until told to quit; returns the exit status."""
    script = msgspec.json.decode(sys.argv[1], type=Script)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if script.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sock = child_socket(sys.argv)
    channel: ChildChannel[p.ToWorker] = ChildChannel(sock, p.ToWorker)  # type: ignore[arg-type]
    faults = Faults(script.faults, sock)
    for line in script.say:
        print(line, flush=True)
    try:
        faults.pass_point("start")
        payload = channel.receive_raw(timeout=None)
        reply = Refused(script.refuse) if script.refuse else answer(payload or b"", "engine", os.getpid())
        channel.send(reply)
        if isinstance(reply, Refused):
            return 3
        load = channel.receive(timeout=None)
        assert isinstance(load, p.Load)
        return _serve(script, load, channel, faults)
    except ChannelClosed:
        return 0


def _serve(script: Script, load: p.Load, channel: ChildChannel[p.ToWorker], faults: Faults) -> int:
    begun = time.monotonic()
    channel.send(p.LoadProgress(load.model, 0.25))
    faults.pass_point("load")
    time.sleep(script.load_seconds)
    if script.load_failure:
        channel.send(p.LoadFailed(load.model, script.load_failure))
        return 4
    channel.send(p.LoadProgress(load.model, 1.0))
    worker = Worker(script, load, channel.send, faults)
    channel.send(p.Loaded(load.model, worker.info, time.monotonic() - begun))
    faults.pass_point("loaded")
    beaten = 0.0
    while True:
        timeout = 0.0 if worker.running and not faults.stalled else script.beat_seconds
        while (message := channel.receive(timeout)) is not None:
            if isinstance(message, p.Quit):
                return 0
            worker.obey(message)
            timeout = 0.0
        if worker.running and not faults.stalled:
            worker.step()
        if time.monotonic() - beaten >= script.beat_seconds:
            beaten = time.monotonic()
            channel.send(worker.beat())
