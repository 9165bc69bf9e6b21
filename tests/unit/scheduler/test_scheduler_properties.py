"""Whatever clients do and however messages cross: what always holds of dispatcher, cache and (fake) engine together.

The fake worker runs in this process, one message or step at a time.  It compares every token that it is told to reuse,
so a reply that is right is proof that slots, cells and pieces in the arena were what the dispatcher believed.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples import examples
from fakes import vocab
from fakes.clock import FakeClock
from fakes.worker import Faults, Kind, Script, Worker, load
from lcpd.cache.arena import Arena, ArenaView
from lcpd.cache.cache import PromptCache
from lcpd.engine import protocol as p
from lcpd.engine.supervisor import NotReadyError
from lcpd.metrics import Metrics
from lcpd.scheduler.dispatcher import Dispatcher
from lcpd.scheduler.generation import (
    Done,
    Event,
    Generation,
    Prompt,
    Quarantined,
    QueueFull,
    QueueTimedOut,
    Text,
)
from lcpd.scheduler.placement import used
from lcpd.scheduler.policy import Policy
from lcpd.scheduler.slots import Span

HEADS = ("", "you are an agent. ", "you are an agent. these are your tools. ", "another head ")
TAILS = ("one", "two", "a longer question than the others", "x" * 30)
POISON = "longer question"
Move = tuple[Any, ...]
Setup = tuple[int, Kind, int, int]
"""Slots, kind of model, cells, bytes of RAM."""
ROUNDS = 20_000
"""Steps within which everything must be over once nothing new comes."""


class Poisoned(Exception):
    """The worker would be dead."""


def _die() -> NoReturn:
    raise Poisoned


class System:
    """A dispatcher and a worker with the messages between them under the test's control."""

    def __init__(self, slots: int, kind: Kind, n_ctx: int, ram: int, poison: str = "") -> None:
        self.clock = FakeClock()
        self.arena = Arena(ram)
        self.cache = PromptCache(self.arena, segment_chunk=16, clock=self.clock.now)
        policy = Policy(
            queue_size=6,
            queue_timeout=1000,
            ageing=50,
            follow_timeout=100,
            follow_min=6,
            checkpoints=3,
            checkpoint_interval=32,
            save_after=40,
            save_every=0.3,
            retry_grace=50,
        )
        self.metrics = Metrics()
        self.dispatcher = Dispatcher("fake", slots, policy, self.cache, self._send, self.metrics, self.clock)
        self.script = Script(kind=kind, n_ctx=n_ctx, poison=poison)
        self.load = load(slots, n_ctx, n_batch=8, arena_bytes=ram)
        self.commands: deque[p.ToWorker] = deque()
        self.messages: deque[p.FromWorker] = deque()
        self.worker: Worker | None = None
        self.generations: list[Generation] = []
        self.closed: set[int] = set()
        self.ends: dict[int, list[Event | Exception]] = {}
        """What ended each generation."""
        self.told = 0
        """Tokens of replies that consumers were told, each once however many were told of it."""
        self._said: dict[int, Text] = {}
        self.start()

    def start(self) -> None:
        """A new life of the engine."""
        view = ArenaView(self.arena.fd, self.arena.size) if self.arena.size else None
        self.worker = Worker(self.script, self.load, self.messages.append, Faults([], None), view)  # type: ignore[arg-type]
        self.worker.abort = _die
        self.dispatcher.on_up(self.worker.info)

    def kill(self, cause: str = "killed") -> None:
        self.worker = None
        self.commands.clear()
        self.messages.clear()
        self.dispatcher.on_down(cause, cause)

    def _send(self, message: p.ToWorker) -> None:
        if self.worker is None:
            raise NotReadyError("the engine is restarting")
        self.commands.append(message)

    # ---- what can happen -------------------------------------------------------------------------------

    def ahead(self, head: int, tail: int) -> None:
        """Somebody foresees a prompt."""
        self._submit(Prompt(vocab.tokens(HEADS[head] + TAILS[tail]), (), b"{}", 0, kind="prefill"))

    def submit(self, head: int, tail: int, limit: int, background: bool, client: str) -> None:
        text = HEADS[head] + TAILS[tail]
        spans = (Span("system", 0, len(HEADS[head])), Span("user", len(HEADS[head]), len(TAILS[tail])))
        tokens = vocab.tokens(text)
        max_tokens = min(limit, self.script.n_ctx - len(tokens))
        priority = "background" if background else "interactive"
        self._submit(
            Prompt(tokens, spans if head else (), b"{}", max_tokens, priority=priority, client=client)  # type: ignore[arg-type]
        )

    def _submit(self, prompt: Prompt) -> None:
        try:
            generation = self.dispatcher.submit(prompt)
        except QueueFull:
            assert self.dispatcher.waiting >= 6
            return
        except Quarantined:
            assert POISON in vocab.decode(prompt.tokens.tolist())
            return
        self.generations.append(generation)
        if generation.over:  # an anticipation that was dropped at once
            self.ends[generation.id] = [Done("cancelled", "", "", 0, 0, 0.0, 0.0)]
        emit = generation.emit

        def noting(event: Event | Exception) -> None:
            if isinstance(event, Done | Exception):
                self.ends.setdefault(generation.id, []).append(event)
            if isinstance(event, Text) and id(event) not in self._said:
                self._said[id(event)] = event
                self.told += len(event.tokens)
            emit(event)

        generation.emit = noting  # type: ignore[method-assign]

    def close(self, which: int) -> None:
        if self.generations:
            generation = self.generations[which % len(self.generations)]
            self.closed.add(generation.id)
            generation.close()

    def retry(self, which: int) -> None:
        """Somebody goes away and asks again at once."""
        if self.generations:
            generation = self.generations[which % len(self.generations)]
            self.close(which)
            if generation.prompt.kind == "generate":
                self._submit(generation.prompt)

    def obey(self) -> None:
        if self.worker is not None and self.commands:
            self.worker.obey(self.commands.popleft())

    def step(self) -> None:
        if self.worker is not None and self.worker.running:
            try:
                self.worker.step()
            except Poisoned:
                self.kill("crash")
                self.start()

    def hear(self) -> None:
        if not self.messages:
            return
        message = self.messages.popleft()
        # Commands are carried out in order, so what the dispatcher believes when it sends one is true when it counts.
        assert not (isinstance(message, p.Started) and message.problem), message
        self.dispatcher.on_message(message)

    def run(self, rounds: int) -> None:
        """Things go on as they should."""
        for _ in range(rounds):
            self.obey()
            self.step()
            self.hear()

    def crash(self) -> None:
        """Somebody kills the engine, and it is there again."""
        if self.worker is not None:
            self.kill()
        self.start()

    # ---- what must hold --------------------------------------------------------------------------------

    def check(self) -> None:
        assert self.arena.used <= self.arena.size
        assert self.worker is None or self.worker.sequences.most_used <= self.script.n_ctx
        slots = self.dispatcher.slots
        assert self.dispatcher.running == sum(slot.busy for slot in slots)
        view = self.dispatcher.snapshot()
        if view.cells_used > view.cells:
            # Only while running replies outgrow what was reserved, which is being answered by parking one.
            states = [slot.state for slot in view.slots if slot.state != "idle"]
            assert "parking" in states or "restoring" in states

    def settle(self) -> None:
        """Let everything come to its end."""
        for _ in range(ROUNDS):
            if not (self.commands or self.messages or self.dispatcher.running or self.dispatcher.waiting):
                return
            self.obey()
            self.step()
            self.hear()
            self.clock.advance(0.01)
            self.check()
        raise AssertionError(f"not over after {ROUNDS} rounds: {self.dispatcher.snapshot()}")

    def check_end(self) -> None:
        """Nothing is left, and all had what they asked for."""
        assert self.worker is not None
        slots = self.dispatcher.slots
        for slot in slots:
            assert not slot.busy
            assert slot.tokens.tolist() == self.worker.sequences.held(slot.seq)
        assert used(slots) == self.worker.sequences.used
        stats = self.cache.stats()
        assert (stats.reserved_bytes, stats.lingering_bytes) == (0, 0)
        self.cache.check_integrity()
        for generation in self.generations:
            ends = self.ends.get(generation.id, [])
            assert len(ends) == 1 or (generation.id in self.closed and not ends)
        self.check_books()

    def check_books(self) -> None:
        """All is over: every token and every request was counted, and counted once."""
        sums: Counter[str] = Counter()
        for family in self.metrics.registry.collect():
            for sample in family.samples:
                sums[sample.name] += sample.value  # type: ignore[assignment]
        asked = [generation.prompt for generation in self.generations if generation.prompt.kind == "generate"]
        tokens = sum(len(prompt.tokens) for prompt in asked)
        ahead = self.metrics.registry.get_sample_value("lcpd_prompt_tokens_total", {"source": "anticipated"})
        sources = sums["lcpd_prompt_tokens_total"] - (ahead or 0)
        assert sums["lcpd_prompt_tokens_submitted_total"] == tokens
        assert sources + sums["lcpd_prompt_tokens_abandoned_total"] == tokens
        assert sums["lcpd_client_prompt_tokens_total"] == sources
        assert sums["lcpd_generation_tokens_total"] == sums["lcpd_client_generation_tokens_total"] == self.told
        first, further = sums["lcpd_time_to_first_token_seconds_count"], sums["lcpd_inter_token_latency_seconds_count"]
        assert first + further == self.told
        assert sums["lcpd_request_outcomes_total"] == sums["lcpd_request_queue_time_seconds_count"] == len(asked)
        assert sums["lcpd_cache_miss_tokens_total"] == sums["lcpd_client_miss_tokens_total"]
        assert sums["lcpd_num_requests_running"] == sums["lcpd_num_requests_waiting"] == 0
        assert sums["lcpd_slots"] == len(self.dispatcher.slots)

    def play(self, moves: list[Move]) -> None:
        """Let things happen, one after the other."""
        for name, *arguments in moves:
            if name == "advance":
                self.clock.advance(*arguments)
            else:
                move: Callable[..., None] = getattr(self, name)
                move(*arguments)
            self.check()


async def text_of(generation: Generation) -> str:
    text = ""
    async for batch in generation.batches():
        text += "".join(getattr(event, "text", "") for event in batch)
    return text


SUBMIT = st.tuples(
    st.just("submit"),
    st.integers(0, len(HEADS) - 1),
    st.integers(0, len(TAILS) - 1),
    st.integers(1, 60),
    st.booleans(),
    st.sampled_from(["a", "b"]),
)
MOVES = st.one_of(
    SUBMIT,
    SUBMIT,
    SUBMIT,
    st.tuples(st.just("ahead"), st.integers(0, len(HEADS) - 1), st.integers(0, len(TAILS) - 1)),
    st.tuples(st.just("close"), st.integers(0, 20)),
    st.tuples(st.just("retry"), st.integers(0, 20)),
    st.tuples(st.sampled_from(["obey", "step", "hear"])),
    st.tuples(st.just("run"), st.integers(1, 60)),
    st.tuples(st.just("advance"), st.sampled_from([1.0, 60.0, 60.0, 1000.0])),
)
SYSTEMS = st.tuples(
    st.integers(1, 4),
    st.sampled_from(["attention", "hybrid"]),
    st.sampled_from([90, 130, 300]),
    st.sampled_from([0, 2_000, 20_000, 1 << 20]),
)


common = settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def run(setup: Setup, scenario: Callable[[System], Awaitable[None]], poison: str = "") -> None:
    async def main() -> None:
        system = System(*setup, poison)
        try:
            await scenario(system)
        finally:
            system.arena.close()

    asyncio.run(main())


@common
@given(SYSTEMS, st.lists(MOVES, min_size=20, max_size=50))
def test_every_request_ends_once_with_the_right_text_and_nothing_is_left_behind(
    setup: Setup, moves: list[Move]
) -> None:
    async def scenario(system: System) -> None:
        system.play(moves)
        system.settle()
        system.check_end()
        for generation in system.generations:
            await check_text(system, generation)

    run(setup, scenario)


async def check_text(system: System, generation: Generation) -> None:
    """The text is right, unless nobody wanted or got it."""
    if generation.id in system.closed or generation.prompt.kind == "prefill":
        return
    right = vocab.reply_text(generation.prompt.tokens.tolist())
    try:
        text = await text_of(generation)
    except QueueTimedOut:
        return
    # The last token of a reply that was cut off may be a part of a character.
    cut = right.encode()[: generation.prompt.max_tokens].decode("utf-8", "ignore")
    assert text.rstrip("\ufffd") == cut


@common
@given(SYSTEMS, st.lists(st.one_of(MOVES, st.just(("crash",))), min_size=20, max_size=50))
def test_whenever_the_engine_is_killed_every_reply_is_right_and_nothing_is_leaked(
    setup: Setup, moves: list[Move]
) -> None:
    async def scenario(system: System) -> None:
        system.play(moves)
        system.settle()
        system.check_end()
        for generation in system.generations:
            await check_text(system, generation)

    run(setup, scenario)


@common
@given(SYSTEMS, st.lists(st.one_of(MOVES, st.just(("crash",))), min_size=20, max_size=50))
def test_a_poisonous_request_is_found_and_no_bystander_is_blamed(setup: Setup, moves: list[Move]) -> None:
    async def scenario(system: System) -> None:
        system.play(moves)
        system.settle()
        system.check_end()
        for generation in system.generations:
            if POISON not in vocab.decode(generation.prompt.tokens.tolist()):
                await check_text(system, generation)
            elif generation.prompt.max_tokens > 2 and generation.id not in system.closed:
                try:
                    await text_of(generation)
                except (Quarantined, QueueTimedOut):
                    continue
                raise AssertionError("it should have killed the engine")

    run(setup, scenario, POISON)


@settings(parent=common, max_examples=examples(8))
@given(st.sampled_from(["attention", "hybrid"]), st.integers(0, 60), st.integers(0, 3))
def test_a_request_can_be_cancelled_at_any_moment(kind: Kind, moment: int, which: int) -> None:
    async def scenario(system: System) -> None:
        system.play([("submit", 2, tail, 20, tail == 3, "a") for tail in range(4)])
        system.run(moment)
        system.close(which)
        system.settle()
        system.check_end()

    run((2, kind, 130, 1 << 20), scenario)


def test_a_background_request_gets_its_turn_among_any_number_of_interactive_ones() -> None:
    async def scenario(system: System) -> None:
        system.play([("submit", 0, 0, 5, True, "a")])
        patient = system.generations[0]
        for turn in range(500):
            if patient.over:
                return
            if system.dispatcher.waiting < 4:
                system.submit(0, turn % 4, 5, False, f"client {turn}")
            system.run(1)
            system.clock.advance(1)
        raise AssertionError("it is still waiting")

    run((1, "attention", 300, 0), scenario)


def test_several_with_one_head_at_once_hold_it_once() -> None:
    async def scenario(system: System) -> None:
        system.play([("submit", 2, tail, 200, False, "a") for tail in (0, 1, 2)])
        system.settle()
        head = len(HEADS[2])
        assert [slot.shared for slot in system.dispatcher.snapshot().slots] == [head, head, head, 0]
        system.check_end()

    run((4, "hybrid", 300, 1 << 20), scenario)
