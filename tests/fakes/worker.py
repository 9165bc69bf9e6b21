"""A worker process without a model: it speaks :mod:`lcpd.engine.protocol` and follows a script.

In a test::

    WorkerSettings(load=fakes.worker.load(), command=worker_command(kind="hybrid"))
    worker_command(faults=[Fault("token:3", "kill", once=str(tmp_path / "crashed"))])

Its sequences hold token lists in cells that they can share (:mod:`fakes.state`), and it treats them as the real worker
treats its KV cache: it begins at 0 where a sequence or a piece cannot be used, and where a model that cannot roll back
would have to; where cells run out the requests wait and Starved is sent.  Beyond that it compares the tokens
themselves: a Start that would use what belongs to other tokens than the prompt's is answered with Failed, because the
real worker would generate nonsense.  A command that makes no sense (Clear of a sequence that runs, a Save of more
than there is) ends it with an error.  The reply depends on every token of the prompt (:func:`fakes.vocab.reply_text`)
and comes one byte a token, also across Park and Start.  It honours ``stop`` and ``ignore_eos`` (an endless reply) of
a request's fields.

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
from typing import Any, Literal, NoReturn, get_args

import msgspec
import numpy as np

from fakes import command, vocab
from fakes.state import CHECKPOINT_BYTES, SEGMENT_BYTES, CacheFull, Damaged, Impossible, Sequences
from lcpd.cache.arena import ArenaView
from lcpd.engine import protocol as p
from lcpd.engine.stops import TextFilter
from lcpd.ipc.channel import ChannelClosed, ChildChannel
from lcpd.ipc.child import child_socket
from lcpd.ipc.handshake import Refused, answer

Kind = Literal["attention", "swa", "hybrid", "recurrent"]
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
    alignment: int = 1
    """Prefill is said to be cut at multiples of this."""
    reply: str | None = None
    """The text of every reply; None: `vocab.reply_text`."""
    replies: list[tuple[str, str]] = []
    """(what a prompt has in it, the reply to it); the first that fits goes before `reply`."""
    load_seconds: float = 0.0
    load_failure: str = ""
    """Answer Load with LoadFailed and this reason."""
    max_ctx: int = 0
    """Answer a Load of a larger context with LoadFailed for want of memory; 0: never."""
    refuse: str = ""
    """Refuse the daemon's hello with this reason."""
    say: list[str] = []
    """Lines to print at the start."""
    ignore_sigterm: bool = False
    beat_seconds: float = 0.1
    prefill_seconds: float = 0.0
    """What each prefill batch takes."""
    slow: list[tuple[str, float]] = []
    """(what a prompt has in it, what its whole prefill takes, evenly and beside other prompts); the first that fits."""
    decode_seconds: float = 0.0
    """What each decode step takes."""
    generates: bool = True
    """Whether the model is said to generate; some only embed."""
    pooling: Literal["mean", "last", "rank"] = "mean"
    """What the model's file says of how a text becomes a vector."""
    embed_seconds: float = 0.0
    """What embedding a text takes."""
    poison: str = ""
    """Abort when the third token of a reply to a prompt with this text is to be sampled, or a text with it is to be
    embedded; "": never."""
    faults: list[Fault] = []


def worker_command(**script: Any) -> tuple[str, ...]:
    """`WorkerSettings.command` for a fake worker; the arguments are fields of `Script`."""
    return command("fakes.worker", Script(**script))


def load(
    slots: int = 2,
    n_ctx: int = 4096,
    n_batch: int = 64,
    model: str = "fake",
    arena_bytes: int = 0,
    embeddings: p.EmbeddingSettings | None = None,
) -> p.Load:
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
    return p.Load(model=model, path="fake.gguf", context=context, arena_bytes=arena_bytes, embeddings=embeddings)


def model_info(
    load: p.Load,
    kind: Kind = "attention",
    n_ctx: int = 0,
    alignment: int = 1,
    pooling: Literal["mean", "last", "rank"] = "mean",
) -> p.ModelInfo:
    """What the fake says that it has loaded; the other arguments are as in `Script`."""
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
        alignment=alignment,
        segment_bytes=SEGMENT_BYTES,
        checkpoint_bytes=0 if kind == "attention" else CHECKPOINT_BYTES,
        pooling=pooling if load.embeddings else "",
        embedding_ctx=load.embeddings.n_ctx if load.embeddings else 0,
        embedding_width=8,
    )


def fake_vector(tokens: list[int], pooling: str) -> np.ndarray:
    """Eight numbers that depend on every token; for a reranker how many words the texts before and after | share."""
    if pooling == "rank":
        query, document = (set(part.split()) for part in vocab.decode(tokens).split("|", 1))
        return np.array([float(len(query & document))])
    return np.array([sum(tokens[column::8]) + 1.0 for column in range(8)])


@dataclass
class Job:
    """A request, on a sequence or parked."""

    start: p.Start
    prompt: list[int]
    fields: dict[str, Any]
    text: TextFilter
    done: int = 0
    """Items of prompt and reply that the sequence holds of those that have to be computed before it samples."""
    target: int = 0
    """How many these are."""
    begun: float = 0.0
    """The monotonic time at which the sequence was given."""
    slow: float = 0.0
    """Seconds that its prefill takes at least."""
    reply: Iterator[int] | None = None
    """The tokens still to be sampled; None before the first."""
    generated: list[int] = field(default_factory=list)
    checkpoints: dict[int, p.Extent] = field(default_factory=dict)
    complete: tuple[p.Reason, str] | None = None
    """Why the reply ends with the token that was taken last, and the stop string, if it does."""

    def take(self, stop: str | None, token: int) -> None:
        """See whether the reply is complete with a token of it, which completed a stop string or not."""
        if stop is not None:
            self.complete = "stop-string", stop
        elif token == vocab.END:
            self.complete = "stop", ""
        elif len(self.generated) >= self.start.max_tokens > 0:
            self.complete = "length", ""

    @property
    def tokens(self) -> list[int]:
        """Prompt and reply."""
        return self.prompt + self.generated


class Worker:
    """The loop: one decode step for all, then one prefill batch of the first request that can go on."""

    def __init__(
        self,
        script: Script,
        load: p.Load,
        send: Callable[[p.FromWorker], None],
        faults: Faults,
        arena: ArenaView | None = None,
    ) -> None:
        info = model_info(load, script.kind, script.n_ctx, script.alignment, script.pooling)
        self.info = msgspec.structs.replace(info, generates=script.generates)
        self._script = script
        self._load = load
        self._send = send
        self._faults = faults
        self.sequences = Sequences(script.kind == "attention", self.info.n_ctx, arena)
        self._jobs: dict[int, Job] = {}
        self._texts: list[tuple[p.Embed, int]] = []
        """Texts to embed: the request, and which of its texts."""
        self._parked: dict[int, Job] = {}
        self.abort: Callable[[], NoReturn] = os.abort
        """What a poisonous prompt does."""
        self._starved = False
        self._starts = 0
        self._prefills = 0
        self._tokens = 0
        self._batches = 0

    @property
    def running(self) -> int:
        """Requests in prefill or decode."""
        return len(self._jobs) + bool(self._texts)

    def beat(self) -> p.Beat:
        """The sign of life that is due now."""
        return p.Beat(self._batches, self._tokens, self.running)

    # ---- commands --------------------------------------------------------------------------------------

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
                    self.sequences.cut(message.seq, 0)
                    self._parked.pop(message.request, None)
                    self._send(p.Failed(message.request, "invalid", str(error)))
            case p.Mark():
                job = self._jobs.get(message.request)
                if job is not None and len(self.sequences.held(job.start.seq)) < message.position:
                    job.checkpoints[message.position] = message.extent
            case p.Cancel(request=request):
                if job := self._jobs.get(request):
                    self._finish(job, "cancelled")
                elif job := self._parked.pop(request, None):
                    self._send(self._finished(job, "cancelled", [], job.text.finish().text, ""))
            case p.Park(request=request):
                if job := self._jobs.pop(request, None):
                    self._parked[request] = job
                    held = self._held_reply(job)
                    done = min(job.done, len(job.prompt))
                    self._send(p.Parked(request, job.start.seq, done, _packed(held), _packed(job.generated)))
            case p.Save():
                self._save(message)
            case p.Clear(seq=seq):
                self._must_be_idle(seq, message)
                self.sequences.cut(seq, 0)
            case p.Embed():
                self._texts += [(message, number) for number in range(len(message.texts))]
            case p.StopEmbedding(request=request):
                self._texts = [(embed, number) for embed, number in self._texts if embed.request != request]
            case p.Load() | p.Quit():
                raise RuntimeError(f"{message!r} is out of place")

    def _begin(self, start: p.Start) -> None:
        prompt = p.unpack(start.tokens).tolist()
        job = self._parked.get(start.request)
        if job is None:
            fields = msgspec.json.decode(start.fields) if start.fields else {}
            stops = fields.get("stop") or []
            text = TextFilter([stops] if isinstance(stops, str) else stops)
            job = Job(start, prompt, fields, text, generated=p.unpack(start.reply).tolist())
            for token in job.generated:
                job.take(text.push(vocab.piece(token)).stop, token)
        if job.prompt != prompt:
            raise ValueError(f"request {start.request} was parked with another prompt")
        tokens = job.tokens
        if not 0 <= start.begin <= len(tokens) - (start.max_tokens > 0):
            raise ValueError(f"begin {start.begin} is outside the prompt of {len(tokens)} items")
        if not 0 <= start.seq < self._load.context.slots:
            raise ValueError(f"there is no sequence {start.seq}")
        self._must_be_idle(start.seq, start)
        problem, damaged = "", False
        try:
            self.sequences.bring(start, tokens)
        except (Impossible, CacheFull) as error:
            problem, damaged = str(error), isinstance(error, Damaged)
        job.start, job.target = start, len(tokens)
        job.begun, job.slow = time.monotonic(), self._slowness(job)
        job.done = 0 if problem else start.begin
        self.sequences.check(start.seq, tokens[: job.done])
        job.checkpoints = {at: extent for at, extent in start.checkpoints.items() if at > job.done}
        self._parked.pop(start.request, None)
        self._jobs[start.request] = job
        self._send(p.Started(start.request, job.done, problem, damaged=damaged))
        if reason := job.complete:
            self._finish(job, *reason)
        elif not start.max_tokens and job.done == job.target:
            self._finish(job, "length")

    def _save(self, save: p.Save) -> None:
        segments = []
        for cut in save.cuts:
            piece = self.sequences.export(save.seq, cut.begin, cut.end, cut.extent)
            if piece is None:
                break
            segments.append(p.Segment(cut.begin, cut.end, piece))
        checkpoint = None
        if save.checkpoint is not None:
            self._must_be_idle(save.seq, save)
            checkpoint = self.sequences.take_checkpoint(save.seq, save.checkpoint)
        problem = "" if len(segments) == len(save.cuts) else "a segment does not fit"
        self._send(p.Saved(save.seq, segments, checkpoint, problem))

    def _must_be_idle(self, seq: int, message: p.ToWorker) -> None:
        if any(job.start.seq == seq for job in self._jobs.values()):
            raise RuntimeError(f"{message!r} is for a sequence that runs a request")

    # ---- steps -----------------------------------------------------------------------------------------

    def step(self) -> None:
        """One round of the loop."""
        self._decode()
        for job in sorted(self._jobs.values(), key=lambda job: job.start.priority):
            if job.done < job.target and self._prefill(job):
                break
        if self._texts:
            self._embed(*self._texts.pop(0))

    def _embed(self, embed: p.Embed, number: int) -> None:
        tokens = p.unpack(embed.texts[number]).tolist()
        if self._script.poison and self._script.poison in vocab.decode(tokens):
            self.abort()
        time.sleep(self._script.embed_seconds)
        self._batches += 1
        vector = fake_vector(tokens, self.info.pooling)
        self._send(p.Embedded(embed.request, number, vector.astype("<f4").tobytes()))

    def _decode(self) -> None:
        jobs = [job for job in self._jobs.values() if job.done == job.target]
        if not jobs:
            return
        time.sleep(self._script.decode_seconds)
        if self._lacks(sum(self._undecoded(job) for job in jobs)):
            return
        for job in jobs:
            if self._undecoded(job):
                self.sequences.extend(job.start.seq, job.generated[-1:])
            self._take_checkpoint(job)
        self._batches += 1
        self._sample(jobs)

    def _undecoded(self, job: Job) -> int:
        return len(job.tokens) - len(self.sequences.held(job.start.seq))

    def _lacks(self, cells: int) -> bool:
        """Whether there are not so many free cells; the daemon is told, once."""
        missing = self.sequences.used + cells - self.info.n_ctx
        if missing <= 0:
            self._starved = False
            return False
        if not self._starved:
            self._send(p.Starved(cells))
        self._starved = True
        return True

    def _slowness(self, job: Job) -> float:
        prompt = vocab.decode(job.prompt) if self._script.slow else ""
        return next((seconds for mark, seconds in self._script.slow if mark in prompt), 0.0)

    def _prefill(self, job: Job) -> bool:
        """One batch; False when it has to wait for free cells, or for its time."""
        end = min(job.done + self.info.n_batch, job.target)
        end = min((at for at in job.checkpoints if job.done < at < end), default=end)
        if time.monotonic() < job.begun + job.slow * end / job.target:
            time.sleep(0.001)
            return False
        if self._lacks(end - job.done):
            return False
        self.sequences.extend(job.start.seq, job.tokens[job.done : end])
        time.sleep(self._script.prefill_seconds)
        self._batches += 1
        self._prefills += 1
        self._faults.pass_point("prefill", self._prefills)
        job.done = end
        self._send(p.Prefilled(job.start.request, end, self._script.prefill_seconds))
        self._take_checkpoint(job)
        if end == job.target and not job.start.max_tokens:
            self._finish(job, "length")
        elif end == job.target:
            self._sample([job])
        return True

    def _take_checkpoint(self, job: Job) -> None:
        """The one that was asked for where the sequence stands."""
        at = len(self.sequences.held(job.start.seq))
        if (extent := job.checkpoints.pop(at, None)) is not None:
            piece = self.sequences.take_checkpoint(job.start.seq, extent)
            self._send(p.Checkpointed(job.start.request, at, extent, piece))

    def _reply(self, job: Job) -> Iterator[int]:
        """The tokens that come after those generated so far."""
        held = self.sequences.held(job.start.seq)[: len(job.prompt)]
        text = vocab.reply_text(held) if self._script.reply is None else self._script.reply
        prompt = vocab.decode(job.prompt) if self._script.replies else ""
        text = next((reply for mark, reply in self._script.replies if mark in prompt), text)
        endless = job.fields.get("ignore_eos")
        tokens = itertools.cycle(vocab.encode(text)) if endless else iter([*vocab.encode(text), vocab.END])
        return itertools.islice(tokens, len(job.generated), None)

    def _sample(self, jobs: list[Job]) -> None:
        outputs: list[p.Output] = []
        over: list[Job] = []
        for job in jobs:
            if job.reply is None:
                job.reply = self._reply(job)
            if self._script.poison and self._script.poison in vocab.decode(job.prompt) and len(job.generated) > 1:
                self.abort()
            token = next(job.reply)
            if token == vocab.END and len(job.generated) < job.start.min_tokens:
                job.reply = itertools.chain([token], job.reply)
                token = ord("+")
            job.generated.append(token)
            released = job.text.push(vocab.piece(token))
            outputs.append(p.Output(job.start.request, [token], released.text))
            job.take(released.stop, token)
            if job.complete:
                over.append(job)
        self._send(p.Step(outputs))
        for job in over:
            assert job.complete
            self._finish(job, *job.complete)
        for _ in outputs:
            self._tokens += 1
            self._faults.pass_point("token", self._tokens)

    def _finish(self, job: Job, reason: p.Reason, stop: str = "") -> None:
        del self._jobs[job.start.request]
        rest = job.text.finish()
        if rest.stop is not None:
            reason, stop = "stop-string", rest.stop
        self._send(self._finished(job, reason, self._held_reply(job), rest.text, stop))

    def _held_reply(self, job: Job) -> list[int]:
        return self.sequences.held(job.start.seq)[len(job.prompt) :]

    def _finished(self, job: Job, reason: p.Reason, held: list[int], text: str, stop: str) -> p.Finished:
        return p.Finished(
            request=job.start.request,
            reason=reason,
            text=text,
            stop=stop,
            generated=len(job.generated),
            held=_packed(held),
            prefill_seconds=self._script.prefill_seconds,
            decode_seconds=self._script.decode_seconds,
        )


def _packed(tokens: list[int]) -> bytes:
    return p.pack(np.array(tokens, np.int32))


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
    if 0 < script.max_ctx < load.context.n_ctx:
        reason = f"no context of {load.context.n_ctx} cells could be made: failed to allocate buffer for kv cache"
        channel.send(p.LoadFailed(load.model, reason))
        return 4
    channel.send(p.LoadProgress(load.model, 1.0))
    arena = ArenaView(channel.descriptors[0], load.arena_bytes) if load.arena_bytes else None
    worker = Worker(script, load, channel.send, faults, arena)
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
