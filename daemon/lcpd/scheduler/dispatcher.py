"""Brings prompts to slots and the engine's messages back to their generations.

The dispatcher is the only owner of the scheduler's :class:`State`: the requests, the slots, and what commands in
flight hold in the arena.  It asks :func:`lcpd.scheduler.decide.decide` what to do until there
is nothing to do, whenever something has happened or the time has come.

    generation    leaves it when                          then
    ----------    --------------                          ----
    waiting       Launch (see `decide`)                   running
    waiting       closed                                  gone; its reply, if any, is left for a retry (`retries`)
    waiting       Expire                                  over with QueueTimedOut; the reply of an earlier try that it
                                                          was to go on behind is left for the next one
    running       Finished, Failed                        over; the slot is idle
    running       Parked                                  parked: waits with what it has generated; the slot is idle
    running       closed                                  Cancel is sent; over when the engine confirms, and the
                                                          reply is left for a retry
    running       the engine dies or hangs                waiting, a suspect, to go on after what it has generated;
                                                          its consumer does not notice; gone if it was closed
    running       the engine dies, and it is found        over with Quarantined
                  guilty (see `recovery`)
    parked        Launch                                  running, with the same id; its consumer does not notice
    parked        closed                                  Cancel is sent; gone; the reply is left for a retry
    parked        the engine dies                         waiting, with what it has generated
    any           the engine fails for good               over with EngineFailed
    anticipation  Drop; Stop, once the engine confirms;   over with Done("cancelled")
                  the engine dies

What always holds: a slot is busy just while one request's `stay` is on it; the cells of all slots, shared ones once,
do not exceed the cache's except while replies outgrow what was reserved for them, which parks or evicts at once; what
is reserved in the arena belongs to a command in flight.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from lcpd.cache.cache import PromptCache
from lcpd.engine import protocol as p
from lcpd.engine.supervisor import SLEEP
from lcpd.metrics import Metrics
from lcpd.scheduler import decide as d
from lcpd.scheduler.actions import Actions
from lcpd.scheduler.aftermath import Aftermath
from lcpd.scheduler.clock import Clock, LoopClock, Timer
from lcpd.scheduler.fetching import Disk, Fetching
from lcpd.scheduler.generation import EngineFailed, Generation, Prompt, QueueFull
from lcpd.scheduler.keeper import Keeper
from lcpd.scheduler.news import News
from lcpd.scheduler.policy import Policy
from lcpd.scheduler.recovery import first_line
from lcpd.scheduler.report import CacheReport
from lcpd.scheduler.request import Request
from lcpd.scheduler.retries import Retries
from lcpd.scheduler.saver import Saver
from lcpd.scheduler.slots import Slot
from lcpd.scheduler.snapshot import snapshot
from lcpd.scheduler.state import State
from lcpd.scheduler.table import SlotTable
from lcpd.scheduler.tally import Tally
from lcpd.scheduler.view import Snapshot


class Dispatcher:
    """See the module's table.  All methods belong to the event loop's thread."""

    def __init__(
        self,
        model: str,
        slots: int,
        policy: Policy,
        cache: PromptCache,
        send: Callable[[p.ToWorker], None],
        metrics: Metrics,
        clock: Clock | None = None,
        on_over: Callable[[Request, str], None] = lambda request, outcome: None,
    ) -> None:
        """`send` raises NotReadyError while there is no engine.  `on_over`: see `Tally`."""
        self._state = State(policy, SlotTable(slots), Keeper(cache, policy, metrics))
        self._tally = Tally(self._state, metrics, on_over)
        self._retries = Retries(self._state)
        self._actions = Actions(model, self._state, send, metrics, self._tally, self._retries)
        self._news = News(self._state, self._tally, self._retries)
        self._saver = Saver(self._state, self._actions)
        self._fetching = Fetching(self._state, self._pump)
        self._aftermath = Aftermath(self._state, self._tally, self._retries)
        self.on_work: Callable[[], None] = lambda: None
        """Called when somebody waits for the engine."""
        self._idle_since = 0.0
        self._metrics = metrics
        metrics.at_scrape(self._tally.show)
        metrics.at_scrape(lambda: metrics.cache.show_ram(cache.figures()))
        cache.tell_ages(metrics.cache)
        self._clock = clock or LoopClock()
        self._ids = itertools.count(1)
        self._timer: Timer | None = None
        self._failed: str | None = None
        self._info: asyncio.Future[p.ModelInfo] = asyncio.get_running_loop().create_future()

    @property
    def slots(self) -> list[Slot]:
        """What each slot holds."""
        return list(self._state.table)

    @property
    def running(self) -> int:
        """Generations that hold a slot."""
        return len(self._state.running)

    @property
    def waiting(self) -> int:
        """Generations that wait for a slot."""
        return len(self._state.waiting)

    @property
    def idle_for(self) -> float:
        """Seconds since there was last something to do; 0 while requests run or wait."""
        return 0.0 if self._state.requests else self._clock.now() - self._idle_since

    @property
    def suspects(self) -> bool:
        """Whether a generation may have crashed the engine."""
        return self._state.suspects

    def touch(self) -> None:
        """Somebody uses the engine for something else: it is not idle."""
        self._idle_since = self._clock.now()

    def call(self) -> None:
        """Somebody begins to use the engine for something else: it is not idle, and has to be awake."""
        self.touch()
        self.on_work()

    def snapshot(self) -> Snapshot:
        """What each slot does, and who waits."""
        return snapshot(self._state.view(), self._state.requests.values(), self._clock.now())

    def report(self, name: str) -> CacheReport | None:
        """The cache report of the request whose prompt had this name; None where it has not begun yet, or long ago."""
        return self._state.reports.get(name)

    @property
    def exporting(self) -> bool:
        """Whether state is on its way into the arena."""
        return bool(self._state.keeper.exporting)

    def save(self, seq: int) -> None:
        """Begin to bring into the arena what an idle slot holds, as far as it is not there; nothing without engine."""
        if self._state.up and not self._state.table[seq].busy:
            self._actions.save(seq)

    def use_disk(self, disk: Disk) -> None:
        """From now on requests that the disk can bring further than slots and RAM wait for it."""
        self._fetching.disk = disk

    def forget(self) -> None:
        """Empty all idle slots, keep nothing of what is on its way from slots to RAM, nor of what is over."""
        self._actions.forget()
        self._retries.forget()
        self._state.forget_reports()

    async def model_info(self) -> p.ModelInfo:
        """Facts about the loaded model; waits for the first load.  Raises EngineFailed."""
        return await asyncio.shield(self._info)

    def submit(self, prompt: Prompt) -> Generation:
        """Queue a prompt.  Raises QueueFull, Quarantined or EngineFailed."""
        if self._failed is not None:
            raise EngineFailed(self._failed)
        now = self._clock.now()
        self._aftermath.check(prompt, now)
        new = sum(not request.attempts for request in self._state.waiting)
        if new >= self._state.policy.queue_size:
            raise QueueFull(f"{new} requests wait already (server.queue_size)", self._state.retry_after())
        generation = Generation(next(self._ids), prompt, now, self._close)
        request = self._state.requests[generation.id] = Request(generation, since=now)
        self._tally.came(request)
        self._retries.begin(request, now)
        self._fetching.begin(request)
        if prompt.kind == "generate":
            self.on_work()
        self._pump()
        return generation

    def _close(self, generation: Generation) -> None:
        request = self._state.requests.get(generation.id)
        if request is None or request.closed:
            return
        self._tally.left(request)
        if request.stay is not None:
            request.closed = True
            self._actions.cancel(request)
            return
        del self._state.requests[request.id]
        if request.parked:
            self._actions.cancel(request)
        self._tally.over(request, "cancelled", self._clock.now())
        self._retries.left(request, self._clock.now())
        self._pump()

    def _pump(self) -> None:
        """Decide and act until nothing is to be done for now."""
        now = self._clock.now()
        self._idle_since = now
        while action := d.decide(view := self._state.view(), now):
            self._actions.perform(action, now)
        if not any(stay.parking for _, stay in self._state.running):
            # Nothing more can be done about it; the engine says so again when it still lacks cells.
            self._state.starved = 0
        self._saver.look(now)
        self._retries.expire(now)
        if self._timer is not None:
            self._timer.cancel()
        due = (d.next_moment(view, now), self._saver.next_moment(now), self._retries.next_moment())
        moments = [moment for moment in due if moment is not None]
        self._timer = self._clock.call_later(min(moments) - now, self._pump) if moments else None

    # ---- what the engine says (engine.supervisor.Listener) ---------------------------------------------

    def on_message(self, message: p.FromWorker) -> None:
        """One message of the running engine."""
        now = self._clock.now()
        if self._news.take(message, now):
            self._pump()
        elif isinstance(message, p.Prefilled | p.Checkpointed):
            self._saver.look(now)

    def on_up(self, info: p.ModelInfo) -> None:
        """The engine is ready, all its sequences are empty."""
        state = self._state
        state.keeper.configure(info)
        state.table.reset()
        # Purely recurrent state takes no cell for a token: every slot can be as long as the context.
        state.table.capacity = info.n_ctx * (len(state.table) if info.kind == "recurrent" else 1)
        state.up = True
        self._aftermath.fit(info.n_ctx, self._clock.now())
        if self._info.done():
            self._info = asyncio.get_running_loop().create_future()
        self._info.set_result(info)
        for request in state.waiting:  # before the model was loaded, nobody could say what the disk has
            self._fetching.begin(request)
        self._pump()

    def on_down(self, reason: str, cause: str) -> None:
        """The engine died: what it ran waits to go on, see `recovery`."""
        if cause != SLEEP:
            self._metrics.engine.restarts.labels(cause).inc()
        state = self._state
        state.up, state.starved = False, 0
        state.keeper.lost({slot.seq: slot.tokens for slot in state.table if len(slot.tokens)})
        state.table.reset()
        self._aftermath.settle(first_line(reason), cause, self._clock.now())
        self._pump()

    def on_failed(self, reason: str) -> None:
        """The engine will not come back."""
        self._state.up = False
        self._failed = first_line(reason)
        error = EngineFailed(self._failed)
        for request in self._state.requests.values():
            self._tally.over(request, "engine-failed", self._clock.now())
            request.generation.emit(error)
        self._state.requests.clear()
        self._pump()
        if not self._info.done():
            self._info.set_exception(error)
            self._info.exception()  # whoever asks gets it; nobody has to
