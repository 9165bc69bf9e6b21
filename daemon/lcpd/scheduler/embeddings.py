"""Brings texts to the engine to be embedded, and their vectors back.

    a request     leaves it when                                    then
    ---------     --------------                                    ----
    waiting       the engine is up, and nothing speaks against it   sent
    sent          all its vectors are there                         over
    sent          the engine reports a problem                      over with EmbeddingFailed
    sent          the engine dies                                   waiting, without the texts that have their vectors
    sent          the engine dies of itself for the `FAULTS`th      over with Quarantined
                  time since it got a vector, or is killed for
                  the `KILLS`th
    any           its consumer goes away                            gone; what is left of it is forgotten
    any           the engine fails for good                         over with EngineFailed
    waiting       `timeout` is over before its first vector         over with QueueTimedOut

Nothing is sent while a generation is suspected of having crashed the engine (:mod:`lcpd.scheduler.recovery`): the next
death is to tell whether it was that.  A request that may be to blame itself is sent alone for the same reason.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lcpd.engine import protocol as p
from lcpd.engine.supervisor import SLEEP, NotReadyError
from lcpd.metrics import Metrics
from lcpd.scheduler.generation import EngineFailed, Priority, Quarantined, QueueFull, QueueTimedOut
from lcpd.scheduler.recovery import FAULTS, KILLED, KILLS, first_line
from lcpd.scheduler.slots import Tokens

Vector = npt.NDArray[np.float32]
_RETRY_AFTER = 5
"""Seconds after which somebody who was sent away had better try again."""


class EmbeddingFailed(RuntimeError):
    """The engine could not embed a text."""


@dataclass
class _Request:
    id: int
    texts: Sequence[Tokens]
    priority: Priority
    done: asyncio.Future[None]
    vectors: list[Vector | None] = field(init=False)
    numbers: list[int] = field(default_factory=list)
    """Which texts the engine was sent, in its numbering."""
    sent: bool = False
    faults: int = 0
    """Deaths of the engine by itself while it was there, since it got a vector."""
    kills: int = 0
    """Deaths by SIGKILL since then."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has a vector, or is over."""

    def __post_init__(self) -> None:
        self.vectors = [None] * len(self.texts)


class Embeddings:
    """Owner of the requests; a listener of the supervisor's, to be told after the dispatcher."""

    def __init__(
        self,
        model: str,
        send: Callable[[p.ToWorker], None],
        metrics: Metrics,
        *,
        queue_size: int,
        timeout: float,
        calm: Callable[[], bool] = lambda: True,
        on_work: Callable[[], None] = lambda: None,
        on_life: Callable[[], None] = lambda: None,
    ) -> None:
        """`send` raises NotReadyError while there is no engine; `calm`: whether no generation is under suspicion;
        `on_work`: called when a request comes, and when one is there and the engine is put to sleep; `on_life`: called
        whenever the engine gives a sign of life while there is one (a text may take minutes), so that it is not
        believed to be idle."""
        self._model = model
        self._send_message = send
        self._metrics = metrics
        self._queue_size = queue_size
        self._timeout = timeout
        self._calm = calm
        self._on_work = on_work
        self._on_life = on_life
        self._ids = itertools.count(1)
        self._requests: dict[int, _Request] = {}
        self._up = False
        self._failed: str | None = None

    @property
    def running(self) -> int:
        """Requests that are not over."""
        return len(self._requests)

    async def embed(self, texts: Sequence[Tokens], priority: Priority = "interactive") -> list[Vector]:
        """The vectors of texts, as the model gives them; one number each where it is a reranker.

        Every text has between 1 and ModelInfo.embedding_ctx tokens.  Raises QueueFull, QueueTimedOut, Quarantined,
        EngineFailed or EmbeddingFailed.
        """
        if self._failed is not None:
            raise EngineFailed(self._failed)
        if len(self._requests) >= self._queue_size:
            raise QueueFull(f"{len(self._requests)} requests wait already (server.queue_size)", _RETRY_AFTER)
        request = _Request(next(self._ids), texts, priority, asyncio.get_running_loop().create_future())
        self._requests[request.id] = request
        self._on_work()
        try:
            self._pump()
            await self._first_vector(request)
            await request.done
            return [vector for vector in request.vectors if vector is not None]
        finally:
            self._forget(request)

    async def _first_vector(self, request: _Request) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await request.begun.wait()
        except TimeoutError as error:
            seconds = self._timeout
            raise QueueTimedOut(f"no text was embedded within {seconds:g} s (scheduler.queue_timeout)", 30) from error

    def _forget(self, request: _Request) -> None:
        del self._requests[request.id]
        if request.sent and not request.done.done():
            self._send(p.StopEmbedding(self._model, request.id))
        if not request.done.done():
            request.done.cancel()
        elif not request.done.cancelled():
            request.done.exception()  # who asked has it, or is gone
        self._pump()

    def _pump(self) -> None:
        """Send what may be sent."""
        waiting = [r for r in self._requests.values() if not r.sent and not r.done.done()]
        if not (waiting and self._up and self._calm()):
            return
        if any(request.sent and request.faults for request in self._requests.values()):
            return  # it goes alone
        suspects = [request for request in waiting if request.faults]
        if suspects:
            if not any(request.sent for request in self._requests.values()):
                self._embed(suspects[0])
            return
        for request in waiting:
            self._embed(request)

    def _embed(self, request: _Request) -> None:
        request.numbers = [number for number, vector in enumerate(request.vectors) if vector is None]
        texts = [p.pack(request.texts[number]) for number in request.numbers]
        request.sent = self._send(p.Embed(self._model, request.id, texts, int(request.priority == "background")))

    def _send(self, message: p.ToWorker) -> bool:
        with suppress(NotReadyError):
            self._send_message(message)
            return True
        return False

    # ---- what the engine says (engine.supervisor.Listener) ---------------------------------------------

    def on_message(self, message: p.FromWorker) -> None:
        """One message of the running engine."""
        if self._requests:
            self._on_life()
        if isinstance(message, p.Embedded):
            self._take(message)
        self._pump()

    def _take(self, message: p.Embedded) -> None:
        request = self._requests.get(message.request)
        if request is None or not request.sent or request.done.done():
            return  # it crossed with the end of the request
        if message.problem:
            request.done.set_exception(EmbeddingFailed(message.problem))
        else:
            number = request.numbers[message.text]
            request.vectors[number] = np.frombuffer(message.vector, "<f4")
            request.faults = request.kills = 0
            self._metrics.tokens.embedded.inc(len(request.texts[number]))
            if all(vector is not None for vector in request.vectors):
                request.done.set_result(None)
        request.begun.set()

    def on_up(self, info: p.ModelInfo) -> None:
        """The engine is ready."""
        self._up = True
        self._pump()

    def on_down(self, reason: str, cause: str) -> None:
        """The engine died, or was put to sleep."""
        self._up = False
        for request in self._requests.values():
            request.faults += request.sent and cause not in (SLEEP, KILLED)
            request.kills += request.sent and cause == KILLED
            request.sent = False
            if request.faults >= FAULTS or request.kills >= KILLS:
                deaths = request.faults + request.kills
                self._end(request, Quarantined(f"these texts crashed the engine {deaths} times: {first_line(reason)}"))
        if self._requests and cause == SLEEP:
            self._on_work()

    def on_failed(self, reason: str) -> None:
        """The engine will not come back."""
        self._up, self._failed = False, first_line(reason)
        for request in self._requests.values():
            self._end(request, EngineFailed(self._failed))

    def _end(self, request: _Request, error: Exception) -> None:
        if not request.done.done():
            request.done.set_exception(error)
        request.begun.set()
