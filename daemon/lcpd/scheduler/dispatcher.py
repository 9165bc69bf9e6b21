"""Brings prompts to slots and the engine's messages back to their generations.

The dispatcher is the only owner of the queue, the slots and the running generations.  It decides with the pure
functions of :mod:`lcpd.scheduler.slots` and acts through `send`.

    generation    leaves it when                          then
    ----------    --------------                          ----
    waiting       a slot is idle and the engine is up     running
    waiting       closed                                  gone
    running       Finished, Failed                        over; the slot is idle
    running       closed                                  Cancel is sent; over when the engine confirms
    running       the engine crashes before its first     waiting, first in line (once); gone if it was closed
                  token
    running       the engine dies later, or hangs         over with EngineDied
    any           the engine fails for good               over with EngineFailed
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lcpd.engine import protocol as p
from lcpd.engine.supervisor import NotReadyError
from lcpd.metrics import Metrics
from lcpd.scheduler import slots as s
from lcpd.scheduler.generation import (
    Begun,
    Done,
    EngineDied,
    EngineFailed,
    Generation,
    GenerationFailed,
    GenerationRefused,
    Progress,
    Prompt,
    QueueFull,
    Text,
)

log = logging.getLogger(__name__)


class Dispatcher:
    """See the module's table.  All methods belong to the event loop's thread."""

    def __init__(
        self,
        model: str,
        slots: int,
        checkpoints: int,
        queue_size: int,
        send: Callable[[p.ToWorker], None],
        metrics: Metrics,
    ) -> None:
        """`checkpoints`: how many to keep per slot on models that need them."""
        self._model = model
        self._checkpoint_limit = checkpoints
        self._queue_size = queue_size
        self._send = send
        self._metrics = metrics
        self._slots = {seq: s.Slot(seq) for seq in range(slots)}
        self._waiting: deque[Generation] = deque()
        self._running: dict[int, tuple[Generation, int]] = {}
        self._ids = itertools.count(1)
        self._checkpoint_ids = itertools.count(1)
        self._up = False
        self._failed: str | None = None
        self._info: asyncio.Future[p.ModelInfo] = asyncio.get_running_loop().create_future()

    @property
    def slots(self) -> list[s.Slot]:
        """What each slot holds."""
        return list(self._slots.values())

    @property
    def running(self) -> int:
        """Generations that hold a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Generations that wait for a slot."""
        return len(self._waiting)

    async def model_info(self) -> p.ModelInfo:
        """Facts about the loaded model; waits for the first load.  Raises EngineFailed."""
        return await asyncio.shield(self._info)

    def submit(self, prompt: Prompt) -> Generation:
        """Queue a prompt.  Raises QueueFull or EngineFailed."""
        if self._failed is not None:
            raise EngineFailed(self._failed)
        if len(self._waiting) >= self._queue_size:
            raise QueueFull(f"{len(self._waiting)} requests wait already (server.queue_size)")
        generation = Generation(next(self._ids), prompt, time.monotonic(), self._close)
        self._waiting.append(generation)
        self._pump()
        return generation

    def _close(self, generation: Generation) -> None:
        if generation in self._waiting:
            self._waiting.remove(generation)
            self._show_load()
        elif generation.id in self._running:
            generation.closed = True
            self._try_send(p.Cancel(self._model, generation.id))

    # ---- placing ---------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Start waiting generations while there are idle slots."""
        while self._up and self._waiting:
            placement = s.place(self.slots, self._waiting[0].prompt.tokens, self._rolls_back)
            if placement is None:
                break
            self._start(self._waiting.popleft(), placement)
        self._show_load()

    def _start(self, generation: Generation, placement: s.Placement) -> None:
        prompt, resume, seq = generation.prompt, placement.resume, placement.slot.seq
        length = len(prompt.tokens)
        positions = s.checkpoint_positions(prompt.spans, 0, length) if self._takes_checkpoints else []
        self._replace(replace(s.rewound(placement.slot, resume), busy=True))
        self._running[generation.id] = (generation, seq)
        generation.attempts += 1
        self._try_send(
            p.Start(
                model=self._model,
                request=generation.id,
                seq=seq,
                tokens=p.pack(prompt.tokens),
                begin=resume.begin,
                restore=resume.restore.id if resume.restore else -1,
                checkpoints={at: next(self._checkpoint_ids) for at in positions},
                fields=prompt.sampling,
                max_tokens=prompt.max_tokens,
            )
        )

    @property
    def _rolls_back(self) -> bool:
        return self._info.done() and self._info.result().kind == "attention"

    @property
    def _takes_checkpoints(self) -> bool:
        return self._checkpoint_limit > 0 and not self._rolls_back

    def _replace(self, slot: s.Slot) -> None:
        """Put a new version of a slot in place; checkpoints that it no longer lists are dropped in the worker."""
        kept = {c.id for c in slot.checkpoints}
        dropped = [c.id for c in self._slots[slot.seq].checkpoints if c.id not in kept]
        self._slots[slot.seq] = slot
        if dropped and self._up:
            self._try_send(p.Drop(self._model, dropped))

    def _try_send(self, message: p.ToWorker) -> None:
        try:
            self._send(message)
        except NotReadyError:
            # The supervisor is about to report the death, which settles everything that ran.
            log.debug("not sent, the engine is down: %s", type(message).__name__)

    def _show_load(self) -> None:
        self._metrics.running.set(len(self._running))
        self._metrics.waiting.set(len(self._waiting))

    # ---- what the engine says (engine.supervisor.Listener) ---------------------------------------------

    def on_up(self, info: p.ModelInfo) -> None:
        """The engine is ready, all its sequences are empty."""
        self._slots = {seq: s.Slot(seq) for seq in self._slots}
        if self._info.done():
            self._info = asyncio.get_running_loop().create_future()
        self._info.set_result(info)
        self._up = True
        self._pump()

    def on_down(self, reason: str, cause: str) -> None:
        """The engine died: what has shown nothing yet is run again, the rest ends with an error.

        After a hang nothing is run again: whatever blocked the loop would block it once more.
        """
        self._up = False
        self._metrics.worker_restarts.labels(cause).inc()
        self._slots = {seq: s.Slot(seq) for seq in self._slots}
        again = []
        for generation, _ in self._running.values():
            if generation.closed:
                continue
            if generation.emitted or generation.attempts > 1 or cause == "hang":
                generation.emit(EngineDied(f"the engine died while it worked on this request: {_first_line(reason)}"))
            else:
                again.append(generation)
        self._running.clear()
        self._waiting.extendleft(reversed(again))
        self._show_load()

    def on_failed(self, reason: str) -> None:
        """The engine will not come back."""
        self._up = False
        self._failed = _first_line(reason)
        error = EngineFailed(self._failed)
        for generation in [*(g for g, _ in self._running.values()), *self._waiting]:
            generation.emit(error)
        self._running.clear()
        self._waiting.clear()
        self._show_load()
        if not self._info.done():
            self._info.set_exception(error)
            self._info.exception()  # whoever asks gets it; nobody has to

    def on_message(self, message: p.FromWorker) -> None:
        """One message about running requests."""
        match message:
            case p.Step(outputs=outputs):
                for output in outputs:
                    self._on_output(output)
            case p.Started(request=request) if request in self._running:
                self._on_started(*self._running[request], message.begin)
            case p.Prefilled(request=request) if request in self._running:
                self._on_prefilled(*self._running[request], message.done)
            case p.Checkpointed(request=request) if request in self._running:
                self._on_checkpoint(self._running[request][1], message)
            case p.Finished(request=request) if request in self._running:
                self._on_finished(*self._running.pop(request), message)
            case p.Failed(request=request) if request in self._running:
                generation, seq = self._running.pop(request)
                self._replace(s.Slot(seq))
                failed = GenerationRefused if message.code == "invalid" else GenerationFailed
                generation.emit(failed(message.message))
                self._pump()
            case p.Evicted(seq=seq):
                self._replace(s.Slot(seq, busy=self._slots[seq].busy))

    def _on_output(self, output: p.Output) -> None:
        if output.request not in self._running:
            return
        generation, _ = self._running[output.request]
        if not generation.emitted:
            generation.emitted = True
            self._metrics.time_to_first_token.observe(time.monotonic() - generation.arrived)
        self._metrics.generation_tokens.inc(len(output.tokens))
        generation.emit(Text(tuple(output.tokens), output.text))

    def _on_started(self, generation: Generation, seq: int, begin: int) -> None:
        # The worker begins earlier than asked when the sequence did not hold what was expected.
        self._replace(s.rewound(self._slots[seq], s.Resume(begin)))
        generation.cached = generation.done = begin
        self._metrics.prompt_tokens.labels("vram").inc(begin)
        generation.emit(Begun(begin))

    def _on_prefilled(self, generation: Generation, seq: int, done: int) -> None:
        self._metrics.prompt_tokens.labels("computed").inc(done - generation.done)
        generation.done = done
        self._replace(replace(self._slots[seq], tokens=generation.prompt.tokens[:done]))
        generation.emit(Progress(done))

    def _on_checkpoint(self, seq: int, message: p.Checkpointed) -> None:
        self._metrics.checkpoint_bytes.inc(message.size_bytes)
        slot = self._slots[seq]
        taken = s.Checkpoint(message.checkpoint, message.position)
        # The new one is listed before thinning, so that dropping it too reaches the worker.
        self._slots[seq] = slot = replace(slot, checkpoints=(*slot.checkpoints, taken))
        kept, _ = s.thin(slot.checkpoints, self._checkpoint_limit)
        self._replace(replace(slot, checkpoints=kept))

    def _on_finished(self, generation: Generation, seq: int, message: p.Finished) -> None:
        held = np.concatenate([generation.prompt.tokens[: generation.done], p.unpack(message.held)])
        self._replace(replace(self._slots[seq], tokens=held, busy=False, last_used=time.monotonic()))
        self._metrics.prefill.observe(message.prefill_seconds)
        generation.emit(
            Done(
                reason=message.reason,
                text=message.text,
                stop=message.stop,
                cached=generation.cached,
                generated=message.generated,
                prefill_seconds=message.prefill_seconds,
                decode_seconds=message.decode_seconds,
            )
        )
        self._pump()


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
