"""Random traffic of many conversations in arenas that are far too small for them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from synthetic_kv import Bench, state

from examples import examples
from lcpd.cache.cache import Pin
from lcpd.engine.protocol import Cut, Piece, Tokens

paths = st.lists(st.integers(0, 2), min_size=1, max_size=24).map(lambda items: np.array(items, np.int32))
picks = st.integers(0, 1000)


class Traffic(RuleBasedStateMachine):
    """Commands in flight overlap, end in any order, and some fail."""

    @initialize(size=st.sampled_from([512, 2048, 8192]), chunk=st.sampled_from([3, 8, 100]))
    def open(self, size: int, chunk: int) -> None:
        self.bench = Bench(size, chunk)
        self.cache = self.bench.cache
        self.saves: list[tuple[Tokens, list[Cut]]] = []
        self.pins: list[tuple[Pin, list[tuple[Piece, bytes]]]] = []

    @rule(tokens=paths, end=picks)
    def plan(self, tokens: Tokens, end: int) -> None:
        covered = self.cache.covered(tokens)
        cuts = self.cache.plan_save(tokens, end % (len(tokens) + 1))
        assert not cuts or cuts[0].begin == covered == self.cache.covered(tokens)
        assert all(a.end == b.begin for a, b in pairwise(cuts))
        self.saves.append((tokens, cuts))

    @rule(pick=picks, failed=st.sampled_from([0, 0, 0, 1]))
    def saved(self, pick: int, failed: int) -> None:
        if self.saves:
            tokens, cuts = self.saves.pop(pick % len(self.saves))
            self.cache.add_segments(tokens, cuts, self.bench.export(tokens, cuts[: len(cuts) - failed]))

    @rule(pick=picks)
    def crashed(self, pick: int) -> None:
        if self.saves:
            for cut in self.saves.pop(pick % len(self.saves))[1]:
                self.cache.give_back(cut.extent)

    @rule(tokens=paths)
    def take_checkpoint(self, tokens: Tokens) -> None:
        if self.bench.take_checkpoint(tokens):
            assert self.cache.checkpoints_on(tokens)[-1] == len(tokens)

    @rule(tokens=paths, end=picks)
    def pin(self, tokens: Tokens, end: int) -> None:
        end %= len(tokens) + 1
        pieces = [segment.piece for segment in self.cache.segments(tokens, 0, min(end, self.cache.covered(tokens)))]
        checkpoint = self.cache.checkpoint(tokens, end)
        pieces += [checkpoint] if checkpoint is not None else []
        contents = [(piece, bytes(self.bench.arena.view(piece.extent))) for piece in pieces]
        self.pins.append((self.cache.pin(tokens, end), contents))

    @rule(pick=picks, unusable=st.sampled_from([False, False, False, True]), begin=st.integers(0, 10))
    def unpin(self, pick: int, unusable: bool, begin: int) -> None:
        if self.pins:
            pin, contents = self.pins.pop(pick % len(self.pins))
            if unusable:
                self.cache.discard(pin, begin)
                assert self.cache.covered(pin.tokens[: pin.end]) <= max(begin, pin.end - 1)
            for piece, content in contents:
                assert bytes(self.bench.arena.view(piece.extent)) == content
            self.cache.unpin(pin)

    @rule(tokens=paths, seconds=st.sampled_from([0.0, 10.0, 1e6]))
    def touch(self, tokens: Tokens, seconds: float) -> None:
        self.bench.now += seconds
        self.cache.touch(tokens)

    @rule(tokens=paths, begin=picks, end=picks)
    def read(self, tokens: Tokens, begin: int, end: int) -> None:
        end %= self.cache.covered(tokens) + 1
        self.bench.restore(tokens, begin % (end + 1), end)
        for position in self.cache.checkpoints_on(tokens):
            piece = self.cache.checkpoint(tokens, position)
            assert piece is not None
            assert bytes(self.bench.arena.view(piece.extent)) == state(tokens[:position])

    @invariant()
    def is_sound(self) -> None:
        if hasattr(self, "bench"):
            self.bench.check()

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        for pin, _ in self.pins:
            self.cache.unpin(pin)
        for _, cuts in self.saves:
            for cut in cuts:
                self.cache.give_back(cut.extent)
        self.bench.check()
        stats = self.cache.stats()
        assert stats.reserved_bytes == stats.lingering_bytes == 0


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(
    max_examples=examples(30), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_hundreds_of_sessions_in_a_tiny_arena_never_fail() -> None:
    rng = np.random.default_rng(1)
    bench = Bench(16 << 10, 16)
    head = rng.integers(0, 1000, 40).astype(np.int32)
    sessions = [np.concatenate([head, rng.integers(0, 1000, 5).astype(np.int32)]) for _ in range(300)]
    for _ in range(900):
        bench.now += float(rng.exponential(20))
        which = int(rng.zipf(1.3)) % len(sessions)
        sessions[which] = np.concatenate([sessions[which], rng.integers(0, 1000, 6).astype(np.int32)])[:120]
        tokens = sessions[which]
        bench.cache.touch(tokens)
        bench.restore(tokens, 0, bench.cache.covered(tokens))
        bench.save(tokens)
        bench.take_checkpoint(tokens)
        bench.check()
    assert bench.cache.covered(head) == len(head)
